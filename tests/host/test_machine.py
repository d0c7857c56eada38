"""What this machine is, read from trees like Linux's own, and from the real one."""

import pytest

from servefit.host import machine


def tree(root, **files):
    """A folder with files; `__` in a name is a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_memory_limit_of_cgroup_2_is_the_lowest_on_the_way_up(tmp_path):
    """A limit of a parent group counts too; "max" is none."""
    proc = tree(tmp_path / "proc", self__cgroup="0::/a/b\n")
    groups = tree(
        tmp_path / "cg", **{"a__b__memory.max": "max\n", "a__memory.max": "2000000000\n", "memory.max": "9000000000\n"}
    )
    assert machine.memory_limit_bytes(proc, groups) == 2_000_000_000
    (groups / "a" / "memory.max").write_text("max\n")
    (groups / "memory.max").write_text("max\n")
    assert machine.memory_limit_bytes(proc, groups) is None


def test_memory_limit_of_cgroup_1(tmp_path):
    """Version 1 keeps the limit under its controller; a number near 2^63 is no limit; unreachable paths fall to the root."""
    proc = tree(tmp_path / "proc", self__cgroup="4:memory:/outside/only\n1:cpu:/\n0::/\n")
    groups = tree(tmp_path / "cg", **{"memory__memory.limit_in_bytes": "4294967296\n"})
    assert machine.memory_limit_bytes(proc, groups) == 4 * 2**30
    (groups / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert machine.memory_limit_bytes(proc, groups) is None


def test_cores_of_a_container(tmp_path):
    """A CPU limit of one and a half cores is two, never more than the affinity; version 1 the same."""
    all_cores = machine.allowed_cores(tmp_path, tmp_path)
    proc = tree(tmp_path / "p2", self__cgroup="0::/x\n")
    groups = tree(tmp_path / "c2", **{"x__cpu.max": "50000 100000\n"})
    assert machine.allowed_cores(proc, groups) == 1
    (groups / "x" / "cpu.max").write_text("max 100000\n")
    assert machine.allowed_cores(proc, groups) == all_cores
    proc = tree(tmp_path / "p1", self__cgroup="1:cpu,cpuacct:/\n")
    groups = tree(tmp_path / "c1", **{"cpu__cpu.cfs_quota_us": "100000\n", "cpu__cpu.cfs_period_us": "100000\n"})
    assert machine.allowed_cores(proc, groups) == 1


def test_last_cache_is_the_highest_level(tmp_path):
    """Level 3 counts, the instruction cache never."""
    root = tree(tmp_path, **{
        f"devices__system__cpu__cpu0__cache__index{i}__{k}": v
        for i, row in enumerate([("1", "Data", "48K"), ("1", "Instruction", "64K"), ("3", "Unified", "36M")])
        for k, v in zip(("level", "type", "size"), row, strict=True)
    })  # fmt: skip
    assert machine.last_cache_bytes(root) == 36 * 2**20
    assert machine.last_cache_bytes(tmp_path / "none") is None


def test_load_between_readings(tmp_path):
    """Busy and stolen time are shares of all time; too much of either is a finding; nothing known is None."""
    first = machine.cpu_times(tree(tmp_path / "a", stat="cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1\n"))
    second = machine.cpu_times(tree(tmp_path / "b", stat="cpu  130 0 110 850 0 0 0 10 0 0\n"))
    load = machine.load_between(first, second, window_s=1.0)
    assert (load.busy_frac, load.steal_frac) == (0.4, 0.1)
    assert load.findings == ("other programs use 40% of the cores", "the hypervisor takes 10% of the time")
    assert machine.load_between(None, second, window_s=1.0).busy_frac is None
    assert machine.load_between(first, first, window_s=1.0).findings == ()
    assert machine.cpu_times(tmp_path / "none") is None


def test_gpus(tmp_path):
    """nvidia-smi's rows and AMD's driver files become GPUs; an integrated GPU does not."""
    assert machine.read_nvidia("NVIDIA GeForce RTX 4090, 24564\n\nbroken\n") == (
        machine.Gpu(name="NVIDIA GeForce RTX 4090", memory_bytes=24564 * 2**20),
    )
    files = {"class__drm__card0__device__mem_info_vram_total": str(2**34), "class__drm__card0__device__product_name": "MI300X\n",
             "class__drm__card1__device__mem_info_vram_total": str(2**29)}  # fmt: skip
    assert machine.amd_gpus(tree(tmp_path, **files)) == (machine.Gpu(name="MI300X", memory_bytes=2**34),)


@pytest.mark.slow
def test_the_machine_here():
    """The real machine has memory, a core, and what runs meanwhile is run once."""
    ran = []
    here = machine.look(meanwhile=lambda: ran.append(1), window_s=0.0)
    assert here.memory_bytes > 2**28
    assert here.cores >= 1
    assert here.memory_bytes <= here.machine_memory_bytes
    assert here.available_bytes is None or 0 < here.available_bytes <= here.machine_memory_bytes
    assert ran == [1]
