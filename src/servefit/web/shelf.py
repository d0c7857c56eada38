"""What lies in the user's folder: runs by their headers, plans, decisions, calibrations; and no way out of the folder."""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from starlette.exceptions import HTTPException

from servefit.errors import ServefitError
from servefit.files import read_json
from servefit.records import RunHeader, header_from_json

MOST_FILES = 20_000
"""Folders that are looked into; a data folder is smaller."""
DEEPEST = 6
LIVE_S = 600.0
"""A run that is not finished and whose folder is locked counts as running until it has been silent for this long."""

State = Literal["finished", "running", "interrupted", "damaged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelved:
    """One run as its header tells it."""

    path: str
    """Relative to the folder, with forward slashes."""
    state: State
    header: RunHeader | None
    """None where it is damaged."""
    trouble: str = ""
    changed_s: float = 0.0
    """When its rows last changed, in seconds since 1970."""


def inside(folder: Path, path: str) -> Path:
    """The file or folder at `path` in the data folder. Answers 404 for what is not there, climbs out, or is a link."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or any(p in ("", ".", "..") for p in parts):
        raise HTTPException(404)
    at = folder
    for part in parts:
        at /= part
        try:
            if at.is_symlink() or not at.exists():
                raise HTTPException(404)
        except OSError:  # a name that is too long, a folder that may not be entered
            raise HTTPException(404) from None
    return at


def walk(folder: Path, name: str) -> Iterator[Path]:
    """Every file called `name` below the folder, links not followed, hidden folders passed over."""
    seen = 0
    for here, folders, names in os.walk(folder, followlinks=False):
        depth = len(Path(here).relative_to(folder).parts)
        folders[:] = sorted(
            f for f in folders if not f.startswith(".") and f not in ("node_modules", "__pycache__") and depth < DEEPEST
        )
        seen += 1 + len(folders)
        if seen > MOST_FILES:
            return
        path = Path(here) / name
        if name in names and not path.is_symlink():
            yield path


def all_runs(folder: Path) -> list[Shelved]:
    """Every run below the folder, the newest first; only headers are read."""
    found = [shelved(path.parent, folder) for path in walk(folder, "run.json")]
    return sorted(found, key=lambda s: (s.state == "running", _when(s), s.path), reverse=True)


def _when(run: Shelved) -> float:
    if run.header is not None and isinstance(run.header.started, str):
        try:
            return datetime.fromisoformat(run.header.started).timestamp()
        except ValueError:
            pass
    return run.changed_s


def shelved(run: Path, folder: Path) -> Shelved:
    """One run as its header tells it; a damaged one with the sentence that says how."""
    name = run.relative_to(folder).as_posix()
    rows = run / "requests.jsonl"
    try:
        changed = (rows if rows.exists() else run / "run.json").stat().st_mtime
        header = header_from_json(read_json(run / "run.json"), Path(name) / "run.json")
        _check_types(header, Path(name) / "run.json")
    except ServefitError as error:
        return Shelved(path=name, state="damaged", header=None, trouble=_without(error.message, folder))
    except OSError as error:
        return Shelved(path=name, state="damaged", header=None, trouble=f"{name} cannot be read: {error.strerror}.")
    state: State = "finished" if header.finished else "interrupted"
    if not header.finished and (run / ".lock").exists() and time.time() - changed < LIVE_S:
        state = "running"
    return Shelved(path=name, state=state, header=header, changed_s=changed)


def _check_types(header: RunHeader, path: Path) -> None:
    """A header from elsewhere may hold anything: what the page shows must be of the kind it is taken for."""
    kinds = {"target": str, "model": str, "engine": dict, "endpoint": dict, "load": dict, "workload_sha256": str}
    for name, kind in kinds.items():
        if not isinstance(getattr(header, name), kind):
            raise ServefitError(
                f"{path} is damaged: {name} is no {kind.__name__}.", hint="Measure again, or restore the file."
            )


def _without(sentence: str, folder: Path) -> str:
    """A sentence without the folder's own path, which the reader knows."""
    return sentence.replace(f"{folder}{os.sep}", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file of ours in the folder."""

    path: str
    title: str
    changed_s: float


def all_plans(folder: Path) -> list[Found]:
    """Every plan.json, newest first, titled by its answer."""
    return _found(folder, "plan.json", _plan_title)


def all_decisions(folder: Path) -> list[Found]:
    """Every decision.md, newest first, titled by its heading."""
    return _found(folder, "decision.md", _decision_title)


def all_calibrations(folder: Path) -> list[Found]:
    """Every calibration.json, newest first, titled by its device and model."""
    return _found(folder, "calibration.json", _calibration_title)


def _found(folder: Path, name: str, title: Callable[[Path], str]) -> list[Found]:
    out = []
    for path in walk(folder, name):
        try:
            out.append(
                Found(path=path.relative_to(folder).as_posix(), title=title(path), changed_s=path.stat().st_mtime)
            )
        except OSError:
            continue
    return sorted(out, key=lambda f: (-f.changed_s, f.path))


def _plan_title(path: Path) -> str:
    try:
        value = read_json(path)
    except ServefitError as error:
        return f"damaged: {error.message.replace(str(path), path.name)}"
    answer = value.get("answer") if isinstance(value, dict) else None
    return answer if isinstance(answer, str) else "damaged: it is not a plan."


def _decision_title(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        for _, line in zip(range(200), file, strict=False):
            if line.startswith("# "):
                return re.sub(r"<!--.*?-->|`", "", line[2:]).strip()
    return "no heading"


def _calibration_title(path: Path) -> str:
    try:
        value = read_json(path)
    except ServefitError:
        return "damaged"
    get = value.get if isinstance(value, dict) else {}.get
    return f"{get('device') or 'this machine'}, {get('model') or 'any model'}"
