"""The head of a GGUF model file: is it whole, and how long is its context? Nothing of the weights is read.

Source: the GGUF specification, versions 2 and 3 (ggml-org/ggml, docs/gguf.md).
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from servefit.errors import ServefitError

_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_BLOCKS: Final = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
                  10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
                  24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2)}  # fmt: skip
"""Tensor type -> (values in a block, bytes of a block), for the types whose size we know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHead:
    """What the head of the file says."""

    architecture: str
    name: str
    context_tok: int | None
    tensors: int
    tensor_bytes: int
    """Bytes of all tensors whose type is known here."""
    file_bytes: int


def read_head(path: Path) -> GgufHead:
    """The file's head, checked against its size. Raises ServefitError where the file is missing, no GGUF or cut short."""
    try:
        with path.open("rb") as file:
            return _read(file, path, path.stat().st_size)
    except FileNotFoundError:
        raise ServefitError(f"The model file {path} does not exist.", hint="Check the path.") from None
    except OSError as error:
        raise ServefitError(
            f"The model file {path} cannot be read: {error.strerror}.", hint="Check the path."
        ) from None


def _damaged(path: Path, what: str) -> ServefitError:
    return ServefitError(f"The model file {path} is damaged: {what}.", hint="Install or download it again.")


def _read(file: BinaryIO, path: Path, size: int) -> GgufHead:
    if file.read(4) != b"GGUF":
        raise ServefitError(f"{path} is not a GGUF model file.", hint="Name a file that ends in .gguf.")
    try:
        version, tensors, keys = struct.unpack("<IQQ", file.read(20))
        if version not in (2, 3) or tensors > 10**6 or keys > 10**6:
            raise _damaged(path, f"its head says version {version}, {tensors} tensors")
        values = {}
        for _ in range(keys):
            name = _string(file, size)
            values[name] = _value(file, struct.unpack("<I", file.read(4))[0], size)
        end = total = 0
        for _ in range(tensors):
            last, data = _tensor(file, size)
            end, total = max(end, last), total + data
    except (struct.error, ValueError, OverflowError, MemoryError, RecursionError):
        raise _damaged(path, f"its head breaks off or makes no sense ({size:,} bytes)") from None
    align = int(values.get("general.alignment", 32)) or 32
    needed = -(-file.tell() // align) * align + end
    if needed > size:
        raise _damaged(path, f"it has {size:,} bytes where its head promises {needed:,}")
    arch = str(values.get("general.architecture", ""))
    context = values.get(f"{arch}.context_length")
    return GgufHead(architecture=arch, name=str(values.get("general.name", "")), context_tok=int(context) if context else None,
                    tensors=tensors, tensor_bytes=total, file_bytes=size)  # fmt: skip


def _string(file: BinaryIO, limit: int) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > limit:
        raise ValueError("longer than the file")
    return file.read(length).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int, limit: int) -> Any:
    if kind == _STRING:
        return _string(file, limit)
    if kind == _ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if count > limit:
            raise ValueError("longer than the file")
        if inner in _SCALARS:
            file.seek(struct.calcsize(_SCALARS[inner]) * count, 1)
        else:
            for _ in range(count):
                _value(file, inner, limit)
        return None
    if kind not in _SCALARS:
        raise ValueError("unknown kind")
    return struct.unpack(_SCALARS[kind], file.read(struct.calcsize(_SCALARS[kind])))[0]


def _tensor(file: BinaryIO, limit: int) -> tuple[int, int]:
    """(end of the tensor's data after the start of all data, its bytes)."""
    _string(file, limit)
    (dims,) = struct.unpack("<I", file.read(4))
    if dims > 8:
        raise ValueError("too many dimensions")
    count = 1
    for extent in struct.unpack(f"<{dims}Q", file.read(8 * dims)):
        count *= extent
    kind, offset = struct.unpack("<IQ", file.read(12))
    block, block_bytes = _BLOCKS.get(kind, (1, 0))
    data = count // block * block_bytes
    return offset + data, data
