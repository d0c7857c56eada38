"""Headers of weight files, GGUF and safetensors: read without the weights, bounded, and never trusted.

Every length in a header is checked against what the file still holds before anything of that size is read, so a file of
a hundred bytes that claims a terabyte is refused in a sentence.
"""

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from servefit.errors import ServefitError
from servefit.units import fmt_bytes

MAX_HEADER_BYTES = 128 * 2**20
"""Tokenizers of 300,000 entries take about 10 MB; no real header comes near."""
MAX_ITEMS = 1_000_000
KEPT_ITEMS = 4_096
"""Longer arrays (token lists) are passed over; only their length is kept, under `<key>#`."""

# ggml type number -> (name, weights in a block, bytes of a block)
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip

_SAFE_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
              "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a file: its shape as written there, and the bytes that it takes."""

    name: str
    shape: tuple[int, ...]
    kind: str
    bytes: int

    @property
    def values(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a weight file says about itself."""

    path: str
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors, padding between them left out."""
        return sum(t.bytes for t in self.tensors)


class _Reader:
    """Reads a file forward and refuses to read what is not there."""

    def __init__(self, file: BinaryIO, size: int, path: Path) -> None:
        self.file, self.size, self.path = file, size, path

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if not 0 <= count <= self.size - self.file.tell():
            raise _broken(self.path, f"it ends before the {count:,} bytes that its header announces")
        if self.file.tell() + count > MAX_HEADER_BYTES:
            raise _broken(self.path, f"its header is larger than {fmt_bytes(MAX_HEADER_BYTES)}")
        return self.file.read(count)

    def number(self, code: str) -> Any:
        """The next little-endian number of this struct code."""
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def count(self, what: str, most: int = MAX_ITEMS) -> int:
        """A count that is not absurd."""
        value = int(self.number("Q"))
        if value > most:
            raise _broken(self.path, f"it announces {value:,} {what}")
        return value

    def text(self) -> str:
        """The next string; bytes that are not UTF-8 are kept visible."""
        return self.take(self.count("bytes of text", MAX_HEADER_BYTES)).decode("utf-8", "backslashreplace")


def _broken(path: Path, why: str) -> ServefitError:
    return ServefitError(f"{path} is no weight file that can be read: {why}.", hint="Is the download complete?")


def _open(path: Path, read: Callable[[_Reader], Header]) -> Header:
    try:
        with path.open("rb") as file:
            return read(_Reader(file, path.stat().st_size, path))
    except FileNotFoundError:
        raise ServefitError(f"{path} does not exist.", hint="Check the path; names are case-sensitive.") from None
    except OSError as error:
        raise ServefitError(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from None


def read_gguf(path: Path) -> Header:
    """Metadata and tensors of a GGUF file (version 2 or 3). Raises ServefitError for anything else."""
    return _open(path, _read_gguf)


def _read_gguf(reader: _Reader) -> Header:
    path = reader.path
    if reader.size < 24 or reader.take(4) != b"GGUF":
        raise _broken(path, "it does not begin with GGUF")
    version = reader.number("I")
    if version not in {2, 3}:
        raise _broken(path, f"it is GGUF version {version}, and 2 and 3 are known")
    n_tensors, n_keys = reader.count("tensors"), reader.count("metadata keys")
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        name = reader.text()
        value = _gguf_value(reader, reader.number("I"), depth=0)
        if isinstance(value, _Length):
            metadata[name + "#"] = value.items
        else:
            metadata[name] = value
    tensors, end = [], 0
    for _ in range(n_tensors):
        tensor, offset = _gguf_tensor(reader)
        tensors.append(tensor)
        end = max(end, offset + tensor.bytes)
    if len({t.name for t in tensors}) < len(tensors):
        raise _broken(path, "a tensor is listed twice")
    align = metadata.get("general.alignment", 32)
    align = align if isinstance(align, int) and 0 < align <= 2**20 else 32
    start = -(-reader.file.tell() // align) * align
    if start + end > reader.size:
        raise _broken(
            path, f"it holds {fmt_bytes(reader.size)} of the {fmt_bytes(start + end)} that its header announces"
        )
    return Header(path=str(path), metadata=metadata, tensors=tuple(tensors))


@dataclass(frozen=True, slots=True)
class _Length:
    items: int


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def _gguf_value(reader: _Reader, kind: int, depth: int) -> Any:
    if kind in _SCALARS:
        return reader.number(_SCALARS[kind])
    if kind == 8:
        return reader.text()
    if kind != 9 or depth > 3:
        raise _broken(reader.path, f"it holds a metadata value of kind {kind}")
    inner, items = reader.number("I"), reader.count("items in a list", 2 * MAX_ITEMS)
    if inner in _SCALARS:
        data = reader.take(items * struct.calcsize("<" + _SCALARS[inner]))
        return _Length(items) if items > KEPT_ITEMS else list(struct.unpack(f"<{items}{_SCALARS[inner]}", data))
    values = []
    for _ in range(items):
        value = _gguf_value(reader, inner, depth + 1)
        if items <= KEPT_ITEMS:
            values.append(value)
    return values if items <= KEPT_ITEMS else _Length(items)


def _gguf_tensor(reader: _Reader) -> tuple[Tensor, int]:
    name, rank = reader.text(), reader.number("I")
    if rank > 8:
        raise _broken(reader.path, f"tensor {name[:80]!r} has {rank} dimensions")
    shape = tuple(int(reader.number("Q")) for _ in range(rank))
    kind, offset = reader.number("I"), int(reader.number("Q"))
    if kind not in GGML_TYPES:
        raise _broken(reader.path, f"tensor {name[:80]!r} has the number format {kind}, which is not known here")
    label, block, size = GGML_TYPES[kind]
    values = math.prod(shape)
    if values > 2**48 or offset > 2**56 or (shape and shape[0] % block):
        raise _broken(reader.path, f"tensor {name[:80]!r} has an impossible size")
    return Tensor(name=name, shape=shape, kind=label, bytes=values // block * size), offset


def read_safetensors(path: Path) -> Header:
    """Metadata and tensors of a safetensors file. Raises ServefitError for anything else."""
    return _open(path, _read_safetensors)


def _read_safetensors(reader: _Reader) -> Header:
    path = reader.path
    if reader.size < 8:
        raise _broken(path, "it is shorter than a header")
    length = reader.count("bytes of header", 100 * 10**6)
    text = reader.take(length)
    try:
        table = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise _broken(path, "its header is not JSON") from None
    if not isinstance(table, dict):
        raise _broken(path, "its header is no table")
    metadata = table.pop("__metadata__", {})
    tensors = tuple(_safe_tensor(path, name, entry, reader.size - 8 - length) for name, entry in table.items())
    return Header(path=str(path), metadata=metadata if isinstance(metadata, dict) else {}, tensors=tensors)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def _safe_tensor(path: Path, name: str, entry: Any, room: int) -> Tensor:
    try:
        kind, shape = str(entry["dtype"]), tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        sizes_ok = all(type(n) is int and 0 <= n < 2**48 for n in (*shape, begin, end)) and begin <= end <= room
    except (KeyError, TypeError, ValueError):
        sizes_ok = False
    if not sizes_ok:
        raise _broken(path, f"tensor {name[:80]!r} lies outside the file or has no shape")
    if kind not in _SAFE_BITS:
        raise _broken(path, f"tensor {name[:80]!r} has the number format {kind[:20]!r}, which is not known here")
    if math.prod(shape) * _SAFE_BITS[kind] // 8 != end - begin:
        raise _broken(path, f"tensor {name[:80]!r} has a size that is not its shape's")
    return Tensor(name=name, shape=shape, kind=kind, bytes=end - begin)
