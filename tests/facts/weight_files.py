"""Weight files made on the spot: GGUF and safetensors with any header."""

import json
import struct
from pathlib import Path

from servefit.facts.headers import GGML_TYPES


def gguf_text(value: str) -> bytes:
    """A string as GGUF writes it: its length, its bytes."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _key(name: str, value: object) -> bytes:
    if isinstance(value, str):
        return gguf_text(name) + struct.pack("<I", 8) + gguf_text(value)
    if isinstance(value, list):
        items = b"".join(gguf_text(v) if isinstance(v, str) else struct.pack("<I", v) for v in value)
        return gguf_text(name) + struct.pack("<IIQ", 9, 8 if isinstance(value[0], str) else 4, len(value)) + items
    return gguf_text(name) + struct.pack("<II", 4, value)


def write_gguf(
    path: Path, keys: dict[str, object], tensors: list[tuple[str, tuple[int, ...], int]], *, cut: int = 0
) -> Path:
    """A GGUF file with these metadata and tensors, weights all zero; `cut` leaves out that many bytes at the end."""
    head, offset = b"", 0
    for name, shape, kind in tensors:
        _, block, size = GGML_TYPES[kind]
        values = 1
        for n in shape:
            values *= n
        head += gguf_text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        head += struct.pack("<IQ", kind, offset)
        offset += -(-(values // block * size) // 32) * 32
    meta = b"".join(_key(k, v) for k, v in keys.items())
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + meta + head
    data += bytes(-len(data) % 32 + offset)
    path.write_bytes(data[: len(data) - cut])
    return path


TINY = {
    "general.architecture": "llama", "general.name": "Tiny", "llama.block_count": 2, "llama.embedding_length": 64,
    "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.feed_forward_length": 128,
    "llama.context_length": 512, "tokenizer.ggml.tokens": ["a", "b"],
}  # fmt: skip
TENSORS = [("token_embd.weight", (64, 96), 8), ("output.weight", (64, 96), 1)] + [
    (f"blk.{i}.{name}.weight", shape, 2)
    for i in range(2)
    for name, shape in (("attn_q", (64, 64)), ("ffn_up", (64, 128)))
]


def write_safetensors(path: Path, table: dict[str, object], data: int) -> Path:
    """A safetensors file with this header and `data` zero bytes."""
    head = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + bytes(data))
    return path
