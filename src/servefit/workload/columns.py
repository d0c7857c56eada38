"""A schedule as columns: 24 bytes a request, for the largest loads; read like the tuple that `schedule` returns."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, overload

from servefit.workload.arrivals import check_workload, schedule
from servefit.workload.lengths import draw
from servefit.workload.requests import Request, stream
from servefit.workload.workload import Lengths, Workload

if TYPE_CHECKING:
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


def columns(workload: Workload) -> Sequence[Request]:
    """The requests of `schedule(workload)`, the same to the bit, as columns where they share nothing; else that tuple.

    >>> list(columns(Workload(n=3, rate_req_per_s=2.0))) == list(schedule(Workload(n=3, rate_req_per_s=2.0)))
    True
    """
    check_workload(workload)
    shares = workload.turns > 1 or workload.shared_prefix_tok > 0
    if workload.rate_req_per_s is None or workload.arrivals == "burst" or shares:
        return schedule(workload)
    return Columns(
        due_s=_due(workload),
        isl=_drawn(workload.isl, workload.n, stream(workload.seed, "isl")),
        osl=_drawn(workload.osl, workload.n, stream(workload.seed, "osl")),
    )


def _due(workload: Workload) -> "array[float]":
    """Due times at one rate, whole microseconds."""
    out: array[float] = array("d")
    rng, rate, work = stream(workload.seed, "arrivals"), workload.rate_req_per_s or 1.0, 0.0
    while (n := min(_PIECE, workload.n - len(out))) > 0:
        if workload.arrivals == "constant":
            at = [float(i) for i in range(len(out), len(out) + n)]
        else:
            at = list(accumulate(_gaps(workload, rng, n), initial=work))[1:]
            work = at[-1]
        out.extend([round(w / rate * 1e6) / 1e6 for w in at])
    return out


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
