"""What the engine did, step by step, rebuilt from token arrivals at the client.

A step hands every running request its next token, so arrivals of different requests come in clusters: one cluster, one
step. Between two clusters at which no prompt is half read, everything that happened is known: how many steps, how many
requests decoded with how much context, which prompts were read. That stretch is one observation, linear in the
coefficients of `StepTime`, whatever the batching policy:

    time = sum over its steps of step_s(...)  [+ front end, when the server was idle before]

Left out: speculative decoding (several tokens of one request per step count as as many steps), and steps that hand out
nothing while several prompts are read, where the budget is not known.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from servefit.calibrate.calibration import Batching
from servefit.records import RequestRecord, Run
from servefit.stats import percentile

NOTHING_KNOWN = Batching()


class Part(NamedTuple):
    """What one step did, in the words of `physics.steptime.step_s`."""

    seqs: float = 0.0
    kv_tok: float = 0.0
    prefill_tok: float = 0.0
    prefill_pos: float = 0.0
    changed: bool = False
    prompts: float = 0.0
    """Requests that begin with the step."""

    @property
    def tokens(self) -> float:
        """Tokens in the step."""
        return self.seqs + self.prefill_tok


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One stretch of known work: its time in seconds and its steps."""

    time_s: float
    parts: tuple[Part, ...]
    front_end: int = 0
    """1 where the stretch begins with a request reaching an idle server."""
    front_end_tok: int = 0
    busy: int = 0
    """Number of the busy period: stretches of one share their moment."""

    @property
    def prefill_tok(self) -> float:
        """Prompt tokens computed in the stretch."""
        return math.fsum(p.prefill_tok for p in self.parts)

    @property
    def plain(self) -> bool:
        """A single decode step, like the one before it."""
        return (
            len(self.parts) == 1 and not self.front_end and not self.parts[0].prefill_tok and not self.parts[0].changed
        )


@dataclass(slots=True)
class Cluster:
    """Token arrivals of one step."""

    at_s: float
    firsts: list[int] = field(default_factory=list)
    """Streams that got their first token."""
    tokens: dict[int, int] = field(default_factory=dict)
    """Stream -> tokens after its first."""
    ended: int = 0
    """Streams that got their last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One request as seen by the engine: when it came, when its tokens left."""

    sent_s: float
    first_s: float
    last_s: float
    isl: int
    cached_tok: int
    row: RequestRecord


def streams_of(run: Run) -> list[Stream]:
    """Every request of the run that got at least one token, in the order of sending; warm-ups are work too."""
    found = []
    for row in run.rows:
        if row.chunk_s and row.phase != "cold":
            sent = row.sent_s if row.sent_s is not None else row.due_s
            isl = row.isl if row.isl is not None else row.isl_asked or 0
            cached = min(row.cached_tok or 0, max(isl - 1, 0))
            found.append(
                Stream(sent_s=sent, first_s=row.chunk_s[0], last_s=row.chunk_s[-1], isl=isl, cached_tok=cached, row=row)
            )
    return sorted(found, key=lambda s: s.sent_s)


def clusters_of(streams: Sequence[Stream]) -> list[Cluster]:
    """The steps that handed out tokens: arrivals nearer than a third of the usual gap, and never two of one request."""
    gaps = [gap for s in streams for gap in s.row.itl_s if gap > 0]
    near = 0.3 * (percentile(gaps, 10) or 0.0)
    events: list[tuple[float, int, int, int]] = []
    for index, s in enumerate(streams):
        sizes = s.row.chunk_tok or (1,) * len(s.row.chunk_s)
        for number, (at, k) in enumerate(zip(s.row.chunk_s, sizes, strict=True)):
            events.append((at, index, k, number))
    events.sort()
    clusters: list[Cluster] = []
    last = float("-inf")
    for at, index, k, number in events:
        here = clusters[-1] if clusters else None
        if here is None or at - last > near or index in here.tokens or index in here.firsts:
            here = Cluster(at_s=at)
            clusters.append(here)
        if number == 0:
            here.firsts.append(index)
            if k > 1:
                here.tokens[index] = k - 1
        else:
            here.tokens[index] = k
        here.ended += number == len(streams[index].row.chunk_s) - 1
        last = at
    _spread(clusters)
    return clusters


def _spread(clusters: list[Cluster]) -> None:
    """Give a chunk of several tokens back to the steps that made them: those since the stream's chunk before."""
    last: dict[int, int] = {}
    for number, cluster in enumerate(clusters):
        for i, k in list(cluster.tokens.items()):
            for earlier in range(number - 1, max(number - k, last.get(i, number)), -1):
                clusters[earlier].tokens[i] = 1
                cluster.tokens[i] -= 1
            last[i] = number
        for i in cluster.firsts:
            last[i] = number


def observe(run: Run, batching: Batching = NOTHING_KNOWN) -> list[Observation]:
    """The run's stretches of known work. Knowing the batching cuts them finer: see `_safe`."""
    streams = streams_of(run)
    if not streams:
        return []
    lost = [(r.sent_s, r.done_s or float("inf")) for r in run.rows if not r.chunk_s and r.sent_s is not None]
    found: list[Observation] = []
    for busy, members in enumerate(_busy_periods(streams)):
        start, end = members[0].sent_s, max(s.last_s for s in members)
        if any(a < end and b > start for a, b in lost):
            continue  # a request without a token was there too, and what it cost is not known
        found.extend(_stretches(members, batching, busy))
    return found


def _busy_periods(streams: Sequence[Stream]) -> list[list[Stream]]:
    """Requests grouped so that between two groups nobody was in flight."""
    groups: list[list[Stream]] = []
    end = float("-inf")
    for s in streams:
        if s.sent_s >= end:
            groups.append([])
        groups[-1].append(s)
        end = max(end, s.last_s)
    return groups


def _stretches(streams: list[Stream], batching: Batching, busy: int) -> list[Observation]:
    """One busy period, cut at every cluster where no prompt can be half read."""
    clusters = clusters_of(streams)
    sent = sorted(s.sent_s for s in streams)
    got = [0] * len(streams)
    first_done = last_done = 0
    found: list[Observation] = []
    begin, opened, last_tok = streams[0].sent_s, True, -1.0
    part: list[Cluster] = []
    before = [0] * len(streams)
    for cluster in clusters:
        part.append(cluster)
        for i in cluster.firsts:
            got[i] += 1
            first_done += 1
        for i, k in cluster.tokens.items():
            got[i] += k
        last_done += cluster.ended
        waiting = bisect_right(sent, cluster.at_s) - first_done
        if not _safe(batching, waiting=waiting, active=first_done - last_done):
            continue
        parts = _parts(part, streams, before=before, batching=batching, last_tok=last_tok)
        if parts and cluster.at_s > begin:
            last_tok = parts[-1].tokens
            found.append(
                Observation(
                    time_s=cluster.at_s - begin,
                    parts=parts,
                    front_end=int(opened),
                    front_end_tok=streams[0].isl if opened else 0,
                    busy=busy,
                )
            )
        begin, opened, part, before = cluster.at_s, False, [], list(got)
    return found


def _safe(batching: Batching, *, waiting: int, active: int) -> bool:
    """Whether no prompt can be half read right after this step.

    Nobody waits; or whole prompts are read in one step; or all seats are taken; or a batch runs that nobody may join.
    """
    if waiting <= 0 or batching.policy == "continuous":
        return True
    if batching.policy in ("static", "dynamic", "none") and active > 0:
        return True
    return batching.seats is not None and active >= batching.seats


def _parts(
    clusters: list[Cluster], streams: list[Stream], *, before: list[int], batching: Batching, last_tok: float
) -> tuple[Part, ...]:
    """The steps of the clusters, each stream having had `before` tokens, and the step before them `last_tok`."""
    out: dict[int, int] = {}
    seqs, kv = [0.0] * len(clusters), [0.0] * len(clusters)
    for number, cluster in enumerate(clusters):
        for i in cluster.firsts:
            out[i] = 1
        for i, k in cluster.tokens.items():
            had = out.get(i, before[i])
            seqs[number] += k
            kv[number] += k * (streams[i].isl + had) + k * (k - 1) // 2
            out[i] = had + k
    hidden, tok, pos, new = _prompts(clusters, streams, seqs, batching)
    parts = [Part(prefill_tok=t, prefill_pos=x, prompts=n) for t, x, n in hidden]
    parts += [Part(s, k, t, x, False, n) for s, k, t, x, n in zip(seqs, kv, tok, pos, new, strict=True)]
    end = clusters[-1].at_s
    through = [out[i] - b for i, b in enumerate(before) if b > 0 and streams[i].last_s >= end and i in out]
    steps = max(through, default=0) + sum(1 for c in clusters if c.firsts and not c.tokens)
    if steps > len(clusters) and not hidden:  # several tokens in one chunk: so many steps, alike
        sums = (math.fsum(column) / steps for column in (seqs, kv, tok, pos, new))
        mean_seqs, mean_kv, mean_tok, mean_pos, mean_new = sums
        parts = [Part(mean_seqs, mean_kv, mean_tok, mean_pos, False, mean_new)] * steps
    told = []
    for p in parts:
        told.append(p._replace(changed=p.tokens != last_tok))
        last_tok = p.tokens
    return tuple(told)


def _prompts(
    clusters: list[Cluster], streams: list[Stream], seqs: list[float], batching: Batching
) -> tuple[list[tuple[float, float, float]], list[float], list[float], list[float]]:
    """Which step read how much of which prompt: (steps before the first cluster that handed out nothing; tokens and

    positions read, and requests begun, in each cluster). Whole prompts are read in the step that hands out their first token; with a known
    budget they end there, and fill what the decodes left of the steps before.
    """
    tok, pos = [0.0] * len(clusters), [0.0] * len(clusters)
    new = [0.0] * len(clusters)
    hidden: list[tuple[float, float, float]] = []
    for j, cluster in enumerate(clusters):
        for i in cluster.firsts:
            at, isl = streams[i].cached_tok, streams[i].isl
            if batching.policy != "chunked" or not batching.budget_tok:
                tok[j] += isl - at
                pos[j] += positions(at, isl)
                new[j] += 1
                continue
            room = [max(batching.budget_tok - seqs[c] - tok[c], 0.0) for c in range(j + 1)]
            first, begun = j, 0
            while first > 0 and sum(room[first:]) < isl - at:
                first -= 1
            while sum(room[first:]) < isl - at:
                k = min(float(batching.budget_tok), isl - at - sum(room[first:]))
                hidden.append((k, positions(at, at + k), float(begun == 0)))
                begun = 1
                at += k  # type: ignore[assignment]
            new[first] += begun == 0
            for c in range(first, j + 1):
                k = min(room[c], isl - at)
                tok[c] += k
                pos[c] += positions(at, at + k)
                at += k  # type: ignore[assignment]
    return hidden, tok, pos, new


def positions(start: float, end: float) -> float:
    """Sum of the positions, counted from 1, of the prompt tokens after `start` up to `end`.

    >>> positions(0, 3), positions(10, 12)
    (6.0, 23.0)
    """
    return (end * (end + 1) - start * (start + 1)) / 2


def told_by_server(run: Run, batching: Batching = NOTHING_KNOWN) -> list[Observation]:
    """Prefills of lone requests as the server timed them itself (`server["prefill_s"]`): no front end in them."""
    found = []
    streams = streams_of(run)
    for number, members in enumerate(_busy_periods(streams)):
        s = members[0]
        seconds = (s.row.server or {}).get("prefill_s")
        if len(members) > 1 or not seconds or seconds <= 0:
            continue
        whole = replace(batching, seats=None)
        lone = Cluster(at_s=s.first_s, firsts=[0])
        parts = _parts([lone], [s], before=[0], batching=whole, last_tok=-1.0)
        found.append(Observation(time_s=seconds, parts=parts, busy=-1 - number))
    return found
