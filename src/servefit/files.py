"""Files: read with a sentence when they cannot be, written whole or not at all, known by their hash.

Inputs from people (TOML, JSON) become frozen dataclasses here, once, and every fault in them is named with its path.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from servefit.errors import ServefitError

T = TypeVar("T")

MAX_BYTES = 256 * 2**20
"""Nothing that people write by hand is larger; a larger file is refused before it is read."""


MAX_FAULTS = 6
"""So many faults of a file are named; a file of another kind has one in every line."""


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """The file's text (UTF-8, a BOM dropped). Raises ServefitError with a sentence for whatever stands in the way."""
    return decode(read_bytes(path, max_bytes=max_bytes), path)


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """The file's bytes. Raises ServefitError where it is missing, a folder, not readable or larger than `max_bytes`."""
    with _told(path):
        size = path.stat().st_size
        if size > max_bytes:
            raise ServefitError(
                f"{path} is {size:,} bytes; the limit here is {max_bytes:,}.", hint="Is it the right file?"
            )
        with path.open("rb") as file:  # `read` takes at once what it may fill, so it is asked for the size alone
            data = file.read(size + 1)
            if len(data) != size:  # a device or a pipe has no size and may never end
                data += file.read(max_bytes + 1 - len(data))
    if len(data) > max_bytes:
        raise ServefitError(f"{path} does not end within {max_bytes:,} bytes.", hint="Is it the right file?")
    return data


def read_lines(path: Path, *, max_line_bytes: int = 16 * 2**20) -> Iterator[str]:
    """The lines of `read_text(path).splitlines()`, in the memory of one, of a file of any size. Raises ServefitError."""
    at = 0
    with _told(path), path.open("rb") as file:
        while data := file.readline(max_line_bytes + 1):
            if len(data) > max_line_bytes:
                raise ServefitError(
                    f"{path} has a line of more than {max_line_bytes:,} bytes.", hint="Is it the right file?"
                )
            yield from decode(data, path, at).splitlines()
            at += len(data)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Says in a sentence what stands in the way of reading."""
    try:
        yield
    except FileNotFoundError:
        raise ServefitError(f"{path} does not exist.", hint="Check the path; names are case-sensitive.") from None
    except IsADirectoryError:
        raise ServefitError(f"{path} is a folder, not a file.", hint="Name the file in it.") from None
    except NotADirectoryError:
        raise ServefitError(f"{path} does not exist: {path.parent} is no folder.", hint="Check the path.") from None
    except OSError as error:
        raise ServefitError(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from None


def decode(data: bytes, path: Path, at: int = 0) -> str:
    """`data`, from byte `at` of a file, as UTF-8 text without a BOM; raises ServefitError naming the byte that is not UTF-8."""
    try:
        return data.decode("utf-8" if at else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ServefitError(
            f"{path} is not UTF-8 text (byte {at + error.start}).", hint="Save it as UTF-8, or name another file."
        ) from None


def read_json(path: Path) -> Any:
    """The JSON value in the file. Raises ServefitError with line and column where it is not JSON."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ServefitError(
            f"{path} is not JSON: {error.msg} (line {error.lineno}, column {error.colno}).",
            hint="Is it the right file?",
        ) from None
    except ValueError:
        raise ServefitError(f"{path} holds a number of thousands of digits.", hint="Is it the right file?") from None
    except RecursionError:
        raise ServefitError(f"{path} is nested too deeply to be ours.", hint="Is it the right file?") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The TOML table in the file. Raises ServefitError with the parser's line where it is not TOML."""
    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise ServefitError(f"{path} is not TOML: {error}.", hint="Is it the right file?") from None


def structure(value: Any, kind: type[T], *, where: str) -> T:
    """`value` (from TOML or JSON) as the dataclass `kind`.

    Every fault is named in one sentence with its path (`required field missing @ $.targets.tpot_s`); a misspelt key is
    a fault. Raises ServefitError.
    """
    import cattrs  # lazy: a tenth of a second that `--help` must not pay

    converter = cattrs.Converter(forbid_extra_keys=True, prefer_attrib_converters=True)
    try:
        return converter.structure(value, kind)
    except Exception as error:  # noqa: BLE001 - cattrs raises groups of many kinds, all named below
        faults = [fault[:300] for fault in cattrs.transform_error(error)]
        more = f"; and {len(faults) - MAX_FAULTS:,} more" if len(faults) > MAX_FAULTS else ""
        raise ServefitError(
            f"{where}: {'; '.join(faults[:MAX_FAULTS])}{more}.", hint=f"See the reference for {kind.__name__}."
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write `text` (UTF-8, LF) whole or not at all: a reader sees the old file or the new one, never half of one."""
    write_bytes(path, text.encode("utf-8", "replace"))  # a server can send half a surrogate pair


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` whole or not at all. Raises ServefitError where the disk is full or the folder cannot be written.

    A link stays a link: the file that it names is written. A file that is there keeps its mode. What is no file (a pipe,
    /dev/null) is written to, never replaced.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as other:
                other.write(data)
            return
        path = _named(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        name = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less what the user's umask takes
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                name.chmod(mode)
            name.replace(path)
        except BaseException:
            name.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ServefitError(
            f"{path} cannot be written: {error.strerror}.", hint="Free some space, or name another folder with --out."
        ) from None


def real(path: Path) -> Path:
    """The path without links; unlike Path.resolve it takes links that only name each other, as they are."""
    return Path(os.path.realpath(path))


def _named(path: Path) -> Path:
    """The file that a link names, there or not yet. Raises OSError where links only name each other."""
    if not path.is_symlink():
        return path
    found = real(path)
    if found.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return found


def check_writable(path: Path) -> None:
    """Raise the ServefitError of `write_bytes` now: for what is written only after minutes of work."""
    if os.path.isdir(path):  # noqa: PTH112 - unlike Path.is_dir, it takes a name that is too long
        raise ServefitError(f"{path} is a folder, not a file.", hint="Name a file with --out.")
    try:
        if path.exists() and not path.is_file():
            if not os.access(path, os.W_OK):  # not opened: a pipe's reader would see its end
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        path = _named(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ServefitError(
            f"{path} cannot be written: {error.strerror}.", hint="Name another folder with --out."
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON for people: two spaces, keys as given, no NaN (null is how nothing is said)."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, or of a run folder's (see `records.content_sha256`)."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise ServefitError(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from None
    return digest.hexdigest()
