"""The read sweep: it reads what it says, stops where it should, and gives its memory back."""

import ctypes
import itertools

import pytest

from servefit.host import bandwidth
from servefit.host.bandwidth import MIB, Point, Sweep


def points(*pairs):
    """Points from (MiB, GB/s)."""
    return tuple(Point(buffer_bytes=mib * MIB, bytes_per_s=gb * 1e9) for mib, gb in pairs)


def made(*pairs, cache=None):
    """A sweep with these points."""
    return Sweep(points=points(*pairs), threads=2, kernel="k", cache_bytes=cache, seconds=0.1)


def test_figures_of_a_sweep():
    """Memory is the largest buffer; what was read 1.3 times as fast is resident; a working set takes the next larger buffer."""
    sweep = made((8, 55), (64, 54), (128, 30), (256, 26), (512, 26), cache=300 * MIB)
    assert sweep.bytes_per_s == 26e9
    assert sweep.resident_bytes == 64 * MIB
    assert sweep.at(50e6) == 54e9 and sweep.at(100e6) == 30e9 and sweep.at(1e12) == 26e9
    assert sweep.past_cache
    assert not made((8, 55), (256, 26), cache=300 * MIB).past_cache


@pytest.mark.parametrize(
    ("pairs", "cache_mib", "past"),
    [
        (((256, 26), (512, 26)), 480, True),  # larger than the cache, and as fast as the one before
        (((256, 40), (512, 26)), 480, False),  # larger, but still falling
        (((256, 26), (512, 26)), 600, False),  # not larger yet
        (((512, 40), (1024, 26)), 480, True),  # twice the cache
        (((64, 50), (128, 20)), None, True),  # nothing reported: twice 64 MiB
    ],
)
def test_where_the_sweep_ends(pairs, cache_mib, past):
    """It goes past the reported cache, and a little further where the speed still falls."""
    assert bandwidth._is_past(list(points(*pairs)), cache_mib * MIB if cache_mib else None) is past


def test_a_late_sweep_ends_early():
    """When the next buffer would pass the time budget, the sweep ends, but never below 64 MiB."""
    assert bandwidth._is_late(points((128, 5))[0], 0.3, 0.5, 0.8)
    assert not bandwidth._is_late(points((128, 5))[0], 0.1, 0.5, 0.8)
    assert not bandwidth._is_late(points((32, 5))[0], 0.3, 0.9, 0.8)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_byte_is_filled_and_read(threads, monkeypatch):
    """With real threads: shares cover the buffer without a gap, and the kernel sees no zero byte before the end."""
    seen = []
    strnlen = bandwidth._reader()

    def reading(start, size):
        seen.append((start, size))
        assert strnlen(start, size) == size, "a zero byte would end the read early"
        return size

    monkeypatch.setattr(bandwidth, "_reader", lambda: reading)
    sweep = bandwidth.sweep(threads=threads, available_bytes=64 * MIB, sizes_bytes=(3 * MIB, 6 * MIB), cache_bytes=1)
    assert [p.buffer_bytes for p in sweep.points] == [3 * MIB]
    shares = sorted(set(seen))
    assert sum(size for _, size in shares) == 3 * MIB
    assert all(a + size == b for (a, size), (b, _) in itertools.pairwise(shares))


def test_no_more_than_a_quarter_of_free_memory():
    """Buffers above a quarter of what is available are not used; with nothing available there is no sweep."""
    sweep = bandwidth.sweep(
        threads=1, available_bytes=8 * MIB, sizes_bytes=(MIB, 2 * MIB, 4 * MIB), cache_bytes=100 * MIB
    )
    assert [p.buffer_bytes for p in sweep.points] == [MIB, 2 * MIB]
    assert bandwidth.sweep(threads=1, available_bytes=0) is None


def test_kernel_reads_and_names_the_library():
    """The kernel is the C library's own, and the sweep says so."""
    text = ctypes.create_string_buffer(b"x" * 1000)
    assert bandwidth._reader()(ctypes.addressof(text), 1000) == 1000
    assert bandwidth._kernel().startswith("read loop: strnlen of ")
