"""A decision moves with its inputs: one folder or zip with the plan, runs, calibration and prices that it rests on.

    decision.md  bundle.json  plan.json  runs/NAME/{run.json,requests.jsonl}  inputs/...

`bundle.json` names every file with its hash. Nothing in a bundle may point out of it, and a zip is unpacked within limits.
"""

import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath

from servefit.decide.decision import Decision, Input, Role, at, parse_decision
from servefit.decide.findings import Finding
from servefit.errors import ServefitError
from servefit.files import read_bytes, read_json, real, sha256, write_bytes
from servefit.plan.plan import Plan
from servefit.records import content_sha256

SCHEMA_VERSION = 1
MANIFEST = "bundle.json"
MAX_ENTRIES = 10_000
MAX_TOTAL_BYTES = 2 * 2**30
MAX_RATIO = 400
"""Unpacked over packed: request rows in JSON shrink 10 to 40 times, a bomb 1,000."""
SMALL_BYTES = 8 * 2**20
"""Below this the ratio does not matter."""


# --- what a decision rests on ---------------------------------------------------------------------------------------


def inputs_of(
    plan: Plan, plan_path: Path, runs: Mapping[str, Path], base: Path
) -> tuple[tuple[Input, ...], tuple[str, ...]]:
    """Everything a decision in the folder `base` rests on, with hashes, and notes on what could not be found.

    The plan's own inputs are looked for where the plan lies, then here; one that is gone or has changed is said.
    """
    plan_path = plan_path / "plan.json" if plan_path.is_dir() else plan_path
    found = [_input("plan", plan_path, base)]
    notes = []
    for name, recorded in plan.inputs.items():
        if name.startswith("catalogue:"):
            continue
        where = next((p for p in (plan_path.parent / name, Path(name)) if p.exists()), None)
        if where is None:
            notes.append(f"{name}, which the plan was made from, is not there: simulating again will not be possible.")
        elif content_sha256(where) != recorded:
            notes.append(f"{name} has changed since the plan was made from it.")
        else:
            found.append(_input(_role(where), where, base))
    found += [_input("run", folder, base, name=name) for name, folder in runs.items()]
    return tuple(found), tuple(notes)


def name_runs(folders: tuple[Path, ...]) -> dict[str, Path]:
    """Runs by a name of their own: the folder's, numbered where two are the same."""
    out: dict[str, Path] = {}
    for folder in folders:
        folder = folder.parent if folder.name == "run.json" else folder  # noqa: PLW2901
        name = re.sub(r"[^\w.-]+", "-", Path(os.path.realpath(folder)).name) or "run"
        number, unique = 2, name
        while unique in out:
            unique, number = f"{name}-{number}", number + 1
        out[unique] = folder
    return out


def _role(path: Path) -> Role:
    if path.is_dir():
        return "run"
    return "calibration" if "calibration" in path.name else "other"


def _input(role: Role, path: Path, base: Path, *, name: str = "") -> Input:
    relative = os.path.relpath(real(path), real(base))
    return Input(role=role, path=Path(relative).as_posix(), sha256=content_sha256(path), name=name)


# --- writing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The files of a bundle: name -> bytes, `decision.md` and the manifest among them."""

    files: dict[str, bytes]


def make_bundle(decision: Decision, path: Path, *, tool_version: str) -> Bundle:
    """The bundle of the decision at `path`. Raises ServefitError where an input is gone or not the recorded one."""
    moves: dict[str, str] = {}
    files: dict[str, bytes] = {}
    rests_on = [(i.path, i.sha256, i.role, i.name) for i in decision.front.inputs]
    rests_on += [(c.run, c.sha256, "run", "") for c in decision.front.checked_against]
    for old, recorded, role, name in rests_on:
        if old in moves:
            continue
        where = at(path, old)
        if not where.exists():
            raise ServefitError(
                f"{old}, which the decision rests on, is not there.", hint="Bring it back, then bundle."
            )
        if content_sha256(where) != recorded:
            raise ServefitError(f"{old} is not the file that was decided on.", hint="Bring it back, or decide again.")
        new = _place(where, role, name, taken=files)
        moves[old] = new
        for part in ("run.json", "requests.jsonl") if where.is_dir() else ("",):
            files[f"{new}/{part}" if part else new] = read_bytes(
                where / part if part else where, max_bytes=MAX_TOTAL_BYTES
            )
    text = moved(decision, moves, where=str(path))
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": tool_version,
        "decision": "decision.md",
        "files": {name: _hex(data) for name, data in sorted(files.items())},
    }
    files[MANIFEST] = (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()
    files["decision.md"] = text.encode()
    return Bundle(files=files)


def _hex(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _place(where: Path, role: str, name: str, *, taken: Mapping[str, bytes]) -> str:
    first = re.sub(r"[^\w.-]+", "-", name or where.name).lstrip(".") or "input"
    folder = {"plan": "", "run": "runs/"}.get(role, "inputs/")
    place, number = f"{folder}{'plan.json' if role == 'plan' else first}", 2
    while place in taken or any(t.startswith(place + "/") for t in taken):
        place, number = f"{folder}{number}-{first}", number + 1
    return place


def moved(decision: Decision, moves: Mapping[str, str], *, where: str) -> str:
    """The decision's text with the paths in its front matter replaced; nothing else is touched."""
    import yaml

    def swap(match: re.Match[str]) -> str:
        old = str(yaml.safe_load(match.group(2)))
        return match.group(1) + (json.dumps(moves[old], ensure_ascii=False) if old in moves else match.group(2))

    head = decision.text[: decision.front_end]
    head = re.sub(r"^([ \t]*(?:- +)?(?:path|run):[ \t]*)(\S.*?)[ \t\r]*$", swap, head, flags=re.MULTILINE)
    text = head + decision.text[decision.front_end :]
    now = parse_decision(text, where=where).front
    if [moves.get(i.path) for i in decision.front.inputs] != [i.path for i in now.inputs]:
        raise ServefitError(
            f"{where}: the paths in the front matter cannot be moved.", hint="Write one 'path:' on a line of its own."
        )
    return text


def write_folder(bundle: Bundle, folder: Path) -> None:
    """Write the bundle as a folder, which must be new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ServefitError(f"{folder} is there already and not empty.", hint="Name a new folder.")
    for name, data in bundle.files.items():
        write_bytes(folder / name, data)


def write_zip(bundle: Bundle, path: Path) -> None:
    """Write the bundle as a zip: the same bundle gives the same bytes."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(bundle.files):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, bundle.files[name])
    write_bytes(path, out.getvalue())


# --- reading --------------------------------------------------------------------------------------------------------


def is_zip(path: Path) -> bool:
    """Whether `path` is meant as a zipped bundle: by its name, or by how it begins."""
    if path.suffix.lower() == ".zip":
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def unpack(path: Path, folder: Path) -> Path:
    """Unpack a zipped bundle into `folder` and return the decision's path in it.

    Raises ServefitError for a file that is no zip, an entry that climbs out, a link, and what unpacks to too much;
    nothing is written before every entry's name and size has been looked at.
    """
    read_bytes(path, max_bytes=MAX_TOTAL_BYTES)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [e for e in archive.infolist() if not e.is_dir()]
            _look(path, entries)
            for entry in entries:
                write_bytes(folder / entry.filename, _inflate(path, archive, entry))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError) as error:
        raise ServefitError(f"{path} cannot be unpacked: {error}.", hint="Is it a bundle of servefit?") from None
    if not (folder / "decision.md").exists():
        raise ServefitError(f"{path} holds no decision.md.", hint="A bundle is what `servefit decide --bundle` writes.")
    return folder / "decision.md"


def _look(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    hint = "It was not written by servefit."
    if len(entries) > MAX_ENTRIES:
        raise ServefitError(f"{path} holds {len(entries):,} files; at most {MAX_ENTRIES:,} are read.", hint=hint)
    names = set()
    for entry in entries:
        name = entry.filename
        if climbs(name):
            raise ServefitError(f"{path} holds '{name}', which points out of the bundle.", hint=hint)
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise ServefitError(f"{path} holds the link '{name}'.", hint=hint)
        if name in names:
            raise ServefitError(f"{path} holds '{name}' twice.", hint=hint)
        names.add(name)
    total = sum(e.file_size for e in entries)
    packed = sum(e.compress_size for e in entries)
    if total > MAX_TOTAL_BYTES or (total > SMALL_BYTES and total > MAX_RATIO * max(packed, 1)):
        raise ServefitError(f"{path} would unpack from {packed:,} to {total:,} bytes, which no bundle does.", hint=hint)


def _inflate(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """The entry's bytes, never more than it declared: the declared sizes were what was looked at."""
    with archive.open(entry) as file:
        data = file.read(entry.file_size + 1)
    if len(data) != entry.file_size:
        raise ServefitError(f"{path}: '{entry.filename}' is not as long as it says.", hint="It is damaged.")
    return data


def climbs(name: str) -> bool:
    r"""Whether a path points out of the folder it is relative to, on any system.

    >>> climbs("runs/a/run.json"), climbs("../x"), climbs("/etc/passwd"), climbs("C:\\x"), climbs("a/../../b")
    (False, True, True, True, True)
    """
    path = PurePosixPath(name)
    return not name or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name


def confined(decision: Decision, folder: Path) -> Iterator[Finding]:
    """For a decision in a bundle: findings where a file is not the one in the manifest.

    Raises ServefitError where the decision names something outside of the bundle, or the manifest is a newer one.
    """
    manifest = read_json(folder / MANIFEST)
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(version, int) or not isinstance(files, dict):
        raise ServefitError(f"{folder / MANIFEST} is no bundle's manifest.", hint="Bundle the decision again.")
    if version > SCHEMA_VERSION:
        raise ServefitError(
            f"{folder / MANIFEST} has schema version {version}; this servefit reads up to {SCHEMA_VERSION}.",
            hint="Update servefit.",
        )
    root = real(folder)
    named = [i.path for i in decision.front.inputs] + [str(name) for name in files]
    for name in named:
        if climbs(name) or not real(folder / name).is_relative_to(root):
            raise ServefitError(f"{folder}: '{name}' points out of the bundle.", hint="Bundle the decision again.")
    for name, recorded in files.items():
        actual = sha256(folder / name) if (folder / name).is_file() else ""
        if actual != recorded:
            what = "has changed" if actual else "is not there"
            yield Finding(code="SOURCE", level="error", line=1, name=name, written=str(recorded), recomputed=actual,
                          message=f"{name} {what}: it is not what was bundled.")  # fmt: skip
