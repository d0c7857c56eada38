"""Where the memory of one candidate goes: what is fixed, what each seat takes, how many seats fit."""

import math
from collections.abc import Sequence

from servefit.errors import ServefitError
from servefit.physics.memory import (
    KvPool,
    activation_bytes,
    block_bytes,
    kv_bytes,
    kv_pool,
    request_blocks,
    weight_bytes,
)
from servefit.plan.bases import Row
from servefit.plan.plan import Memory

SURE_Z = 3.09
"""Of the normal distribution: 99.9% of it lies below."""


def memory_of(
    row: Row,
    *,
    seats: int,
    budget_tok: int,
    block_tok: int,
    contexts_tok: Sequence[int],
    padded: bool = False,
    logged_blocks: int | None = None,
) -> Memory:
    """The memory of one replica (of one device's share where it is spread over several), in bytes.

    `contexts_tok` are the requests' lengths, prompt and answer. `padded` for policies that give every seat the longest
    request's room (static, dynamic). What the KV cache of `seats` requests needs is their blocks at their end, all at
    once: seats x mean + 3.09 x sqrt(seats) x standard deviation (99.9% of such sums are below it), never more than
    seats x longest and never less than the longest. With fixed lengths it is seats x length exactly.
    """
    model, kv_bits, tp = row.model, row.kv_bits, row.tp
    longest = max(contexts_tok)
    blocks = [
        request_blocks(model, tok, kv_bits=kv_bits, block_tok=block_tok, tp=tp) for tok in sorted(set(contexts_tok))
    ]
    by_tok = dict(zip(sorted(set(contexts_tok)), blocks, strict=True))
    per_request = [by_tok[tok] for tok in contexts_tok]
    block = block_bytes(model, kv_bits, block_tok, tp)
    most = max(1, *per_request)
    wanted = seats * most if padded else _together(per_request, seats)
    pool = _pool(row, budget_tok=budget_tok, seats=seats, block_tok=block_tok, logged_blocks=logged_blocks)
    if pool is None:
        usable = row.device.usable_bytes
        weights = math.ceil(weight_bytes(model, row.precision) / tp)
        activations, overhead, pool_blocks = activation_bytes(model, budget_tok, seats), 0, 0
    else:
        usable, weights = pool.usable_bytes, pool.weight_bytes
        activations, overhead, pool_blocks = pool.activation_bytes, pool.overhead_bytes, pool.blocks
        if pool.logged:  # the engine's own count wins: what it leaves for the cache is what there is
            usable = weights + activations + overhead + pool_blocks * block
    return Memory(
        usable_bytes=usable,
        weight_bytes=weights,
        activation_bytes=activations,
        overhead_bytes=overhead,
        kv_bytes_per_tok=kv_bytes(model, longest, kv_bits) / longest,
        kv_per_seat_bytes=most * block,
        # in blocks of `block_tok` tokens: layers that stop growing (sliding windows) let the pool hold more of them
        kv_pool_blocks=pool_blocks * math.ceil(longest / block_tok) // most,
        block_tok=block_tok,
        kv_peak_blocks=None,
        seats_that_fit=pool_blocks // most,
        needed_bytes=weights + activations + overhead + wanted * block,
    )


def _pool(row: Row, *, budget_tok: int, seats: int, block_tok: int, logged_blocks: int | None) -> KvPool | None:
    """The engine's pool; None where the weights leave no room for one."""
    try:
        return kv_pool(
            row.model,
            row.device,
            row.precision,
            budget_tok,
            seats=seats,
            kv_bits=row.kv_bits,
            block_tok=block_tok,
            tp=row.tp,
            logged_blocks=logged_blocks,
        )
    except ServefitError:
        return None


def _together(per_request: Sequence[int], seats: int) -> int:
    """Blocks that `seats` requests need at their end together, 99.9% sure."""
    n = len(per_request)
    mean = math.fsum(per_request) / n
    sd = math.sqrt(math.fsum((b - mean) ** 2 for b in per_request) / n)
    longest = max(per_request)
    likely = math.ceil(seats * mean + SURE_Z * math.sqrt(seats) * sd - 1e-9)
    return min(max(likely, longest), seats * longest)
