"""How a server batches, recognised from the moments at which its tokens arrive.

    somebody waits though a seat is free, until a whole batch has ended      -> static (dynamic: after a pause)
    never two at once                                                        -> none
    others stand still while a newcomer's whole prompt is read               -> continuous (prompts first)
    others go on, each step a little longer, until the prompt is read        -> chunked; prompt / pieces = budget
    the same prompt again answers much sooner                                -> prefix cache

Nothing here asks the server; what it tells of itself (`told`) is set beside what was seen (`settle`).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from servefit.calibrate.calibration import Batching, Calibration
from servefit.calibrate.steps import Cluster, Stream, clusters_of, streams_of
from servefit.engine.config import EngineConfig
from servefit.records import Run
from servefit.stats import percentile

LONG_PROMPT = 128
"""A newcomer must bring this many tokens for its prefill to show in the others' gaps."""
PATIENCE = 6
"""Steps a newcomer must have waited before we call it waiting: its way to the engine takes a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A request that arrived while others decoded, and what happened then."""

    waited_steps: int
    """Steps handed out to others before its first token."""
    joined: bool
    """Its first token came while at least one of the others still ran."""
    seat_free: bool
    """Fewer than the most ever seen were running all the while."""
    pieces: int | None
    """In how many steps its prompt was read, as far as the others' gaps tell."""
    prompt_tok: int
    others: int
    alone: bool
    """Its first token came in a step that handed out nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One run, with who was running after each step."""

    streams: tuple[Stream, ...]
    clusters: tuple[Cluster, ...]
    active: tuple[int, ...]
    waiting: tuple[int, ...]


def timeline(run: Run) -> Timeline:
    """The run's steps with the number running and waiting after each."""
    streams = streams_of(run)
    clusters = clusters_of(streams)
    sent = [s.sent_s for s in streams]
    begun = ended = 0
    active, waiting = [], []
    for cluster in clusters:
        begun += len(cluster.firsts)
        ended += cluster.ended
        active.append(begun - ended)
        waiting.append(bisect_right(sent, cluster.at_s) - begun)
    return Timeline(streams=tuple(streams), clusters=tuple(clusters), active=tuple(active), waiting=tuple(waiting))


def recognise(runs: Sequence[Run]) -> Batching:
    """How the server that answered `runs` forms its batches, with confidence and a sentence for each thing seen."""
    lines = [t for run in runs if (t := timeline(run)).clusters]
    most = max((max(t.active) for t in lines), default=0)
    if not most:
        return Batching(evidence=("no token was seen",))
    seats, sure, evidence = _seats(lines, most)
    joins = [j for t in lines for j in _joins(t, most)]
    cache, cache_words = _prefix_cache(runs)
    base = Batching(
        seats=seats, seats_at_least=None if seats else most, prefix_cache=cache, evidence=(*evidence, *cache_words)
    )
    if seats == 1:
        return replace(base, policy="none", confidence=sure)
    return _policy(base, joins)


def _seats(lines: Sequence[Timeline], most: int) -> tuple[int | None, float, tuple[str, ...]]:
    """(seats, how sure, in words): the most that ran together, if somebody had to wait for one of them to end."""
    waited = 0
    for t in lines:
        full = [0]
        for active in t.active:
            full.append(full[-1] + (active >= most))
        at = [c.at_s for c in t.clusters]
        for s in t.streams:
            begin, end = bisect_right(at, s.sent_s), bisect_right(at, s.first_s - 1e-9)
            waited += full[end] - full[begin] >= PATIENCE and full[end] - full[begin] >= 0.5 * (end - begin)
    if not waited:
        return None, 0.0, (f"up to {most} ran together and nobody had to wait for a seat",)
    sure = 1.0 - 0.4 / waited
    return most, sure, (f"never more than {most} ran together, and {waited} waited until one of them ended",)


def _joins(t: Timeline, most: int) -> list[Join]:
    """Every request that came while others decoded."""
    at = [c.at_s for c in t.clusters]
    found = []
    for index, s in enumerate(t.streams):
        begin = bisect_right(at, s.sent_s)
        end = bisect_right(at, s.first_s - 1e-9)
        end = min(end, len(at) - 1)
        if index not in t.clusters[end].firsts:
            end = max(end - 1, 0)
        if begin == 0 or t.active[begin - 1] == 0:
            continue
        others = [i for i, o in enumerate(t.streams) if o.first_s < s.sent_s < o.last_s and i != index]
        left = min((sum(1 for c in t.streams[i].row.chunk_s if c > s.sent_s) for i in others), default=0)
        if not others or left < PATIENCE:
            continue
        outlived = [i for i in others if t.streams[i].last_s > s.first_s]
        found.append(
            Join(
                waited_steps=end - begin,
                joined=bool(outlived),
                seat_free=all(a < most for a in t.active[begin - 1 : end]),
                pieces=_pieces(t, begin, end) if len(outlived) == len(others) else None,
                prompt_tok=s.isl - s.cached_tok,
                others=len(others),
                alone=not t.clusters[end].tokens,
            )
        )
    return found


def _pieces(t: Timeline, begin: int, end: int) -> int | None:
    """Steps between the clusters that are clearly longer than usual, up to the one that holds the first token.

    Usual is the median gap of the ten steps before. None where nothing stands out.
    """
    at = [c.at_s for c in t.clusters]
    if begin < 4:
        return None
    before = [at[i] - at[i - 1] for i in range(max(1, begin - 10), begin)]
    usual = percentile(before, 50) or 0.0
    # a step that hands out only the first token belongs to the pause of the others: count it with the gap it ends
    excess = [at[i] - at[i - 1] - usual for i in range(begin, end + 1)]
    top = max(excess, default=0.0)
    if top < 0.5 * usual:
        return None
    return sum(1 for e in excess if e > 0.4 * top)


def _policy(base: Batching, joins: Sequence[Join]) -> Batching:
    """The policy, from what happened to those who came while others decoded."""
    chances = [j for j in joins if j.seat_free]
    if not chances:
        why = "nobody arrived while others decoded and a seat was free"
        return replace(base, policy="unknown", confidence=0.0, evidence=(*base.evidence, why))
    joined = sum(j.joined for j in chances)
    if joined <= 0.2 * len(chances):
        why = f"{len(chances) - joined} of {len(chances)} newcomers waited for the whole batch to end though a seat was free"
        return replace(
            base, policy="static", confidence=_sure(len(chances) - joined, len(chances)), evidence=(*base.evidence, why)
        )
    telling = [j for j in joins if j.joined and j.pieces and j.prompt_tok >= LONG_PROMPT]
    if not telling:
        why = (
            f"{joined} of {len(chances)} newcomers joined the running batch, none with a prompt of {LONG_PROMPT} tokens"
        )
        return replace(base, policy="continuous", confidence=0.3, evidence=(*base.evidence, why))
    alone = sum(j.alone for j in telling)
    longest = max(j.prompt_tok for j in telling)
    split = [j for j in telling if j.pieces and j.pieces >= 2 and not j.alone]
    long_ones = [j for j in telling if j.prompt_tok >= longest / 2]
    if sum(j in split for j in long_ones) * 2 > len(long_ones):
        budget = _budget(split)
        why = f"prompts of newcomers were read in {_median_int([j.pieces or 0 for j in split])} steps while the others went on"
        return replace(
            base,
            policy="chunked",
            budget_tok=budget,
            confidence=_sure(sum(j in split for j in long_ones), len(long_ones)),
            evidence=(*base.evidence, why, f"prompt over steps says about {budget} tokens a step"),
        )
    if alone * 2 > len(telling):
        why = f"the others stood still while a newcomer's whole prompt was read ({alone} of {len(telling)} times)"
        return replace(base, policy="continuous", confidence=_sure(alone, len(telling)), evidence=(*base.evidence, why))
    why = f"prompts of up to {longest} tokens were read in one step together with the others' next token"
    return replace(
        base,
        policy="chunked",
        confidence=0.5 * _sure(len(telling) - alone, len(telling)),
        evidence=(*base.evidence, why, "so no piece was seen, and the budget of a step is not known"),
    )


def _budget(split: Sequence[Join]) -> int:
    """Tokens a step: the prompt over its steps, plus the decodes beside it; to the nearest of the usual round sizes."""
    longest = max(split, key=lambda j: j.prompt_tok)
    guess = longest.prompt_tok / max((longest.pieces or 1) - 0.5, 1) + longest.others
    near = [2**k for k in range(4, 15)] + [3 * 2**k for k in range(4, 13)]
    best = min(near, key=lambda size: abs(math.log(size / guess)))
    return best if abs(math.log(best / guess)) < 0.2 else round(guess)


def _sure(for_: int, of: int) -> float:
    """Confidence from `for_` of `of` agreeing observations: Laplace's rule, so one alone is never certain."""
    return round((for_ + 1) / (of + 2), 2)


def _median_int(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]


def _prefix_cache(runs: Sequence[Run]) -> tuple[bool | None, tuple[str, ...]]:
    """(whether the same prompt again was answered from a cache, in words); None where no prompt came twice."""
    cached = [row.cached_tok for run in runs for row in run.rows if row.cached_tok]
    if cached:
        return True, (f"the server counts up to {max(cached)} prompt tokens as cached",)
    for run in runs:
        if run.header.load.get("prompt_source") != "given":
            continue
        long_ones = [s for s in streams_of(run) if s.isl >= LONG_PROMPT]
        if len(long_ones) < 2:
            continue
        first, *again = long_ones
        ratio = min(s.first_s - s.sent_s for s in again) / (first.first_s - first.sent_s)
        if ratio < 0.6:
            return True, (f"the same prompt again was answered in {ratio:.0%} of the time",)
        return False, (f"the same prompt again took {ratio:.0%} of the time: no prefix cache",)
    return None, ()


def told(runs: Sequence[Run]) -> Batching | None:
    """What the server says of itself in the runs' headers; None where it says nothing."""
    for run in runs:
        engine = run.header.engine
        policy = engine.get("policy")
        if policy in ("none", "static", "dynamic", "continuous", "chunked"):
            cache = engine.get("prefix_cache")
            return Batching(
                policy=policy,
                confidence=1.0,
                seats=_whole(engine.get("seats")),
                budget_tok=_whole(engine.get("budget_tok")),
                timeout_s=_wait(engine.get("timeout_s")) if policy in ("static", "dynamic") else None,
                prefix_cache=cache if isinstance(cache, bool) else None,
                evidence=("the server says so",),
            )
        if seats := _whole(engine.get("seats")):
            return Batching(seats=seats, evidence=(f"the server says that it has {seats} seats",))
    return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _wait(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def engine_config(batching: Batching, **switches: Any) -> EngineConfig:
    """The simulator's settings for a server that batches so; `switches` (seats, policy ...) are set over them.

    Batches of a server that was seen are never padded: requests that are done leave. A static batch that waits with a
    limit is what the simulator calls dynamic.
    """
    policy = batching.policy if batching.policy != "unknown" else "continuous"
    found: dict[str, Any] = {
        "policy": policy,
        "seats": batching.seats or batching.seats_at_least or 1,
        "budget_tok": batching.budget_tok or 2048,
        "padded": False,
        "prefix_cache": bool(batching.prefix_cache),
    } | switches
    if batching.timeout_s is not None:
        found.setdefault("timeout_s", batching.timeout_s)
        if found["policy"] == "static":
            found["policy"] = "dynamic"
    if found["policy"] == "chunked" and "budget_tok" not in switches:
        found["budget_tok"] = max(found["budget_tok"], found["seats"])
    return EngineConfig(**found)


def server_config(calibration: Calibration, **switches: Any) -> EngineConfig:
    """The simulator's settings for the calibrated server as it ran: its batching, its KV cache and the size of its blocks.

    `switches` are set over them; without seats of its own it gets those that were seen.
    """
    block = calibration.block_tok or EngineConfig().block_tok
    pool = {} if calibration.kv_tok is None else {"kv_blocks": max(1, calibration.kv_tok // block)}
    return engine_config(calibration.batching, **({"block_tok": block} | pool | switches))


def settle(said: Batching | None, seen: Batching) -> Batching:
    """What the server says, with what was seen as evidence beside it; where it says nothing, what was seen."""
    if said is None:
        return seen
    if said.policy == "unknown":
        return replace(seen, seats=said.seats, seats_at_least=None, evidence=(*said.evidence, *seen.evidence))
    against = []
    if seen.policy not in ("unknown", said.policy) and seen.confidence >= 0.6:
        against.append(f"its behaviour looks {seen.policy} (confidence {seen.confidence:.2f})")
    if seen.seats and said.seats and seen.seats != said.seats:
        against.append(f"{seen.seats} ran together at most")
    words = ("but " + " and ".join(against),) if against else ()
    return replace(
        said,
        seats=said.seats or seen.seats,
        seats_at_least=None if said.seats else seen.seats_at_least,
        prefix_cache=said.prefix_cache if said.prefix_cache is not None else seen.prefix_cache,
        evidence=(*said.evidence, *words, *seen.evidence),
    )
