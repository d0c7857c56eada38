"""What this machine is: memory and what limits it, cores, caches, GPUs, how busy it is. Reads, never changes.

Linux reports everything below; macOS memory and chip; elsewhere what Python itself knows.
"""

import contextlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from servefit.errors import CannotMeasure

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")
UNLIMITED_BYTES: Final = 2**60
BUSY_FRAC: Final = 0.25
STEAL_FRAC: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A discrete GPU, as its driver names it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the machine was while nothing of ours ran."""

    busy_frac: float | None = None
    """Of the allowed cores' time, spent on anything."""
    steal_frac: float | None = None
    """Of the time, taken by the hypervisor for somebody else."""
    load_1min: float | None = None
    window_s: float = 0.0

    @property
    def findings(self) -> tuple[str, ...]:
        """A sentence for each reason not to trust a measurement now."""
        out = []
        if self.busy_frac is not None and self.busy_frac > BUSY_FRAC:
            out.append(f"other programs use {self.busy_frac:.0%} of the cores")
        if self.steal_frac is not None and self.steal_frac > STEAL_FRAC:
            out.append(f"the hypervisor takes {self.steal_frac:.0%} of the time")
        return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is here."""

    system: str
    arch: str
    chip: str
    cores: int
    """Cores that this process may use: affinity and container limit."""
    memory_bytes: int
    """Memory that this process may use: the machine's, or a container's limit where that is lower."""
    machine_memory_bytes: int
    limited_by: str | None = None
    """"cgroup" where a container's limit counts."""
    available_bytes: int | None = None
    """Free now, caches that can be dropped included."""
    cache_bytes: int | None = None
    """Last cache level, as reported; a virtual machine may report all of its host's."""
    unified: bool = False
    """CPU and GPU share the memory."""
    virtual: bool = False
    gpus: tuple[Gpu, ...] = ()
    load: Load = Load()


def look(*, meanwhile: Callable[[], object] | None = None, window_s: float = 0.25) -> Machine:
    """The machine here; its load is watched for `window_s` while `meanwhile` runs. Raises CannotMeasure without a memory size."""
    before, began = cpu_times(), time.monotonic()
    gpus = nvidia_gpus() + amd_gpus()
    if meanwhile:
        meanwhile()
    time.sleep(max(0.0, window_s - (time.monotonic() - began)))
    load = load_between(before, cpu_times(), window_s=time.monotonic() - began)
    total = total_memory_bytes()
    limit = memory_limit_bytes()
    limited = limit is not None and limit < total
    chip = chip_name()
    return Machine(
        system=f"{platform.system()} {platform.release()}", arch=platform.machine(), chip=chip, cores=allowed_cores(),
        memory_bytes=limit if limited and limit is not None else total, machine_memory_bytes=total,
        limited_by="cgroup" if limited else None, available_bytes=available_bytes(limit if limited else None),
        cache_bytes=last_cache_bytes(), unified=chip.startswith("Apple"), virtual=is_virtual(), gpus=gpus, load=load,
    )  # fmt: skip


# --- memory ------------------------------------------------------------------------------------------------------------


def total_memory_bytes() -> int:
    """Bytes of the machine's memory. Raises CannotMeasure where the system does not tell."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if told := _sysctl("hw.memsize"):
        return int(told)
    raise CannotMeasure("This system does not tell how much memory it has.", hint="servefit check --memory 16GB")


def memory_limit_bytes(proc: Path = PROC, cgroups: Path = SYS / "fs/cgroup") -> int | None:
    """The lowest memory limit of this process's control groups (versions 2 and 1); None where there is none."""
    limits = []
    for kind, path in _groups(proc):
        name, root = ("memory.max", cgroups) if kind == "" else ("memory.limit_in_bytes", cgroups / "memory")
        if kind not in ("", "memory"):
            continue
        for folder in _upwards(root, path):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text(encoding="ascii")))
    real = [x for x in limits if 0 < x < UNLIMITED_BYTES]
    return min(real, default=None)


def available_bytes(limit: int | None = None, proc: Path = PROC) -> int | None:
    """Bytes that a new program could have now; within a container's limit at most what that leaves."""
    with contextlib.suppress(OSError, ValueError):
        found = re.search(r"^MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text(encoding="ascii"), re.MULTILINE)
        free = int(found[1]) * 1024 if found else None
        if free is not None:
            return free if limit is None else min(free, max(0, limit - _used_bytes()))
    return None


def _used_bytes(proc: Path = PROC, cgroups: Path = SYS / "fs/cgroup") -> int:
    for kind, path in _groups(proc):
        name, root = ("memory.current", cgroups) if kind == "" else ("memory.usage_in_bytes", cgroups / "memory")
        if kind in ("", "memory"):
            with contextlib.suppress(OSError, ValueError):
                return int((_upwards(root, path)[0] / name).read_text(encoding="ascii"))
    return 0


def _groups(proc: Path) -> list[tuple[str, str]]:
    """(controller, path) of each control group of this process; version 2 has the controller ""."""
    with contextlib.suppress(OSError):
        lines = (proc / "self/cgroup").read_text(encoding="utf-8").splitlines()
        parts = [line.split(":", 2) for line in lines]
        return [(controller, p[2]) for p in parts if len(p) == 3 for controller in p[1].split(",")]
    return []


def _upwards(root: Path, path: str) -> list[Path]:
    """The group's folder and those above it; inside a container the path may only exist outside, so the root always counts."""
    inner = root / path.strip("/")
    return [f for f in (inner, *inner.parents) if f == root or root in f.parents]


# --- cores, chip, caches ------------------------------------------------------------------------------------------------


def allowed_cores(proc: Path = PROC, cgroups: Path = SYS / "fs/cgroup") -> int:
    """Cores that this process may use: its affinity, and a container's CPU time rounded up to whole cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for kind, path in _groups(proc):
        for folder in _upwards(cgroups if kind == "" else cgroups / "cpu", path) if kind in ("", "cpu") else ():
            with contextlib.suppress(OSError, ValueError):
                if kind == "":
                    quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
                else:
                    quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
                    period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
                if quota != "max" and int(quota) > 0:
                    cores = min(cores, max(1, -(-int(quota) // int(period))))
    return cores


def chip_name(proc: Path = PROC) -> str:
    """The processor as it names itself: "Apple M4 Max", "AMD Ryzen 9 7950X 16-Core Processor"; "" where unknown."""
    with contextlib.suppress(OSError):
        found = re.search(
            r"^(?:model name|Model)\s*:\s*(.+)$", (proc / "cpuinfo").read_text("utf-8", "replace"), re.MULTILINE
        )
        if found:
            return found[1].strip()
    return _sysctl("machdep.cpu.brand_string") or platform.processor()


def last_cache_bytes(sys: Path = SYS) -> int | None:
    """The last cache level that core 0 sees, in bytes; None where the system does not tell."""
    sizes: dict[int, int] = {}
    for folder in (sys / "devices/system/cpu/cpu0/cache").glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            if (folder / "type").read_text("ascii").strip() != "Instruction":
                text = (folder / "size").read_text("ascii").strip()
                unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
                sizes[int((folder / "level").read_text("ascii"))] = int(text.rstrip("KMG")) * unit
    return sizes[max(sizes)] if sizes else None


def is_virtual(proc: Path = PROC) -> bool:
    """Whether the processor says that a hypervisor runs it."""
    with contextlib.suppress(OSError):
        return " hypervisor" in (proc / "cpuinfo").read_text("utf-8", "replace")
    return False


def _sysctl(name: str) -> str:
    if platform.system() != "Darwin":
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ["sysctl", "-n", name], check=True, capture_output=True, text=True, timeout=2
        ).stdout.strip()
    return ""


# --- GPUs ---------------------------------------------------------------------------------------------------------------


def nvidia_gpus() -> tuple[Gpu, ...]:
    """The GPUs that nvidia-smi lists; none where it is absent or does not answer in time."""
    if platform.system() == "Linux" and not Path("/proc/driver/nvidia").exists():
        return ()
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return read_nvidia(subprocess.run(query, check=True, capture_output=True, text=True, timeout=1.5).stdout)
    return ()


def read_nvidia(text: str) -> tuple[Gpu, ...]:
    """The GPUs in nvidia-smi's answer; memory is in MiB.

    >>> read_nvidia("NVIDIA H200, 143771")[0].memory_bytes // 2**20
    143771
    """
    rows = [line.rpartition(",") for line in text.splitlines()]
    return tuple(Gpu(name=n.strip(), memory_bytes=int(m) * 2**20) for n, _, m in rows if m.strip().isdigit())


def amd_gpus(sys: Path = SYS) -> tuple[Gpu, ...]:
    """AMD GPUs with memory of their own, from the kernel's driver; integrated ones (below 4 GiB) are left out."""
    found = []
    for file in sorted((sys / "class/drm").glob("card[0-9]*/device/mem_info_vram_total")):
        with contextlib.suppress(OSError, ValueError):
            size = int(file.read_text("ascii"))
            names = [file.parent / n for n in ("product_name", "product_number")]
            name = next((n.read_text("utf-8").strip() for n in names if n.exists()), "") or "AMD GPU"
            if size >= 4 * 2**30:
                found.append(Gpu(name=name, memory_bytes=size))
    return tuple(found)


# --- load ---------------------------------------------------------------------------------------------------------------


def cpu_times(proc: Path = PROC) -> tuple[float, float, float] | None:
    """(busy, stolen, all) clock ticks of all cores since the start; None where the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = [int(x) for x in (proc / "stat").read_text("ascii").split("\n", 1)[0].split()[1:]]
        idle, stolen = ticks[3] + ticks[4], ticks[7] if len(ticks) > 7 else 0
        everything = sum(ticks[:8])
        return float(everything - idle - stolen), float(stolen), float(everything)
    return None


def load_between(
    before: tuple[float, float, float] | None, after: tuple[float, float, float] | None, *, window_s: float
) -> Load:
    """How busy the machine was between two readings.

    >>> load_between((0, 0, 0), (30, 10, 100), window_s=0.5).busy_frac
    0.3
    """
    one_minute = None
    with contextlib.suppress(OSError, AttributeError):
        one_minute = os.getloadavg()[0]
    if before is None or after is None or after[2] <= before[2]:
        return Load(load_1min=one_minute, window_s=window_s)
    busy, stolen, everything = (b - a for a, b in zip(before, after, strict=True))
    return Load(busy_frac=busy / everything, steal_frac=stolen / everything, load_1min=one_minute, window_s=window_s)
