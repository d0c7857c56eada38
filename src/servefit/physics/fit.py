"""How big a model fits and how fast it types at most, in one breath: two numbers of a machine answer both."""

from dataclasses import dataclass

from servefit.physics.roofline import ceiling_tok_per_s
from servefit.units import fmt, fmt_bytes

BAND_FRAC = (0.60, 0.85)
"""Where runs of large models usually land between nothing and the ceiling. A prior, no verdict: 57 % and 85 % were both
seen for an 8B at 4 bit (M1 Max, M4; llama.cpp discussion 4167 and public runs), small models on few cores reach less."""
BYTES_PER_PARAM = 4.9e9 / 8e9
"""A dense model at 4 bit with its scales: an 8B file of 4.9 GB, 0.6125 bytes a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The biggest dense model that a memory holds, and the ceiling of its pace."""

    memory_bytes: int
    usable_frac: float
    budget_bytes: float
    bytes_per_param: float
    biggest_params: float
    """Exactly what the budget holds."""
    say_params: float
    """The same rounded down to 5 billion (below 10 billion: to half a billion), for the sentence."""
    say_bytes: float
    room_bytes: float
    """Left for the KV cache beside a model of `say_params`."""
    room_tok: int
    ceiling_tok_per_s: float | None
    """Of a model of `say_params`, one stream; None without a bandwidth."""

    def sentence(self) -> str:
        """Size and pace in one sentence.

        >>> largest_dense(36_000_000_000, 273e9).sentence()
        'Holds about a 40B model at 4.9 bits a weight (24.50 GB of 25.20 GB); it types at most 11.1 tok/s.'
        """
        size = f"{fmt(self.say_params / 1e9, 0 if self.say_params >= 1e10 else 1)}B"
        pace = f"; it types at most {fmt(self.ceiling_tok_per_s, 1)} tok/s" if self.ceiling_tok_per_s else ""
        bits = fmt(self.bytes_per_param * 8, 1)
        return f"Holds about a {size} model at {bits} bits a weight ({fmt_bytes(self.say_bytes)} of {fmt_bytes(self.budget_bytes)}){pace}."


def largest_dense(
    memory_bytes: int,
    bandwidth_bytes_per_s: float | None = None,
    *,
    usable_frac: float = 0.70,
    bytes_per_param: float = BYTES_PER_PARAM,
    kv_bytes_per_tok: int = 131_072,
) -> Fit:
    """The biggest dense model in `usable_frac` of the memory, the room beside it, and its ceiling.

    budget = usable * memory; biggest = budget / bytes per parameter; ceiling = bandwidth / bytes. 36 GB at 70 %:

    >>> fit = largest_dense(36_000_000_000, 273e9)
    >>> fit.budget_bytes / 1e9, round(fit.biggest_params / 1e9, 2), round(fit.ceiling_tok_per_s, 1)
    (25.2, 41.14, 11.1)
    >>> round(fit.room_bytes / 1e9, 2), fit.room_tok
    (0.7, 5340)

    Left out: working memory of the engine (a few hundred MB). `usable_frac` is a convention for unified memory.
    """
    budget = round(usable_frac * memory_bytes)
    biggest = budget / bytes_per_param
    unit = 5e9 if biggest >= 1e10 else 5e8
    say = biggest // unit * unit
    size = say * bytes_per_param
    ceiling = ceiling_tok_per_s(bandwidth_bytes_per_s, size) if bandwidth_bytes_per_s and size else None
    return Fit(
        memory_bytes=memory_bytes, usable_frac=usable_frac, budget_bytes=budget, bytes_per_param=bytes_per_param,
        biggest_params=biggest, say_params=say, say_bytes=size, room_bytes=budget - size,
        room_tok=int((budget - size) / kv_bytes_per_tok), ceiling_tok_per_s=ceiling,
    )  # fmt: skip


def band_tok_per_s(ceiling: float) -> tuple[float, float]:
    """Tokens per second between which large models usually land: 60 to 85 % of the ceiling.

    >>> low, high = band_tok_per_s(55.714)
    >>> round(low, 1), round(high, 1)
    (33.4, 47.4)
    """
    return ceiling * BAND_FRAC[0], ceiling * BAND_FRAC[1]


def intensity_flop_per_byte(bytes_per_weight: float, batch: int = 1) -> float:
    """Arithmetic per byte of weights read in a decode step: two operations a weight and sequence.

    >>> round(intensity_flop_per_byte(4.9e9 / 8e9), 2)
    3.27
    """
    return 2 * batch / bytes_per_weight
