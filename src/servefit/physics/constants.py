"""Engine constants: what an engine adds to the datasheet, published with source, date and error. None is fitted per row."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from servefit.errors import ServefitError


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
    kinds: tuple[str, ...] = ("gpu",)


@cache
def engine_constants() -> dict[str, EngineConstants]:
    """The published constants by name, each with source and stated error."""
    table = tomllib.loads(files("servefit.physics").joinpath("constants.toml").read_text("utf-8"))
    return {
        name: EngineConstants(name=name, **{**entry, "kinds": tuple(entry.get("kinds", ["gpu"]))})
        for name, entry in table.items()
    }


def find_constants(name: str) -> EngineConstants:
    """The constants of that name. Raises ServefitError with the names that are known."""
    found = engine_constants().get(name)
    if found is None:
        raise ServefitError(f"There are no engine constants '{name}'.", hint=f"Known: {', '.join(engine_constants())}.")
    return found
