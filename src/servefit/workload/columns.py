"""A schedule as columns: 24 bytes a request, for the largest loads; read like the tuple that `schedule` returns."""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, overload

from servefit.workload.arrivals import check_workload, schedule, when, whole_us
from servefit.workload.lengths import draw
from servefit.workload.requests import Request, stream
from servefit.workload.traces import read_rows
from servefit.workload.workload import Lengths, Workload

if TYPE_CHECKING:
    import hashlib
    import random

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns(Sequence[Request]):
    """Requests that share no prefix, no session and no priority; `due_s` in rising order, one entry a request each."""

    due_s: "array[float]"
    isl: "array[int]"
    osl: "array[int]"

    def __len__(self) -> int:
        return len(self.due_s)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> "Columns": ...
    def __getitem__(self, index: int | slice) -> "Request | Columns":
        """One request, or the columns of several; a request's `id` is its place in these columns."""
        if isinstance(index, slice):
            return Columns(due_s=self.due_s[index], isl=self.isl[index], osl=self.osl[index])
        at = range(len(self))[index]
        return Request(id=at, due_s=self.due_s[at], isl=self.isl[at], osl=self.osl[at])

    def chosen(self, places: Sequence[int]) -> "Columns":
        """Those at these places."""
        due_s = array("d", [self.due_s[at] for at in places])
        isl, osl = (array("q", [values[at] for at in places]) for values in (self.isl, self.osl))
        return Columns(due_s=due_s, isl=isl, osl=osl)


def columns(workload: Workload) -> Sequence[Request]:
    """The requests of `schedule(workload)`, the same to the bit, as columns where they share nothing; else that tuple.

    >>> list(columns(Workload(n=3, rate_req_per_s=2.0))) == list(schedule(Workload(n=3, rate_req_per_s=2.0)))
    True
    """
    check_workload(workload)
    if not flows(workload):
        return schedule(workload)
    out = Columns(due_s=array("d"), isl=array("q"), osl=array("q"))
    for piece in pieces(workload):
        out.due_s.extend(piece.due_s)
        out.isl.extend(piece.isl)
        out.osl.extend(piece.osl)
    return out if len(out) else schedule(workload)  # which says why there is none


def pieces(workload: Workload, size: int = _PIECE) -> Iterator[Columns]:
    """The requests of an open loop, a closed one or a trace, `size` at a time: the same as all at once, in the memory of one piece.

    Raises NotInPieces at the first row of a trace that does not let it be read so.

    >>> [len(piece) for piece in pieces(Workload(n=5, rate_req_per_s=2.0), 2)]
    [2, 2, 1]
    """
    if workload.trace is not None:
        yield from _traced(Path(workload.trace), workload, size)
        return
    assert flows(workload) or serves_users(workload), "only what shares nothing is drawn in pieces"
    isl, osl = stream(workload.seed, "isl"), stream(workload.seed, "osl")
    timed = _users if serves_users(workload) else _staged if workload.stages else _steady
    for due_s in timed(workload, size):
        n = len(due_s)
        yield Columns(due_s=due_s, isl=_drawn(workload.isl, n, isl), osl=_drawn(workload.osl, n, osl))


class NotInPieces(Exception):
    """A trace that has to be read as a whole; the words say why."""


def _traced(path: Path, workload: Workload, size: int) -> Iterator[Columns]:
    """The rows of a trace that come in due order and share nothing, as `schedule` makes requests of them."""
    rows = read_rows(path, workload.n)
    start = last = -math.inf
    while some := list(islice(rows, size)):
        if start == -math.inf:
            start = some[0][0]
        due_s = array("d")
        for at_s, _, _, prefix in some:
            if prefix:
                raise NotInPieces("names the blocks that its prompts share")
            if at_s < last:
                raise NotInPieces("is not in time order")
            due_s.append(whole_us(whole_us(at_s - start) / workload.time_scale))
            last = at_s
        yield Columns(due_s=due_s, isl=array("q", (row[1] for row in some)), osl=array("q", (row[2] for row in some)))


def _users(workload: Workload, size: int) -> "Iterator[array[float]]":
    """Due times of a closed loop: each user's first, then 0, as nobody knows yet when a user will be free."""
    users = min(workload.concurrency or 1, workload.n)
    for start in range(0, workload.n, size):
        places = range(start, min(start + size, workload.n))
        yield array("d", (whole_us(workload.ramp_s * at / users) if at < users else 0.0 for at in places))


def _steady(workload: Workload, size: int) -> "Iterator[array[float]]":
    """Due times at one rate, whole microseconds."""
    rng, rate, work = stream(workload.seed, "arrivals"), workload.rate_req_per_s or 1.0, 0.0
    for start in range(0, workload.n, size):
        at = _work(workload, rng, work, range(start, min(start + size, workload.n)))
        work = at[-1]
        yield array("d", [round(w / rate * 1e6) / 1e6 for w in at])


def _staged(workload: Workload, size: int) -> "Iterator[array[float]]":
    """Due times through the stages, which say how many there are."""
    rng, work = stream(workload.seed, "arrivals"), 0.0
    for start in count(0, size):
        at = _work(workload, rng, work, range(start, start + size))
        work = at[-1]
        due = (when(w, workload.stages) for w in at)
        here = array("d", (round(at_s * 1e6) / 1e6 for at_s in due if at_s is not None))
        if here:
            yield here
        if len(here) < size:
            return


def _work(workload: Workload, rng: "random.Random", before: float, numbers: range) -> list[float]:
    """How much was expected to have arrived when each of these does; `before` when the one before them did."""
    if workload.arrivals == "constant":
        return [float(i) for i in numbers]
    return list(accumulate(_gaps(workload, rng, len(numbers)), initial=before))[1:]


def hashed(drawn: Iterable[Columns], digest: "hashlib._Hash") -> Iterator[Columns]:
    """The same pieces; afterwards `digest` is that of `requests.schedule_sha256`."""
    n = 0
    for piece in drawn:
        rows = enumerate(zip(piece.due_s, piece.isl, piece.osl, strict=True), n)
        digest.update(
            "".join([f"[{i},{round(due * 1e6)},{isl},{osl},[],null,0]" for i, (due, isl, osl) in rows]).encode()
        )
        n += len(piece)
        yield piece


def flows(workload: Workload) -> bool:
    """Whether it is an open loop, at one rate or in stages, whose requests share no prefix and no session."""
    shares = workload.turns > 1 or workload.shared_prefix_tok > 0
    timed = workload.rate_req_per_s is not None or bool(workload.stages)
    return timed and workload.arrivals != "burst" and not shares


def serves_users(workload: Workload) -> bool:
    """Whether it is a closed loop whose requests share no prefix and no session."""
    return workload.concurrency is not None and workload.turns == 1 and not workload.shared_prefix_tok


def expected(workload: Workload) -> float:
    """How many requests it has; of stages, on average.

    >>> expected(Workload(stages=((2.0, 30.0), (5.0, 10.0))))
    110.0
    """
    return sum(rate * seconds for rate, seconds in workload.stages) if workload.stages else float(workload.n)


def _gaps(workload: Workload, rng: "random.Random", n: int) -> list[float]:
    """Gaps between arrivals, in expected arrivals."""
    shape = workload.burstiness if workload.arrivals == "gamma" else 1.0
    if shape != 1.0:
        return [rng.gammavariate(shape, 1.0 / shape) for _ in range(n)]
    uniform, log = rng.random, math.log
    return [-log(1.0 - uniform()) for _ in range(n)]  # as Random.expovariate(1.0) draws


def _drawn(lengths: Lengths, n: int, rng: "random.Random") -> "array[int]":
    if lengths.kind == "fixed" or lengths.sd == 0.0:
        return array("q", [draw(lengths, rng)]) * n
    return array("q", (draw(lengths, rng) for _ in range(n)))
