"""The schedule of a long load: drawn anew whenever it is read, a piece at a time, so that its length takes no memory."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import add
from pathlib import Path
from typing import overload

from servefit.workload.arrivals import check_workload, schedule
from servefit.workload.columns import Columns, NotInPieces, expected, flows, hashed, pieces, serves_users
from servefit.workload.requests import Request, schedule_sha256
from servefit.workload.traces import has_more_lines
from servefit.workload.workload import Workload

WHOLE = 20_000
"""Requests that are held as they are."""
_PIECE = 512
_NEAR = 4
"""Pieces that are held: as far back as one may look at no cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What has to be known of a schedule before its first request is sent."""

    n: int
    last_due_s: float
    isl: int
    """The longest prompt, in tokens."""
    context_tok: int
    """The most that prompt and answer take together."""
    isl_mean: int
    osl_mean: int
    sha256: str


def extent_of(requests: "Sequence[Request]") -> Extent:
    """The extent of a schedule; of one that is drawn it is known."""
    if isinstance(requests, Drawn):
        return requests.extent
    return Extent(
        n=len(requests),
        last_due_s=max(r.due_s for r in requests),
        isl=max(r.isl for r in requests),
        context_tok=max(r.isl + r.osl for r in requests),
        isl_mean=round(sum(r.isl for r in requests) / len(requests)),
        osl_mean=round(sum(r.osl for r in requests) / len(requests)),
        sha256=schedule_sha256(requests),
    )


class Drawn(Sequence[Request]):
    """The requests of a workload that share nothing, in due order, equal to those of `schedule`; fast to read forward.

    `done` says of an id that its request is left out. Raises NotInPieces for a trace that has to be read as a whole.
    """

    def __init__(self, workload: Workload, done: Callable[[int], bool] | None = None) -> None:
        self.workload = workload
        self._done = done
        digest = hashlib.sha256()
        n = longest = total = isl_sum = osl_sum = 0
        last_due_s = 0.0
        for piece in hashed(pieces(workload), digest):
            n += len(piece)
            last_due_s = max(last_due_s, *piece.due_s)
            longest = max(longest, *piece.isl)
            total = max(total, *map(add, piece.isl, piece.osl))
            isl_sum, osl_sum = isl_sum + sum(piece.isl), osl_sum + sum(piece.osl)
        self.extent = Extent(
            n=n, last_due_s=last_due_s, isl=longest, context_tok=total, isl_mean=round(isl_sum / n) if n else 0,
            osl_mean=round(osl_sum / n) if n else 0, sha256=digest.hexdigest(),
        )  # fmt: skip
        self._ends: tuple[Request, ...] = ()
        """The first and the last."""
        self._n = n if done is None else sum(not done(number) for number in range(n))
        self._near: deque[tuple[int, Sequence[int], Columns]] = deque(maxlen=_NEAR)
        self._more: Iterator[tuple[int, Sequence[int], Columns]] = iter(())

    def without(self, done: Callable[[int], bool]) -> "Drawn":
        """Those whose id is not `done`."""
        return Drawn(self.workload, done)

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Request, ...]: ...
    def __getitem__(self, index: int | slice) -> "Request | tuple[Request, ...]":
        """One request; those before the last two thousand that were looked at are drawn from the start again."""
        if isinstance(index, slice):
            return tuple(self[place] for place in range(self._n)[index])
        place = range(self._n)[index]
        if place in {0, self._n - 1} and not self._ends:
            first = last = next(iter(self))
            for _, ids, piece in self._pieces():
                last = _request(ids, piece, len(piece) - 1)
            self._ends = first, last
        if place in {0, self._n - 1}:
            return self._ends[place > 0]
        near = self._near
        if not near or place < near[0][0]:
            near.clear()
            self._more = self._pieces()
        while not near or place >= near[-1][0] + len(near[-1][2]):
            near.append(next(self._more))
        for start, ids, piece in reversed(near):
            if place >= start:
                return _request(ids, piece, place - start)
        raise AssertionError("a piece begins at or before each place")

    def __iter__(self) -> Iterator[Request]:
        for _, ids, piece in self._pieces():
            for at in range(len(piece)):
                yield _request(ids, piece, at)

    def _pieces(self) -> Iterator[tuple[int, Sequence[int], Columns]]:
        """What is left, a piece at a time: the place of its first, the ids, the rest."""
        number = place = 0
        for drawn in pieces(self.workload, _PIECE):
            ids: Sequence[int] = range(number, number + len(drawn))
            number += len(drawn)
            piece = drawn
            if self._done is not None:
                keep = [at for at, one in enumerate(ids) if not self._done(one)]
                ids, piece = [ids[at] for at in keep], drawn.chosen(keep)
            if len(piece):
                yield place, ids, piece
                place += len(piece)


def _request(ids: Sequence[int], piece: Columns, at: int) -> Request:
    found = piece[at]
    return found if found.id == ids[at] else replace(found, id=ids[at])


def requests_of(workload: Workload) -> Sequence[Request]:
    """The requests of `schedule(workload)`, drawn where they are many and share nothing; else that tuple. Raises ServefitError."""
    check_workload(workload)
    if workload.trace is not None:
        long = workload.n > WHOLE and has_more_lines(Path(workload.trace), WHOLE)
    else:
        long = expected(workload) > WHOLE and (flows(workload) or serves_users(workload))
    if long:
        try:
            return Drawn(workload)
        except NotInPieces:
            pass
    return schedule(workload)


def left_of(requests: Sequence[Request], done: Callable[[int], bool] | None) -> Sequence[Request]:
    """Those whose id is not `done`."""
    if done is None:
        return requests
    if isinstance(requests, Drawn):
        return requests.without(done)
    return [r for r in requests if not done(r.id)]


class Ids:
    """The ids of requests, which are their places in a schedule: a bit each.

    >>> ids = Ids(["3", "70", "cold"]); len(ids), "70" in ids, "7" in ids, ids.has(3)
    (2, True, False, True)
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._bits = bytearray()
        self._n = 0
        for one in ids:
            self.add(one)

    def add(self, text: str) -> None:
        """Note one; what is no id of a schedule is passed over."""
        if not (text.isdecimal() and len(text) < _DIGITS) or self.has(number := int(text)):
            return
        self._bits.extend(bytes(max(0, number // 8 + 1 - len(self._bits))))
        self._bits[number // 8] |= 1 << number % 8
        self._n += 1

    def has(self, number: int) -> bool:
        """Whether it is among them."""
        return 0 <= number < 8 * len(self._bits) and bool(self._bits[number // 8] >> number % 8 & 1)

    def __contains__(self, text: str) -> bool:
        return text.isdecimal() and len(text) < _DIGITS and self.has(int(text))

    def __len__(self) -> int:
        return self._n


_DIGITS = 10
"""No schedule has so many requests that an id takes as many; a damaged log may."""
