"""A schedule that comes in pieces, in the order in which its requests leave the front end."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from servefit.physics.steptime import StepTime
from servefit.workload.columns import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Requests in the order in which they are ready; every one that comes in a later piece is ready later."""

    number: Any
    """Of each request, counted as they are due."""
    due_s: Any
    isl: Any
    osl: Any
    replica: Any
    ready_s: Any
    known_s: float
    """Every request that is due before has been handed out."""
    more: bool


def as_ready(pieces: Iterable[Columns], step: StepTime, *, deal_to: int) -> Iterator[Piece]:
    """The same requests, dealt to so many front ends in turn; who may still be overtaken is held back for a later piece."""
    import numpy as np

    def plain(due: Any, isl: Any) -> Any:
        return due + step.front_end_s + step.front_end_per_tok_s * isl

    none: Any = np.zeros(0, np.int64)
    nothing: Any = np.zeros(0)
    new: tuple[Any, ...] = (none, nothing, none, none, none)  # number, due_s, isl, osl, replica (-1: not dealt yet)
    ready: tuple[Any, ...] = (*new, nothing)
    fronts = _Fronts(deal_to, step.front_serial_s)
    n = dealt = 0
    for columns, more in _with_more(pieces):
        read = (np.array(columns.due_s), np.array(columns.isl), np.array(columns.osl))
        fresh = (np.arange(n, n + len(columns)), *read, np.full(len(columns), -1))
        n += len(columns)
        new = tuple(np.concatenate(pair) for pair in zip(new, fresh, strict=True))
        _, due, isl, _, replica = new
        at = plain(due, isl)
        order = at.argsort(kind="stable")
        if more:
            order = order[at[order] < plain(due[-1], 1)]
        order = order[replica[order] < 0]
        replica[order] = (dealt + np.arange(len(order))) % deal_to
        dealt += len(order)
        open_ = replica < 0
        k = int(open_.argmax()) if open_.any() else len(due)
        through = fronts.through(replica[:k], due[:k], at[:k])
        ready = tuple(np.concatenate(pair) for pair in zip(ready, (*(c[:k] for c in new), through), strict=True))
        known_s = float(due[min(k, len(due) - 1)])
        new = tuple(column[k:] for column in new)
        out = ready[5] < (plain(known_s, 1) if more else math.inf)
        order = ready[5].argsort(kind="stable")
        order = order[out[order]]
        piece = tuple(column[order] for column in ready)
        ready = tuple(column[~out] for column in ready)
        if len(ready[1]):
            known_s = min(known_s, float(ready[1].min()))
        if len(order) or not more:
            yield Piece(
                number=piece[0], due_s=piece[1], isl=piece[2], osl=piece[3], replica=piece[4], ready_s=piece[5],
                known_s=known_s, more=more,
            )  # fmt: skip


class _Fronts:
    """Front ends that let those who are due at one moment through one by one: until when the last of each was in it."""

    def __init__(self, n: int, serial_s: float) -> None:
        self._serial_s = serial_s
        self._due_s, self._ready_s = [-1.0] * n, [-1.0] * n

    def through(self, which: Any, due_s: Any, at_s: Any) -> Any:
        """When each is ready, in the order in which they are due."""
        import numpy as np

        if self._serial_s <= 0 or not len(due_s):
            return at_s
        order = which.argsort(kind="stable")
        which, due, ready = which[order], due_s[order], at_s[order]
        first: Any = np.append(True, which[1:] != which[:-1])
        twin: Any = np.append(False, due[1:] == due[:-1])
        for i in np.nonzero(first | twin)[0].tolist():
            if not first[i]:
                ready[i] = max(ready[i], ready[i - 1] + self._serial_s)
            elif due[i] == self._due_s[which[i]]:
                ready[i] = max(ready[i], self._ready_s[which[i]] + self._serial_s)
        for i in np.nonzero(np.append(first[1:], True))[0].tolist():
            self._due_s[which[i]], self._ready_s[which[i]] = float(due[i]), float(ready[i])
        out = np.empty_like(ready)
        out[order] = ready
        return out


def _with_more(pieces: Iterable[Columns]) -> Iterator[tuple[Columns, bool]]:
    """Each piece that has requests, and whether one comes after it."""
    before: Columns | None = None
    for piece in pieces:
        if not len(piece):
            continue
        if before is not None:
            yield before, True
        before = piece
    if before is not None:
        yield before, False
