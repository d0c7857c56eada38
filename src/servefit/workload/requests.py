"""What is asked: a request, and a workload that makes the same requests for every candidate from one seed."""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

PREFIX_BLOCK_TOK = 16
"""Tokens of one block that our own schedules hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a schedule. `due_s` counts from the start; in a closed loop it is set when a user is free."""

    id: int
    due_s: float
    isl: int
    osl: int
    prefix: tuple[int, ...] = ()
    """Hashes of the prompt's leading blocks, where prefixes are shared (as in Mooncake traces)."""
    prefix_block_tok: int = PREFIX_BLOCK_TOK
    """Tokens of one of those blocks: 16 in our own schedules, 512 in Mooncake traces."""
    session: int | None = None
    priority: int = 0
    """Lower is served first."""


def stream(seed: int, purpose: str) -> random.Random:
    """A random stream of its own for one purpose, so that drawing lengths never moves the arrivals.

    >>> stream(1, "arrivals").random() == stream(1, "arrivals").random() != stream(1, "lengths").random()
    True
    """
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def schedule_sha256(requests: Sequence[Request]) -> str:
    """Hex SHA-256 of a schedule: the same seed gives the same on any machine, since times are whole microseconds."""
    digest = hashlib.sha256()
    for r in requests:
        row = [r.id, round(r.due_s * 1e6), r.isl, r.osl, list(r.prefix), r.session, r.priority]
        digest.update(json.dumps(row, separators=(",", ":")).encode())
    return digest.hexdigest()
