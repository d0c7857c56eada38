"""What a rule may look at: the case (a typical wait, its tail, a comparison, the machine's walls, the run's rows)."""

from dataclasses import dataclass
from typing import Literal

from servefit.explain.decompose import Observed
from servefit.explain.features import Features
from servefit.facts.devices import find_device
from servefit.facts.models import find_model
from servefit.physics.memory import kv_bytes_per_tok, streamed_weight_bytes
from servefit.physics.roofline import model_peak, peak_flop_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """The walls of one model on one device; None where not known. Bytes and FLOP are of one decode step, one sequence."""

    weight_bytes: float | None = None
    """Weights read per token."""
    kv_bytes_per_tok: float | None = None
    bandwidth_bytes_per_s: float | None = None
    flop_per_s: float | None = None
    active_params: float | None = None
    origin: str = ""
    """Where these come from: datasheet, file size, typed."""

    def floor_itl_s(self, context: int) -> float | None:
        """Seconds that the bytes of one token take at full bandwidth at this context; None where a part is unknown."""
        if self.weight_bytes is None or self.bandwidth_bytes_per_s is None:
            return None
        return (self.weight_bytes + (self.kv_bytes_per_tok or 0.0) * context) / self.bandwidth_bytes_per_s


def wall_of(model_name: str | None, device_name: str | None, precision: str | None = None) -> Wall:
    """The walls of a model on a device, from the catalogue: bytes a token, bandwidth, peak arithmetic.

    Raises ServefitError for a name that the catalogue does not know (the nearest is suggested).

    >>> wall = wall_of("llama-3.1-8b", "h100-sxm", "bf16")
    >>> wall.kv_bytes_per_tok, round((wall.weight_bytes or 0) / 1e9, 2)
    (131072.0, 15.01)
    """
    model = find_model(model_name) if model_name else None
    device = find_device(device_name) if device_name else None
    peak = None
    if device:
        peak = model_peak(model, device, precision) if model else peak_flop_per_s(device, precision)
    said = []
    if model:
        said.append(f"{model.title} ({precision or (model.file.quant if model.file else 'bf16')})")
    if device:
        said.append(device.title)
    return Wall(
        weight_bytes=streamed_weight_bytes(model, precision) if model else None,
        kv_bytes_per_tok=float(kv_bytes_per_tok(model)) if model else None,
        active_params=float(model.params_active) if model else None,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s if device else None,
        flop_per_s=peak.value if peak else None, origin=" on ".join(said),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One wait to be explained. `features` is None for typed numbers."""

    seen: Observed
    ttft_p95_s: float | None = None
    itl_p95_s: float | None = None
    n: int | None = None
    """How many requests the percentiles rest on."""
    wall: Wall = Wall()
    short: Observed | None = None
    """The same server with a short prompt, or another run to compare with."""
    features: Features | None = None

    @property
    def whose(self) -> str:
        """Whose figures `seen` has, said behind one of them: of a run, the request in the middle; typed numbers are as typed."""
        return " (the request at p50 of TTFT)" if self.features is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause that a rule found: what it saw (with numbers), what would confirm it, and how sure that makes it."""

    code: str
    title: str
    half: Literal["start", "type", "measurement"]
    saw: str
    confirm: str
    certainty: Literal["shown", "likely", "possible"]
    """"shown": the server or plain arithmetic says so; "likely": the pattern fits this cause and not its neighbours."""
    weight_s: float = 0.0
    """Seconds of the typical or the slow wait that it accounts for: causes are listed by this."""
    value: float | None = None
    """The rule's own number, where it has one (the context in tokens, the ratio), for tests and for `--json`."""
