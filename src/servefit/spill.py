"""Very many numbers in bounded memory: beyond a few pages they lie in a temporary file, which no crash leaves behind."""

import math
import os
import struct
import threading
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from servefit.errors import ServefitError

N = TypeVar("N", int, float)

_PAGE_BYTES = 1 << 16
"""What is written and read of a file at once."""
_IN_MEMORY_BYTES = 1 << 18
"""What is held in memory before there is a file at all."""


class _File:
    """A file without a name, gone when nobody holds it or its process dies."""

    def __init__(self, folder: Path | None) -> None:
        import tempfile  # only the longest loads come here

        self._file = tempfile.TemporaryFile(dir=folder or _roomy(), buffering=0)  # noqa: SIM115 - closed with its owner
        self._lock = threading.Lock()
        weakref.finalize(self, self._file.close)

    def write(self, at: int, data: memoryview) -> None:
        """Put all of the data at a place."""
        with self._lock:
            while data:
                self._file.seek(at)
                done = self._file.write(data)
                at, data = at + done, data[done:]

    def read(self, at: int, size: int) -> bytes:
        """So many bytes from a place on; fewer where the file ends. Other threads may read too."""
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), size, at)
        with self._lock:
            self._file.seek(at)
            return self._file.read(size)


def _roomy() -> str | None:
    """A folder for large temporary files: as the user says, else one that is not the memory itself; None: Python's own choice."""
    told = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return None if told or not os.access("/var/tmp", os.W_OK) else "/var/tmp"  # noqa: S108 - a file without a name


class Column(Generic[N]):
    """Numbers of one `array` type in the order in which they came; `folder` is where its file would lie.

    Whatever cuts an addition off (Ctrl-C) leaves the numbers before it whole. Raises ServefitError where the disk is full.

    >>> column = Column("d"); column.extend([1.0, 2.0, 3.0]); column[1], len(column), list(column[1:])
    (2.0, 3, [2.0, 3.0])
    """

    def __init__(self, typecode: str, folder: Path | None = None, *, in_memory_bytes: int | None = None) -> None:
        self.folder = folder
        self._type = typecode
        self._size = array(typecode).itemsize
        self._page = _PAGE_BYTES // self._size
        self._most = max(1, (_IN_MEMORY_BYTES if in_memory_bytes is None else in_memory_bytes) // self._size)
        self._file: _File | None = None
        self._held: tuple[int, array[Any]] = (0, array(typecode))
        """How many numbers lie in the file, and those after them: one object, so that both change at one moment."""
        self._seen: tuple[int, array[Any]] = (0, array(typecode))
        """What was last read of the file, and from where."""

    @property
    def on_disk(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def __len__(self) -> int:
        before, tail = self._held
        return before + len(tail)

    def append(self, value: N) -> None:
        """Hold one more."""
        tail = self._held[1]
        tail.append(value)
        if len(tail) > self._most:
            self._write()

    def extend(self, values: Iterable[N]) -> None:
        """Hold more."""
        tail = self._held[1]
        tail.extend(values)
        if len(tail) > self._most:
            self._write()

    def add_bytes(self, data: bytes) -> None:
        """Hold more, as their bytes."""
        tail = self._held[1]
        tail.frombytes(data)
        if len(tail) > self._most:
            self._write()

    def cut(self, length: int) -> None:
        """Let go of all after the first `length`."""
        before, tail = self._held
        if length >= before:
            del tail[length - before :]
        else:
            self._held = (length, array(self._type))
            self._seen = (0, array(self._type))

    def _write(self) -> None:
        before, tail = self._held
        try:
            if self._file is None:
                self._file = _File(self.folder)
            self._file.write(before * self._size, memoryview(tail).cast("B"))
        except FileNotFoundError:  # nowhere to put a file: the memory has to do
            self._most *= 2
            return
        except OSError as error:
            raise ServefitError(
                f"A temporary file cannot be written: {error.strerror}.", hint="What was measured before is kept."
            ) from None
        self._most = min(self._most, self._page)
        self._held = (before + len(tail), array(self._type))

    @overload
    def __getitem__(self, index: int) -> N: ...
    @overload
    def __getitem__(self, index: slice) -> "array[Any]": ...
    def __getitem__(self, index: int | slice) -> "N | array[Any]":
        """One number, or an array of some of them."""
        if isinstance(index, slice):
            places = range(len(self))[index]
            if places.step == 1:
                return self._some(places.start, max(places.start, places.stop))
            return array(self._type, (self[place] for place in places))
        at = range(len(self))[index] if index < 0 else index
        before, tail = self._held
        if at >= before:
            return tail[at - before]  # type: ignore[no-any-return]
        start, seen = self._seen
        if not 0 <= at - start < len(seen):
            start = at - at % self._page
            seen = self._look(start, min(start + self._page, before))
        return seen[at - start]  # type: ignore[no-any-return]

    def _some(self, start: int, stop: int) -> "array[Any]":
        before, tail = self._held
        if start >= before:
            return tail[start - before : stop - before]
        seen_at, seen = self._seen
        if not seen_at <= start <= stop <= seen_at + len(seen):
            if stop - start > self._page or stop > before:
                return self.read(start, stop)
            seen_at, seen = start, self._look(start, min(start + self._page, before))
        return seen[start - seen_at : stop - seen_at]

    def read(self, start: int, stop: int) -> "array[Any]":
        """Those from `start` to before `stop`; nothing is remembered for the next look."""
        before, tail = self._held
        out = self._read(start, min(stop, before)) if start < before else array(self._type)
        out.extend(tail[max(0, start - before) : max(0, stop - before)])
        return out

    def _look(self, start: int, stop: int) -> "array[Any]":
        seen = self._read(start, stop)
        self._seen = (start, seen)
        return seen

    def _read(self, start: int, stop: int) -> "array[Any]":
        out = array(self._type)
        assert self._file is not None, "only what was written is read"
        while len(out) < stop - start:
            at = start + len(out)
            out.frombytes(self._file.read(at * self._size, (stop - at) * self._size))
        return out

    def __iter__(self) -> Iterator[N]:
        for piece in self.pieces():
            yield from piece

    def pieces(self) -> "Iterator[array[Any]]":
        """All of them, some at a time."""
        at = 0
        while at < len(self):
            before, tail = self._held
            piece = self._read(at, min(at + self._page, before)) if at < before else tail[at - before :]
            yield piece
            at += len(piece)

    def sort_pieces(self, length: int) -> int:
        """Put the numbers of each piece of so many in order, where they lie, and those in memory; how many are in the file."""
        before, tail = self._held
        for start in range(0, before, length):
            piece = array(self._type, sorted(self._read(start, min(start + length, before))))
            assert self._file is not None, "only what was written is read"
            self._file.write(start * self._size, memoryview(piece).cast("B"))
        self._held = (before, array(self._type, sorted(tail)))
        self._seen = (0, array(self._type))
        return before

    def __getstate__(self) -> tuple[str, bytes]:
        return self._type, self.read(0, len(self)).tobytes()

    def __setstate__(self, state: tuple[str, bytes]) -> None:
        self.__init__(state[0])  # type: ignore[misc]
        self._held[1].frombytes(state[1])
        if len(self) > self._most:
            self._write()


_SORTED_AT_ONCE = 1 << 14
_IN_MERGE = 512
_BITS = 1 << 63


class Ranked:
    """Numbers that are asked for by rank: a sorted sequence in bounded memory, each of them exact to the bit.

    >>> ranked = Ranked(); ranked.extend([3.0, 1.0, 2.0]); ranked[0], ranked[-1], len(ranked)
    (1.0, 3.0, 3)
    """

    def __init__(self, folder: Path | None = None, *, in_memory_bytes: int | None = None) -> None:
        self._values: Column[float] = Column("d", folder, in_memory_bytes=in_memory_bytes)
        self._runs: list[tuple[int, int]] = []
        """From where to where the values are sorted: pieces in the file, and those in memory."""
        self._settled = -1
        self.append = self._values.append
        self.extend = self._values.extend

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> float:
        """The value at this place of the sorted order, from 0; raises IndexError."""
        k = range(len(self))[index]
        runs = self._sorted_runs()
        if len(runs) == 1:
            return self._values[runs[0][0] + k]
        lows, highs = [start for start, _ in runs], [stop for _, stop in runs]
        low, high = (
            _key_of(min(self._values[s] for s in lows)),
            _key_of(max(self._values[stop - 1] for stop in highs)),
        )
        while low < high:  # the least value that k + 1 values do not exceed
            middle = (low + high) // 2
            value = _value_of(middle)
            cuts = [bisect_right(self._values, value, a, b) for a, b in zip(lows, highs, strict=True)]
            if sum(cut - start for cut, (start, _) in zip(cuts, runs, strict=True)) > k:
                high, highs = middle, cuts
            else:
                low, lows = middle + 1, cuts
        return _value_of(low) + 0.0  # 0.0 where it is -0.0

    def __iter__(self) -> Iterator[float]:
        return merge(*(self._run(start, stop) for start, stop in self._sorted_runs()))

    def _run(self, start: int, stop: int) -> Iterator[float]:
        for at in range(start, stop, _IN_MERGE):
            yield from self._values.read(at, min(at + _IN_MERGE, stop))

    def below(self, value: float) -> int:
        """How many are less than `value`."""
        return sum(bisect_left(self._values, value, start, stop) - start for start, stop in self._sorted_runs())

    def mean(self) -> float:
        """The arithmetic mean, rounded once; only where there are values."""
        return math.fsum(self._values) / len(self)

    def middle(self) -> float:
        """The median: of an even number of values the mean of the two in the middle."""
        half = len(self) // 2
        return self[half] if len(self) % 2 else (self[half - 1] + self[half]) / 2

    def _sorted_runs(self) -> list[tuple[int, int]]:
        if self._settled != len(self):
            before = self._values.sort_pieces(_SORTED_AT_ONCE)
            ends = [*range(0, before, _SORTED_AT_ONCE), before, len(self)]
            self._runs = [(start, stop) for start, stop in pairwise(ends) if start < stop]
            self._settled = len(self)
        return self._runs


def _key_of(value: float) -> int:
    """A whole number in the order of the values."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits if bits >= 0 else -_BITS - bits - 1


def _value_of(key: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", key if key >= 0 else -_BITS - key - 1))[0]
    return value
