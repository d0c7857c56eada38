"""The probes: what a server is asked so that its answers teach the step time and show how it batches.

    lone    one request at a time, short to long prompts          front end, prefill, context of one request
    tiles   the same with lengths that fill the kernels' tiles       what a step off them costs more
    stairs  many at once, each with a longer answer than the last every batch size from all of them down to one
    deep    a few at once with long prompts                       context read by a batch
    join    prompts that arrive while others decode               prefill apart from the front end; who waits for whom
    again   the same prompt three times                           prefix cache

Later probes are sized by what earlier ones showed, so that a fast server is asked more and a slow one is not asked for hours.

No two prompts have the same length and hardly one a round one, as in real traffic: matrix kernels read a multiple of 128 tokens up
to a third faster than its neighbours, and some engines prepare anew for every length that they have not seen. What round
ones gain is seen on a few of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from servefit.errors import CannotMeasure
from servefit.measure.probe import Endpoint
from servefit.measure.prompts import WORDS
from servefit.measure.run import Options, Prepared, Progress, measure, prepare
from servefit.objectives import summarize
from servefit.records import Run
from servefit.workload.requests import Request
from servefit.workload.workload import Lengths, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One run to make: its requests, and how many users send them (None: at their due times)."""

    name: str
    requests: tuple[Request, ...]
    users: int | None = None
    prompt: str | None = None
    """The same text for every request, where caching is the subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much to ask."""

    lone_tok: tuple[int, ...]
    lone_repeats: int
    lone_osl: int
    round_tok: tuple[int, ...]
    """Lone prompts that fill the tiles of matrix kernels, each asked twice."""
    stairs: tuple[int, ...]
    """Requests at once."""
    stair_tok: int
    """Longer answer of each next one."""
    deep: tuple[tuple[int, int], ...]
    """(requests, prompt tokens)."""
    join_tok: tuple[int, ...]
    join_base: tuple[int, ...]
    """How many decode while others join."""


FULL = Size(
    lone_tok=(17, 33, 67, 139, 279, 531, 997, 1795), lone_repeats=3, lone_osl=24, round_tok=(128, 256, 512, 1024), stairs=(16, 8), stair_tok=6,
    deep=((8, 499), (3, 983)), join_tok=(71, 143, 263, 523, 1003, 1493), join_base=(1, 4),
)  # fmt: skip
QUICK = Size(
    lone_tok=(33, 139, 391, 997), lone_repeats=2, lone_osl=12, round_tok=(128, 512), stairs=(16,), stair_tok=3, deep=((4, 403),),
    join_tok=(143, 263, 523, 809), join_base=(1,),
)  # fmt: skip
ASIDE_TOK = 3
"""The next prompt of about the same length is so much longer: another one to the kernels, the same to the fit."""
SMALL_PIECE_TOK = 32
"""Prompts are hardly read in smaller pieces than this: a step for each would cost more than the reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the lone requests showed, in seconds: enough to time the other probes."""

    itl_s: float
    ttft_s: dict[int, float]

    def ttft(self, isl: int) -> float:
        """Seconds to the first token of a lone prompt, straight between the measured lengths."""
        points = sorted(self.ttft_s.items())
        low = high = points[0]
        for point in points:
            if point[0] <= isl:
                low = point
            high = point
            if point[0] >= isl:
                break
        if high[0] == low[0]:
            return low[1] * max(1.0, isl / low[0])
        return low[1] + (high[1] - low[1]) * (isl - low[0]) / (high[0] - low[0])


def probe_server(
    endpoint: Endpoint,
    folder: Path,
    *,
    size: Size = FULL,
    progress: Callable[[Progress], None] | None = None,
    budget_s: float = 280.0,
    rounds: int = 1,
    clock: Callable[[], float],
) -> Iterator[tuple[str, Run]]:
    """Each probe's name and run, as they are made, below `folder`; ends early when `budget_s` seconds are used up.

    With `rounds` above 1 all is asked so often, each prompt a token longer than in the round before: on a machine whose
    pace wanders within minutes, the fit is then of the pace on average, not of one moment's.

    Raises CannotMeasure where the server fails the lone requests: a step time cannot be learned from failures.
    """
    begun = clock()
    first = Request(id=0, due_s=0.0, isl=32, osl=4)
    known: Prepared | None = None
    pace: Pace | None = None
    context = 0
    for number, (round_, make) in enumerate(product(range(rounds), _MAKERS)):
        for probe in _of_round(round_, make(size, pace, (context or 2048) - round_)):
            spent = clock() - begun
            if pace is not None and spent + expected_s(probe, pace) > budget_s:
                continue
            options = Options(out=folder / probe.name, progress=progress)
            if known is None:
                workload = Workload(name="calibrate", n=1, isl=Lengths(mean=32), osl=Lengths(mean=4), concurrency=1)
                known = prepare(endpoint, workload, [first], options, 0)
                context = known.endpoint.context_tok or 0
                probe = next(iter(make(size, pace, context or 2048)))  # noqa: PLW2901 - now that the context is known
            run = _run(known, probe, options, seed=number * 100 + len(probe.requests))
            if pace is None:
                pace = _pace_of(run)
            yield probe.name, run


def _of_round(round_: int, probes: Iterator[Probe]) -> Iterator[Probe]:
    """The probes as they are asked in this round, counted from 0. Once is enough to see a prefix cache; tiles keep their lengths."""
    for probe in probes:
        if not round_:
            yield probe
        elif probe.prompt is None:
            longer = 0 if probe.name == "tiles" else round_
            requests = tuple(replace(r, isl=r.isl + longer) for r in probe.requests)
            yield replace(probe, name=f"{probe.name}-round-{round_ + 1}", requests=requests)


def _run(known: Prepared, probe: Probe, options: Options, *, seed: int) -> Run:
    workload = Workload(
        name=f"calibrate {probe.name}", n=len(probe.requests), isl=Lengths(mean=probe.requests[0].isl),
        osl=Lengths(mean=probe.requests[0].osl), concurrency=probe.users, seed=seed,
        rate_req_per_s=None if probe.users else 1.0,
    )  # fmt: skip
    if probe.prompt is not None:
        known = replace(known, maker=replace(known.maker, source="given", fixed=probe.prompt))
    return measure(known.endpoint, workload, options, requests=probe.requests, known=known)


def _pace_of(run: Run) -> Pace:
    """The pace of the lone requests. Raises CannotMeasure where too few were answered."""
    good = [row for row in run.load_rows if row.ok and row.ttft_s is not None and row.isl]
    summary = summarize(run)
    statuses = ", ".join(f"{n} {status}" for status, n in summary.by_status.items())
    if len(good) < 4:
        raise CannotMeasure(
            f"Of {summary.n} lone requests {len(good)} can be used ({statuses}), which is too few to learn from.",
            hint="Make one request work first: servefit measure TARGET -n 3.",
        )
    if summary.itl_s.p50 is None:
        raise CannotMeasure(
            f"{len(good)} of {summary.n} lone requests were answered, but each answer came in one piece: no step can be seen.",
            hint="Does the server stream, or does something on the way hold its answers back?",
        )
    lengths: dict[int, float] = {}
    for row in good:
        key, took = row.isl_asked or row.isl or 0, row.ttft_s or 0.0
        lengths[key] = min(lengths.get(key, took), took)
    return Pace(itl_s=summary.itl_s.p50, ttft_s=lengths)


def expected_s(probe: Probe, pace: Pace) -> float:
    """About how long the probe will take, in seconds: prompts one after the other, decodes together at twice the gap."""
    prefill = sum(pace.ttft(r.isl) for r in probe.requests)
    longest = max(r.osl for r in probe.requests)
    if probe.users == 1:
        return prefill + sum(r.osl for r in probe.requests) * pace.itl_s
    return max(prefill, probe.requests[-1].due_s) + 2 * longest * pace.itl_s


# --- the probes ----------------------------------------------------------------------------------------------------------


def lone(size: Size, _pace: Pace | None, context_tok: int) -> Iterator[Probe]:
    """One at a time, lengths interleaved, so that a drift of the machine does not look like a length."""
    most = ASIDE_TOK * (size.lone_repeats - 1)
    lengths = [n for n in size.lone_tok if n + most + size.lone_osl <= context_tok]
    order = [
        n + ASIDE_TOK * repeat
        for repeat in range(size.lone_repeats)
        for n in (lengths if repeat % 2 == 0 else lengths[::-1])
    ]
    yield Probe(name="lone", users=1, requests=_requests((0.0, n, size.lone_osl) for n in order))


def tiles(size: Size, _pace: Pace | None, context_tok: int) -> Iterator[Probe]:
    """Lone prompts of round lengths, up and down again."""
    lengths = [n for n in size.round_tok if n + 4 <= context_tok]
    if lengths:
        yield Probe(name="tiles", users=1, requests=_requests((0.0, n, 4) for n in (*lengths, *lengths[::-1])))


def stairs(size: Size, _pace: Pace | None, _context_tok: int) -> Iterator[Probe]:
    """All at once, the answers ending one after the other: the batch steps down from all to one."""
    for n in size.stairs:
        yield Probe(
            name=f"stairs-{n}", users=n, requests=_requests((0.0, 48, size.stair_tok * (i + 2)) for i in range(n))
        )


def deep(size: Size, _pace: Pace | None, context_tok: int) -> Iterator[Probe]:
    """A few at once with long prompts, answers ending one after the other."""
    for n, isl in size.deep:
        isl = min(isl, context_tok - (8 + ASIDE_TOK) * n - 8)  # noqa: PLW2901
        if isl > 0:
            asked = ((0.0, isl + ASIDE_TOK * i, 6 * (i + 2)) for i in range(n))
            yield Probe(name=f"deep-{n}x{isl}", users=n, requests=_requests(asked))


def join(size: Size, pace: Pace | None, context_tok: int) -> Iterator[Probe]:
    """Prompts of rising length arrive one by one while `base` requests decode."""
    assert pace is not None, "the lone requests come first"
    for base in size.join_base:
        slow = 1 + 0.25 * (base - 1)
        at = sum(pace.ttft(48) for _ in range(base)) + 12 * pace.itl_s * slow
        comers: list[tuple[float, int, int]] = []
        for isl in (n + ASIDE_TOK * base for n in size.join_tok if n + ASIDE_TOK * base + 8 <= context_tok):
            comers.append((at, isl, 4))
            at += 1.4 * pace.ttft(isl) + 14 * pace.itl_s * slow
        # the base decodes between the prompts, and beside each of their pieces where they are read in pieces; no longer: on
        # llama.cpp answers that four write side by side for minutes cost twice as much a token as prompts of that length
        stalls = sum(pace.ttft(isl) for _, isl, _ in comers)
        pieces = sum(isl for _, isl, _ in comers) // SMALL_PIECE_TOK
        osl = min(int((at - stalls) / (pace.itl_s * slow)) + pieces + 20, context_tok - 64)
        yield Probe(name=f"join-{base}", requests=_requests([*((0.0, 48, osl) for _ in range(base)), *comers]))


def again(_size: Size, _pace: Pace | None, context_tok: int) -> Iterator[Probe]:
    """The same prompt three times."""
    words = " ".join(WORDS[i % len(WORDS)] for i in range(min(300, context_tok - 64)))
    yield Probe(name="again", users=1, prompt=words, requests=_requests((0.0, 300, 4) for _ in range(3)))


_MAKERS: tuple[Callable[[Size, Pace | None, int], Iterator[Probe]], ...] = (lone, tiles, stairs, deep, join, again)


def _requests(asked: object) -> tuple[Request, ...]:
    return tuple(Request(id=i, due_s=d, isl=isl, osl=osl) for i, (d, isl, osl) in enumerate(asked))  # type: ignore[arg-type,var-annotated]
