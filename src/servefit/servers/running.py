"""Which engines run here: one small file each, written when `servefit engine start` is ready, removed when it stops."""

import contextlib
import json
import os
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from servefit.errors import CannotMeasure
from servefit.files import write_json

USUAL_PORT: Final = 8977
"""Where `servefit engine start` serves when the port is free and none was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An engine that somebody started with `servefit engine start`."""

    name: str
    url: str
    pid: int
    born: str
    """When the process started, in the system's own count: a pid that was given away again is not ours."""
    policy: str
    seats: int


def folder() -> Path:
    """Where the entries lie: the user's runtime folder, else one of ours under the temporary folder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return Path(runtime) / "servefit" if runtime else Path(tempfile.gettempdir()) / f"servefit-{user}"


def enter(name: str, url: str, *, policy: str, seats: int) -> Path:
    """Write the entry of this process; returns its path."""
    entry = Entry(name=name, url=url, pid=os.getpid(), born=_born(os.getpid()), policy=policy, seats=seats)
    path = folder() / f"engine-{os.getpid()}.json"
    write_json(path, asdict(entry))
    return path


def entries() -> tuple[Entry, ...]:
    """The engines that run now, oldest first; entries whose process is gone are removed."""
    alive: list[tuple[float, Entry]] = []
    for path in sorted(folder().glob("engine-*.json")) if folder().is_dir() else ():
        try:
            entry = Entry(**json.loads(path.read_text(encoding="utf-8")))
            changed = path.stat().st_mtime
        except (OSError, ValueError, TypeError):
            continue
        if _born(entry.pid) == entry.born and _owned(path):
            alive.append((changed, entry))
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return tuple(entry for _, entry in sorted(alive, key=lambda pair: pair[0]))


def stop(entry: Entry, wait_s: float = 10.0) -> None:
    """Ask the engine to stop, and wait until it is gone. Raises CannotMeasure where it does not go."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(entry.pid, signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while _born(entry.pid) == entry.born:
        if time.monotonic() > deadline:
            raise CannotMeasure(f"The engine '{entry.name}' (process {entry.pid}) did not stop within {wait_s:g} s.",
                                hint=f"kill -9 {entry.pid}")  # fmt: skip
        time.sleep(0.02)


def _owned(path: Path) -> bool:
    """Whether the entry was written by this user: others may write to a shared temporary folder."""
    return not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()


def _born(pid: int) -> str:
    """The process's start, from /proc; elsewhere "alive" or ""."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return "" if stat[0] == "Z" else stat[19]
    except OSError:
        if Path("/proc/self").exists():
            return ""
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "alive"
