"""Who else used this machine's cores while we measured: ourselves, the server where it runs here, and everybody else."""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Seconds of CPU time up to a moment."""

    at_s: float
    busy_s: float
    steal_s: float
    ours_s: float
    server_s: float | None
    """Of the server's processes, where it runs here and may be seen."""
    waited_s: float | None
    """How long our thread was ready to run and had no core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was used between two readings, in cores (seconds of CPU a second); None where it is not known."""

    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    others: float | None = None
    server: float | None = None
    steal_frac: float | None = None
    idle_frac: float | None = None
    waited_frac: float | None = None
    """Share of the time in which our own thread waited for a core."""

    def to_json(self) -> dict[str, Any]:
        """The figures for the run's header."""
        return {
            "others_cores": _rounded(self.others), "server_cores": _rounded(self.server),
            "idle_frac": _rounded(self.idle_frac), "steal_frac": _rounded(self.steal_frac),
            "waited_for_core_frac": _rounded(self.waited_frac),
        }  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def read(server_pids: frozenset[int] = frozenset()) -> Reading | None:
    """The CPU time of everything, of us and of the server's processes so far; None where there is no /proc/stat."""
    try:
        words = (PROC / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        tick = os.sysconf("SC_CLK_TCK")
        user, nice, system, _, _, irq, soft, steal = (int(w) / tick for w in words[:8])
    except (OSError, ValueError, AttributeError):
        return None
    waited = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        waited = int((PROC / "self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return Reading(
        at_s=time.monotonic(), busy_s=user + nice + system + irq + soft, steal_s=steal, ours_s=time.process_time(),
        server_s=sum(_cpu_s(pid, tick) for pid in server_pids) if server_pids else None, waited_s=waited,
    )  # fmt: skip


def between(before: Reading | None, after: Reading | None) -> Usage:
    """What was used between two readings."""
    cores = os.cpu_count() or 1
    if before is None or after is None or after.at_s <= before.at_s:
        return Usage()
    wall = after.at_s - before.at_s
    busy, ours = after.busy_s - before.busy_s, after.ours_s - before.ours_s
    steal = after.steal_s - before.steal_s
    server = None
    if before.server_s is not None and after.server_s is not None:
        server = max(0.0, after.server_s - before.server_s) / wall
    waited = None
    if before.waited_s is not None and after.waited_s is not None:
        waited = (after.waited_s - before.waited_s) / wall
    return Usage(
        cores=cores, others=max(0.0, (busy - ours) / wall - (server or 0.0)), server=server,
        steal_frac=max(0.0, steal / wall / cores), idle_frac=max(0.0, 1 - (busy + steal) / wall / cores), waited_frac=waited,
    )  # fmt: skip


def server_pids(port: int) -> frozenset[int]:
    """The processes of whoever listens on `port` here: the listener, its process group, and all their children.

    Empty where it cannot be seen: another user's, another container's, no /proc. Never our own process.
    """
    inodes = _listening_inodes(port)
    if not inodes:
        return frozenset()
    parents: dict[int, int] = {}
    groups: dict[int, int] = {}
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            parents[pid], groups[pid] = int(stat[1]), int(stat[2])
    listeners = {pid for pid in parents if _holds(pid, inodes)}
    if not listeners or os.getpid() in listeners:
        return frozenset()
    own_group = os.getpgrp()
    wanted = {groups[pid] for pid in listeners} - {own_group}
    found = listeners | {pid for pid, group in groups.items() if group in wanted}
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grew = bool(more)
    return frozenset(found - {os.getpid()})


def _pids() -> list[int]:
    try:
        return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return []


def _listening_inodes(port: int) -> set[str]:
    wanted, out = f"{port:04X}", set()
    for name in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / name).read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[1].endswith(f":{wanted}"):
                    out.add(words[9])
    return out


def _holds(pid: int, inodes: set[str]) -> bool:
    """Whether one of the process's files is one of these sockets."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    try:
        for entry in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) in wanted:
                    return True
    except OSError:
        pass
    return False


def _cpu_s(pid: int, tick: int) -> float:
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / tick
    except (OSError, ValueError, IndexError):
        return 0.0
