"""What one machine can serve, by the datasheet: the capacity behind a price per request, and what one change does to it."""

from servefit.bill.cost import Shape, Variant
from servefit.errors import ServefitError
from servefit.facts.devices import Device
from servefit.facts.models import ModelShape
from servefit.physics.memory import kv_pool
from servefit.physics.roofline import roofline_step
from servefit.physics.steptime import StepTime, step_s


def capacity_req_per_s(step: StepTime, shape: Shape, seats: int) -> float:
    """Requests a second at full seats: 1 / (reading the fresh prompt + (answer - 1) steps, each shared by the seats).

    Latency targets are not asked about, and `step` without measured overhead makes it an upper bound: a plan does both.

    >>> step = StepTime(const_s=0.010, per_prefill_tok_s=0.001)
    >>> round(capacity_req_per_s(step, Shape(isl=90, osl=101), seats=10), 3)
    5.0
    """
    fresh, osl = shape.isl - shape.cached_tok, shape.osl or 1
    context = shape.isl + osl // 2
    reading = step_s(step, seqs=0, kv_tok=0, prefill_tok=fresh, prefill_pos=fresh * (shape.cached_tok + fresh // 2))
    writing = (osl - 1) * step_s(step, seqs=seats, kv_tok=seats * context) / seats
    return 1 / (reading + writing)


def seats_in_memory(model: ModelShape, device: Device, precision: str | None, shape: Shape, kv_bits: float = 16) -> int:
    """How many such requests fit in the device's memory beside the weights; 0 where the weights alone do not fit."""
    try:
        pool = kv_pool(model, device, precision, kv_bits=kv_bits)
    except ServefitError:
        return 0
    each = -(-(shape.isl + (shape.osl or 1)) // pool.block_tok)
    return int(pool.blocks // each)


def variants(
    model: ModelShape, device: Device, precision: str | None, shape: Shape, seats: int, *, stable_tok: int | None = None
) -> tuple[float, tuple[Variant, ...]]:
    """The capacity as asked, and with one thing changed at a time: precision, KV precision, seats, caching.

    Raises ServefitError where what was asked does not fit in memory.
    """
    fit = seats_in_memory(model, device, precision, shape)
    if fit < seats:
        raise ServefitError(
            f"{seats} requests of {shape.isl + (shape.osl or 1):,} tokens do not fit beside {model.title} on {device.title}: {fit} do.",
            hint="Fewer seats, fewer bits per weight, or a larger device.",
        )
    step = roofline_step(model, device, precision)
    base = capacity_req_per_s(step, shape, seats)
    found: list[Variant] = []
    for other in ("fp8", "awq"):
        if other != (precision or "bf16") and seats_in_memory(model, device, other, shape) >= seats:
            served = capacity_req_per_s(roofline_step(model, device, other), shape, seats)
            found.append(
                Variant(factor=f"weights in {other}", capacity_req_per_s=served, how="datasheet; check the answers")
            )
    served = capacity_req_per_s(roofline_step(model, device, precision, 8), shape, seats)
    found.append(
        Variant(
            factor="8-bit KV cache", capacity_req_per_s=served, how="fewer KV bytes a step, twice the seats in memory"
        )
    )
    for count in (seats // 2, seats * 2):
        if 1 <= count <= fit:
            served = capacity_req_per_s(step, shape, count)
            found.append(
                Variant(factor=f"{count} seats", capacity_req_per_s=served, how="each user's pace changes too")
            )
    if stable_tok and not shape.cached_tok:
        cached = Shape(isl=shape.isl, osl=shape.osl, cached_tok=min(stable_tok, shape.isl - 1))
        found.append(
            Variant(
                factor="prefix caching",
                capacity_req_per_s=capacity_req_per_s(step, cached, seats),
                how=f"{cached.cached_tok:,} tokens read once",
            )
        )
    return base, tuple(found)
