"""What the rules look at, computed once from a run's rows: who was in flight, what reading should take, every gap."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from servefit.records import RequestRecord, Run
from servefit.stats import percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What TTFT should be without waiting: `front_end_s` + `s_per_tok` x fresh prompt tokens.

    `s_per_tok` is None where the prompts are too alike in length to tell the two apart; then `front_end_s` is the whole.
    """

    front_end_s: float
    s_per_tok: float | None
    least_s_per_tok: float
    """The least that any of those took, by prompt token: no noise makes a request faster than it can be."""
    n: int
    how: str

    def expected_s(self, isl: int) -> float:
        """TTFT of a prompt of `isl` tokens that waits for nobody, in seconds."""
        return self.front_end_s + (self.s_per_tok or 0.0) * isl


def end_s(row: RequestRecord) -> float:
    """When a request left the server: its last token, else its end, else when it was due."""
    return row.chunk_s[-1] if row.chunk_s else (row.done_s or row.due_s)


def in_flight(rows: Sequence[RequestRecord]) -> tuple[int, ...]:
    """For each row, how many other requests were under way when it was due."""
    dues = sorted(r.due_s for r in rows)
    ends = sorted(end_s(r) for r in rows)
    return tuple(bisect_left(dues, r.due_s) - bisect_right(ends, r.due_s) for r in rows)


def undisturbed(rows: Sequence[RequestRecord]) -> tuple[bool, ...]:
    """For each row, whether nothing else was being written from when it was due until just after its own first token.

    Who was due first is not asked: of users who send at once a server may serve any first, and the others wait for that one.
    """
    spans = [(r.chunk_s[0] if r.chunk_s else r.due_s, end_s(r)) for r in rows]
    starts, ends = sorted(a for a, _ in spans), sorted(b for _, b in spans)
    out = []
    for row, (first, _) in zip(rows, spans, strict=True):
        # who begins a moment later was read in the same step
        until = first + 0.1 * (first - row.due_s)
        out.append(bool(row.chunk_s) and bisect_right(starts, until) - bisect_right(ends, row.due_s) <= 1)
    return tuple(out)


def _whole(row: RequestRecord) -> bool:
    return row.phase == "load" and row.ok and row.ttft_s is not None


def fit_reading(run: Run) -> Reading | None:
    """What reading takes in this run, from the requests that met an empty server, else from the quarter that took least after
    the first token before their own.

    Theil-Sen (median of pairwise slopes) over fresh prompt tokens where lengths differ by a factor of 1.5 or more; a
    constant otherwise. None where no request completed.
    """
    known = [
        (r, free) for r, free in zip(run.rows, undisturbed(run.rows), strict=True) if _whole(r) and r.isl is not None
    ]
    if not known:
        return None
    rows = [r for r, _ in known]
    alone = [r for r, free in known if free]
    how = f"from {len(alone)} requests that met an empty server"
    if len(alone) < 3 and len(alone) < len(rows):
        # the warm-up's requests met an empty server too, before the load
        alone += [r for r in run.in_phase("warmup") if r.ok and r.ttft_s is not None and r.isl is not None]
        how = f"from {len(alone)} requests that met an empty server, the warm-up's among them"
    points = [(fresh(r), r.ttft_s - max((r.sent_s or r.due_s) - r.due_s, 0.0)) for r in alone if r.ttft_s is not None]
    if len(alone) < 2 and len(alone) < len(rows):
        # everybody met others: what each took after the prompt before its own had been read
        own = [(r.ttft_s or 0.0) - w for r, w in zip(rows, prompt_turns(run.rows, rows), strict=True)]
        fastest = sorted(zip(map(fresh, rows), own, strict=True), key=lambda x: x[1] / max(x[0], 1))
        points = fastest[: max(len(rows) // 4, 1)]
        how = f"from the fastest {len(points)} of {len(rows)} requests, each from the first token before its own"
    return _line(points, how)


def fresh(row: RequestRecord) -> int:
    return (row.isl or 0) - (row.cached_tok or 0)


def _line(points: list[tuple[int, float]], how: str) -> Reading:
    tokens = [t for t, _ in points]
    middle = percentile([s for _, s in points], 50)
    assert middle is not None, "a line needs at least one point"
    least = min(s / max(t, 1) for t, s in points)
    if len(points) < 2 or max(tokens) < 1.5 * max(min(tokens), 1):
        return Reading(front_end_s=middle, s_per_tok=None, least_s_per_tok=least, n=len(points), how=how)
    some = points if len(points) <= 400 else points[:: len(points) // 400 + 1]
    slopes = [(b - a) / (n - m) for i, (m, a) in enumerate(some) for n, b in some[i + 1 :] if n != m]
    slope = max(percentile(slopes, 50) or 0.0, 0.0)
    rest = percentile([s - slope * t for t, s in points], 50) or 0.0
    return Reading(front_end_s=max(rest, 0.0), s_per_tok=slope, least_s_per_tok=least, n=len(points), how=how)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A pause between two chunks of one answer."""

    row: int
    """Index into Features.rows."""
    start_s: float
    end_s: float
    tok: int
    """Tokens that the chunk at its end carries."""

    @property
    def s(self) -> float:
        """Its length in seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """A run's completed load rows by due time, with what the rules need of each."""

    run: Run
    rows: tuple[RequestRecord, ...]
    under_way: tuple[int, ...]
    """Other requests in flight when each was due."""
    free: tuple[bool, ...]
    """Whether nobody was served before it meanwhile (`undisturbed`)."""
    reading: Reading | None
    excess_s: tuple[float, ...]
    """TTFT beyond what reading should take, each row's."""
    running_mean: float
    """Answers being written at once, averaged over the time in which any was."""
    running_max: int
    turn_s: tuple[float, ...]
    """How long each waited if `running_max` seats are all there is: from when it was due until one was given up for it."""
    prompt_turn_s: tuple[float, ...]
    """How long each waited if prompts are read in turn: from when it was due until the prompt before its own had been read."""
    gaps: tuple[Gap, ...]
    """Every pause between chunks of those rows, by end time."""


def look(run: Run) -> Features:
    """The features of a run; rows that did not complete are left out, but they count as in flight."""
    everyone = zip(run.rows, in_flight(run.rows), undisturbed(run.rows), strict=True)
    known = sorted((x for x in everyone if _whole(x[0])), key=lambda x: x[0].due_s)
    rows = tuple(x[0] for x in known)
    reading = fit_reading(run)
    excess = tuple(max((r.ttft_s or 0.0) - reading.expected_s(fresh(r)), 0.0) if reading else 0.0 for r in rows)
    mean, most = _running(run.rows)
    return Features(
        run=run, rows=rows, under_way=tuple(x[1] for x in known), free=tuple(x[2] for x in known), reading=reading, excess_s=excess,
        running_mean=mean, running_max=most, turn_s=turns(run.rows, rows, most),
        prompt_turn_s=prompt_turns(run.rows, rows), gaps=_gaps(rows),
    )  # fmt: skip


def _running(rows: Sequence[RequestRecord]) -> tuple[float, int]:
    """Mean (over busy time) and maximum of answers being written at once."""
    events = sorted(e for r in rows if len(r.chunk_s) > 1 for e in ((r.chunk_s[0], 1), (r.chunk_s[-1], -1)))
    busy = area = 0.0
    now = most = 0
    before = 0.0
    for at, change in events:
        if now:
            busy += at - before
            area += now * (at - before)
        now += change
        most = max(most, now)
        before = at
    return (area / busy if busy else 0.0), most


def turns(everyone: Sequence[RequestRecord], rows: Sequence[RequestRecord], seats: int) -> tuple[float, ...]:
    """What each of `rows` waited for a seat, were there so many, served in turn: the n-th to begin takes the seat that the
    (n - seats)-th to end gives up. It needs the order of what was seen and no estimate of reading, so no noise moves it.
    """
    if seats < 1:
        return (0.0,) * len(rows)
    starts = sorted(r.chunk_s[0] for r in everyone if r.chunk_s)
    ends = sorted(r.chunk_s[-1] for r in everyone if r.chunk_s)
    out = []
    for row in rows:
        turn = bisect_left(starts, row.chunk_s[0]) - seats
        out.append(max(min(ends[turn], row.chunk_s[0]) - row.due_s, 0.0) if turn >= 0 else 0.0)
    return tuple(out)


def prompt_turns(everyone: Sequence[RequestRecord], rows: Sequence[RequestRecord]) -> tuple[float, ...]:
    """What each of `rows` waited for the prompt before its own, were prompts read in turn: until the last first token before
    its own. Those that begin within half a usual gap were read in one step, and wait for none of each other.
    """
    starts = sorted(r.chunk_s[0] for r in everyone if r.chunk_s)
    step_s = percentile((b - a for r in rows for a, b in pairwise(r.chunk_s)), 50) or 0.0
    out = []
    for row in rows:
        before = bisect_left(starts, row.chunk_s[0] - 0.5 * step_s)
        out.append(max(starts[before - 1] - row.due_s, 0.0) if before else 0.0)
    return tuple(out)


def _gaps(rows: tuple[RequestRecord, ...]) -> tuple[Gap, ...]:
    out = []
    for index, row in enumerate(rows):
        sizes = row.chunk_tok or (1,) * len(row.chunk_s)
        pairs = zip(row.chunk_s, row.chunk_s[1:], sizes[1:], strict=False)
        out += [Gap(row=index, start_s=a, end_s=b, tok=k) for a, b, k in pairs]
    out.sort(key=attrgetter("end_s"))
    return tuple(out)


def stalls(everything: Sequence[Gap], *, times: float = 5.0, floor_s: float = 0.02) -> list[Gap]:
    """The pauses that a reader would notice: `times` the typical gap and `floor_s` more than it."""
    usual = percentile((g.s for g in everything), 50)
    if usual is None:
        return []
    return [g for g in everything if g.s >= max(times * usual, usual + floor_s)]


def spearman(xs: list[float], ys: list[float]) -> float:
    """Rank correlation of two equally long lists, -1 to 1; 0 where one of them does not vary or n < 3.

    >>> spearman([1, 2, 3, 4], [10, 20, 30, 50]), spearman([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    if len(xs) < 3:
        return 0.0
    a, b = _ranks(xs), _ranks(ys)
    middle = (len(xs) + 1) / 2
    top = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    below = (sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b)) ** 0.5
    return round(top / below, 12) if below else 0.0


def _ranks(values: list[float]) -> list[float]:
    """Ranks from 1, equal values at their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    out = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in range(start, end + 1):
            out[order[position]] = (start + end) / 2 + 1
        start = end + 1
    return out


def running_at(rows: Sequence[RequestRecord], moments: list[float]) -> list[int]:
    """How many answers were being written at each moment: first token seen, last not yet."""
    starts = sorted(r.chunk_s[0] for r in rows if r.chunk_s)
    ends = sorted(r.chunk_s[-1] for r in rows if r.chunk_s)
    return [bisect_right(starts, t) - bisect_right(ends, t) for t in moments]
