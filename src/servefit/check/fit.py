"""How big a model fits, and how fast it can type at most: the arithmetic of `check`, on paper.

budget   = usable fraction x memory                    0.7 x 36 GB = 25.2 GB
biggest  = budget / bytes per parameter                25.2 / 0.6125 = 41.1 billion, so about a 40B
room     = budget - weights, / KV bytes per token      25.2 - 40 x 0.6125 = 0.7 GB = 5,340 tokens of 128 KiB
ceiling  = bandwidth / bytes read per token            273 / 4.9 = 55.7 tok/s, 17.9 ms a token
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from servefit.errors import ServefitError
from servefit.facts.devices import CPU_USABLE_FRAC, GPU_USABLE_FRAC, UNIFIED_USABLE_FRAC, Device, Kind, find_devices
from servefit.facts.models import ModelShape
from servefit.facts.precisions import Precision, find_precision
from servefit.physics.memory import kv_bytes_per_tok, streamed_weight_bytes, weight_bytes
from servefit.physics.roofline import ceiling_tok_per_s
from servefit.units import GB, GIB

BAND_FRAC: Final = (0.60, 0.85)
"""The prior for real runs, as a share of the ceiling. Not a verdict."""
BAND_SOURCE: Final = (
    "a prior: public runs of this model at 4 bits reach 85% (M4, 120 GB/s) and 57% (M1 Max, 400 GB/s), llama.cpp "
    "discussion 4167; quantised small models on few cores 33 to 55% (llama-bench on a 2-core Xeon, 2026-11-30)"
)
SENTENCE_STEP: Final = 5 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One model in one budget at one bandwidth."""

    model: str
    precision: str
    params: int
    weight_bytes: int
    read_bytes: float
    """What one token reads at least: the weights without an input embedding of its own."""
    naive_bytes: float
    """What the precision's plain number of bits would give, without scales: 8B at 4 bit "is" 4.0 GB."""
    bits_per_weight: float
    room_bytes: float
    kv_bytes_per_tok: int
    ceiling_tok_per_s: float
    """Bandwidth over the whole weights, as people reckon it."""
    read_ceiling_tok_per_s: float
    """Bandwidth over what is read."""

    @property
    def fits(self) -> bool:
        """Whether the weights are within the budget."""
        return self.room_bytes >= 0

    @property
    def room_tok(self) -> int | None:
        """Tokens of this model's own KV cache in the room left; None where it does not fit."""
        return int(self.room_bytes // self.kv_bytes_per_tok) if self.fits and self.kv_bytes_per_tok else None

    @property
    def tpot_floor_s(self) -> float:
        """Seconds a token at the ceiling."""
        return 1 / self.ceiling_tok_per_s

    @property
    def band_tok_per_s(self) -> tuple[float, float] | None:
        """Tokens a second that real runs reach, by the prior; None below 1 GB, where fixed costs set the pace instead."""
        if self.weight_bytes < GB:
            return None
        return self.ceiling_tok_per_s * BAND_FRAC[0], self.ceiling_tok_per_s * BAND_FRAC[1]


def budget_bytes(memory_bytes: float, usable_frac: float) -> float:
    """Bytes for the weights and the KV cache: `usable_frac * memory`.

    >>> budget_bytes(36e9, 0.7) / 1e9
    25.2
    """
    return round(usable_frac * memory_bytes)


def usable_frac(kind: Kind) -> tuple[float, str]:
    """The usable share of the memory of a kind of device, and where that comes from: 70% only where memory is shared."""
    cited = {"unified": UNIFIED_USABLE_FRAC, "gpu": GPU_USABLE_FRAC, "cpu": CPU_USABLE_FRAC}[kind]
    return cited.value, f"{cited.status}: {cited.source}"


def bytes_per_param(weights_bytes: float, params: float) -> float:
    """Bytes per parameter, from a file's size: GB per billion is the same number.

    >>> bytes_per_param(4.9e9, 8.0e9)
    0.6125
    """
    return weights_bytes / params


def biggest_params(budget: float, per_param: float) -> float:
    """Parameters of the biggest dense model whose weights fill the budget.

    >>> round(biggest_params(25.2e9, 0.6125) / 1e9, 2)
    41.14
    """
    return budget / per_param


def rounded_down(params: float) -> int:
    """Parameters rounded down to whole steps of 5 billion, or of 1 billion, 100 or 10 million below: "about a 40B".

    >>> rounded_down(41.14e9), rounded_down(44.2e9), rounded_down(3.7e9), rounded_down(270e6)
    (40000000000, 40000000000, 3000000000, 200000000)
    """
    steps = (SENTENCE_STEP, 10**9, 10**8, 10**7)
    step = next((s for s in steps if params >= s), 1)
    return int(params // step * step)


def flop_per_byte(bytes_per_weight: float, seqs: int = 1) -> float:
    """Arithmetic intensity of decoding: two operations per weight and sequence, over the bytes of the weight.

    >>> round(flop_per_byte(0.6125), 2)
    3.27
    """
    return 2 * seqs / bytes_per_weight


def fit(model: ModelShape, precision: Precision | str | None, *, budget: float, bandwidth_bytes_per_s: float) -> Fit:
    """The model in the budget; `precision` None is what its file holds."""
    weights = weight_bytes(model, precision)
    read = streamed_weight_bytes(model, precision)
    p = find_precision(precision or "bf16")
    name = model.file.quant if precision is None and model.file else p.name
    plain = int(p.weight_bits) if precision is not None or not model.file else int(weights * 8 / model.params_total)
    return Fit(
        model=model.name, precision=name, params=model.params_total, weight_bytes=weights, read_bytes=read,
        naive_bytes=plain * model.params_total / 8, bits_per_weight=weights * 8 / model.params_total,
        room_bytes=budget - weights, kv_bytes_per_tok=kv_bytes_per_tok(model),
        ceiling_tok_per_s=ceiling_tok_per_s(bandwidth_bytes_per_s, weights),
        read_ceiling_tok_per_s=ceiling_tok_per_s(bandwidth_bytes_per_s, read),
    )  # fmt: skip


def biggest_that_fits(models: Iterable[ModelShape], precision: str, *, budget: float) -> ModelShape | None:
    """The model with the most parameters whose weights fit the budget; None where none does."""
    fitting = [m for m in models if weight_bytes(m, precision) <= budget]
    return max(fitting, key=lambda m: m.params_total, default=None)


def variants(chip: str, memory_bytes: int) -> tuple[Device, ...]:
    """The catalogue's devices that a chip's name means, those with this memory size first asked for.

    A chip that ships with two bandwidths is told apart by its memory: an M4 Max with 36 GB is the 410 GB/s part. Where no
    listed size is within 5%, every variant is returned. Empty where the chip is not in the catalogue.
    """
    plain = re.sub(r"\((?:R|TM)\)|\d+-Core.*|CPU.*|@.*", "", chip).strip()
    try:
        found = find_devices(plain)
    except ServefitError:
        return ()
    same = tuple(d for d in found if abs(d.memory_bytes - memory_bytes) <= 0.05 * d.memory_bytes)
    return same or found


def both_readings_bytes(box_gb: float, frac: float) -> tuple[float, float]:
    """The budget where "36 GB" on the box is read as 36 x 10^9 bytes, and where it is what it is, 36 x 2^30.

    >>> [round(x / 1e9, 1) for x in both_readings_bytes(36, 0.7)]
    [25.2, 27.1]
    """
    return budget_bytes(box_gb * GB, frac), budget_bytes(box_gb * GIB, frac)
