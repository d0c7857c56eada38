"""How fast memory can be read here: a sweep of buffer sizes past the last cache level, all allowed cores, nothing compiled.

The kernel is the C library's `strnlen` over bytes that are not zero: it has to look at every byte, in order, with the widest
loads it knows, and ctypes lets go of the interpreter's lock while it does, so threads add up. On a 2-core Xeon virtual
machine with glibc 2.36 (2026-11-30) two threads read 27.2, 25.2 and, disturbed, 16.8 GB/s from 256 MiB, 1 and 2 GiB, where
an AVX-512 read loop in C read 25.4, 25.6 and 25.9; `memcmp`, with two streams a thread, read 28 to 29, `memchr` 22, and
`zlib.adler32` 3. `bench/bandwidth.py` repeats the comparison. A model's weights are read once each token, so reading, not
copying, is the right kernel: copies counted both ways come out 1.6 times higher on the same machine. A busy machine reads
several times less, which is why `check` records the load beside the figure.
"""

import ctypes
import itertools
import mmap
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MIB: Final = 2**20
SIZES_BYTES: Final = (8 * MIB, 32 * MIB, 64 * MIB, 96 * MIB, 128 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB, 2048 * MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The best of a few passes over a buffer."""

    buffer_bytes: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What was read how fast."""

    points: tuple[Point, ...]
    threads: int
    kernel: str
    cache_bytes: int | None
    """The last cache level as the system reports it; a virtual machine may report its host's."""
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """From memory: the speed of the largest buffer."""
        return self.points[-1].bytes_per_s

    @property
    def past_cache(self) -> bool:
        """Whether the largest buffer was larger than the reported last cache level."""
        return self.cache_bytes is None or self.points[-1].buffer_bytes > self.cache_bytes

    @property
    def flat(self) -> bool:
        """Whether the two largest buffers were read equally fast (within 15%): more size would not change it."""
        last = [p.bytes_per_s for p in self.points[-2:]]
        return len(last) == 2 and max(last) <= 1.15 * min(last)

    @property
    def resident_bytes(self) -> int:
        """The largest buffer that was read 1.3 times as fast as memory: models up to here stay in the cache. 0 if none."""
        fast = [p.buffer_bytes for p in self.points if p.bytes_per_s > 1.3 * self.bytes_per_s]
        return max(fast, default=0)

    def at(self, size_bytes: float) -> float:
        """The speed for a working set of this size: that of the next larger buffer measured."""
        return next((p.bytes_per_s for p in self.points if p.buffer_bytes >= size_bytes), self.bytes_per_s)


def sweep(
    *,
    threads: int,
    available_bytes: int,
    cache_bytes: int | None = None,
    budget_s: float = 0.8,
    sizes_bytes: tuple[int, ...] = SIZES_BYTES,
) -> Sweep | None:
    """Read buffers of growing size with `threads` threads, past the last cache level or until `budget_s` is spent.

    At most a quarter of `available_bytes` is used, and given back. None where the C library has no `strnlen`, or where not
    even the smallest buffer is allowed.
    """
    read = _reader()
    sizes = [s for s in sizes_bytes if s <= available_bytes // 4]
    if read is None or not sizes:
        return None
    began = started = time.perf_counter()
    points: list[Point] = []
    buffer = mmap.mmap(-1, sizes[-1])
    start = ctypes.addressof(holder := ctypes.c_char.from_buffer(buffer))
    try:
        filled = 0
        for size in sizes:
            now = time.perf_counter()
            if points and (_is_past(points, cache_bytes) or _is_late(points[-1], now - began, now - started, budget_s)):
                break
            began = now
            _together(threads, _fill(start + filled, size - filled, threads))
            filled = size
            points.append(Point(buffer_bytes=size, bytes_per_s=size / _best(read, start, size, threads)))
    finally:
        del holder
        buffer.close()
    return Sweep(points=tuple(points), threads=threads, kernel=_kernel(), cache_bytes=cache_bytes,
                 seconds=time.perf_counter() - started)  # fmt: skip


def _is_past(points: list[Point], cache_bytes: int | None) -> bool:
    """Whether the last buffer was past the cache: twice its size, or larger than it and read no slower than the one before."""
    cache = cache_bytes or 64 * MIB
    last, flat = points[-1], len(points) > 1 and points[-1].bytes_per_s > points[-2].bytes_per_s / 1.1
    return last.buffer_bytes >= 2 * cache or (last.buffer_bytes > cache and flat)


def _is_late(last: Point, last_s: float, spent_s: float, budget_s: float) -> bool:
    """Whether the next buffer, twice the last one's work, would go past the budget."""
    return last.buffer_bytes >= 64 * MIB and spent_s + 2 * last_s > budget_s


def _best(read: Callable[[int, int], object], start: int, size: int, threads: int) -> float:
    """Seconds of the fastest pass: small buffers are read until 10 ms have passed each time."""
    share = size // threads

    def job(index: int, times: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(times):
                read(start + index * share, share)

        return work

    times = max(1, 64 * MIB // size)
    best = float("inf")
    for _ in range(3):
        best = min(best, _together(threads, [job(i, times) for i in range(threads)]) / times)
    return best


def _fill(start: int, size: int, threads: int) -> list[Callable[[], None]]:
    share = size // threads

    def job(index: int) -> Callable[[], None]:
        last = size - index * share if index == threads - 1 else share
        return lambda: _memset(start + index * share, last)

    return [job(i) for i in range(threads)]


def _memset(start: int, size: int) -> None:
    ctypes.memset(start, 1, size)


def _together(threads: int, jobs: list[Callable[[], None]]) -> float:
    """Seconds from when all threads stand ready to when the last is done."""
    gate = threading.Barrier(threads + 1)
    ends: list[float] = []

    def run(job: Callable[[], None]) -> None:
        gate.wait()
        job()
        ends.append(time.perf_counter())

    crew = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for one in crew:
        one.start()
    gate.wait()
    started = time.perf_counter()
    for one in crew:
        one.join()
    return max(itertools.chain(ends, [started])) - started


def _reader() -> Callable[[int, int], object] | None:
    try:
        strnlen = ctypes.CDLL(None).strnlen
    except (OSError, AttributeError, TypeError):
        return None
    strnlen.argtypes, strnlen.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_size_t
    return strnlen


def _kernel() -> str:
    return f"read loop: strnlen of {' '.join(filter(None, platform.libc_ver())) or 'the C library'}"
