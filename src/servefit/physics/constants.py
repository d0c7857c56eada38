"""Engine constants: what an engine adds to the datasheet, published with source, date and error. None is fitted per row."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from servefit.errors import ServefitError
from servefit.facts.devices import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConstants:
    """How far one engine on one class of device stays from the datasheet: few numbers, published, with their error."""

    name: str
    title: str
    weights_eff: float
    """Of the datasheet bandwidth, while weights stream."""
    kv_eff: float
    """The same while the KV cache is read."""
    matmul_eff: float
    """Of the dense peak, in linear layers."""
    attention_eff: float
    """Of the dense peak, in attention."""
    p_norm: float
    const_s: float
    per_seq_s: float
    per_tok_s: float
    front_end_s: float
    source: str
    date: str
    error: str
    """What is known of the error where these constants were tried."""
    per_layer_s: float = 0.0
    """Overhead of a step for each layer: its launches."""
    experts_eff: float | None = None
    """Of the datasheet bandwidth, while routed experts stream; None: as the other weights."""
    matmul_fp8_eff: float | None = None
    """Of the dense FP8 peak; None: as in 16 bit."""
    error_frac: float = 0.15
    """What a plan allows a step's time to be off by, one way and the other."""
    kinds: tuple[str, ...] = ("gpu",)
    devices: tuple[str, ...] = ()
    """Where they were tried; on another device they are an extrapolation, and `origin` says so."""


@cache
def engine_constants() -> dict[str, EngineConstants]:
    """The published constants by name, each with source and stated error."""
    table = tomllib.loads(files("servefit.physics").joinpath("constants.toml").read_text("utf-8"))
    return {
        name: EngineConstants(
            name=name,
            **{**entry, "kinds": tuple(entry.get("kinds", ["gpu"])), "devices": tuple(entry.get("devices", ()))},
        )
        for name, entry in table.items()
    }


def find_constants(name: str) -> EngineConstants:
    """The constants of that name. Raises ServefitError with the names that are known."""
    found = engine_constants().get(name)
    if found is None:
        raise ServefitError(f"There are no engine constants '{name}'.", hint=f"Known: {', '.join(engine_constants())}.")
    return found


def constants_for(device: Device) -> EngineConstants | None:
    """The constants that were tried on this device, else the first of its kind; None where none are (CPUs).

    >>> from servefit.facts.devices import find_device
    >>> constants_for(find_device("rtx-4090")).name, constants_for(find_device("a100-80gb")).name
    ('vllm-4090', 'vllm')
    """
    known = engine_constants().values()
    tried = next((c for c in known if device.name in c.devices), None)
    return tried or next((c for c in known if device.kind in c.kinds), None)
