"""Devices: memory, bandwidth, peaks and links, each figure with its source. `find_device("rtx 4090")`."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from servefit.errors import ServefitError
from servefit.facts.cited import Cited, Status
from servefit.facts.names import key, pick
from servefit.files import read_toml
from servefit.units import GB, GIB, fmt, parse_bytes

Kind = Literal["gpu", "unified", "cpu"]

UNIFIED_USABLE_FRAC = Cited(
    value=0.70, source="rule of thumb: the rest is for the system and other programs", status="assumed"
)
GPU_USABLE_FRAC = Cited(value=0.90, source="vLLM's default gpu_memory_utilization", date="2026-11-30", status="seen")
CPU_USABLE_FRAC = Cited(
    value=0.70, source="rule of thumb: the rest is for the system and other programs", status="assumed"
)
_FRAC: dict[Kind, Cited] = {"gpu": GPU_USABLE_FRAC, "unified": UNIFIED_USABLE_FRAC, "cpu": CPU_USABLE_FRAC}

# key in the TOML file -> (field of Device, factor to the unit inside)
_FIGURES: dict[str, tuple[str, float]] = {
    "memory_bytes": ("memory_bytes", 1),
    "memory_gib": ("memory_bytes", GIB),
    "memory_gb": ("memory_bytes", GB),
    "bandwidth_gb_per_s": ("bandwidth_bytes_per_s", GB),
    "bf16_tflop_per_s": ("flop_per_s", 1e12),
    "fp8_tflop_per_s": ("flop_fp8_per_s", 1e12),
    "fp4_tflop_per_s": ("flop_fp4_per_s", 1e12),
    "int8_top_per_s": ("flop_int8_per_s", 1e12),
    "link_gb_per_s": ("link_bytes_per_s", GB),
    "link_latency_us": ("link_latency_s", 1e-6),
    "usable_memory_frac": ("usable_memory_frac", 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device. None is a figure that nobody has: what needs it says so instead of assuming."""

    name: str
    title: str
    kind: Kind
    memory_bytes: int
    """What the runtime reports where known, else the size on the box in GiB."""
    bandwidth_bytes_per_s: float
    flop_per_s: float | None = None
    """Dense 16-bit matrix peak, never with sparsity."""
    flop_fp8_per_s: float | None = None
    flop_fp4_per_s: float | None = None
    flop_int8_per_s: float | None = None
    link_bytes_per_s: float | None = None
    """To another device of the same host, one direction."""
    link_latency_s: float | None = None
    usable_memory_frac: float = 0.7
    """How much of the memory a model, its KV cache and its working space may take."""
    note: str = ""
    cited: Mapping[str, Cited] = field(default_factory=dict, hash=False)
    """Source, date and status of each figure above, under its field name."""

    def cite(self, figure: str) -> Cited:
        """Where the figure (a field name) comes from; "given" where a device was made by hand."""
        value = getattr(self, figure)
        return self.cited.get(figure) or Cited(value=float(value or 0.0), source="given", status="given")

    @property
    def usable_bytes(self) -> int:
        """Memory that a model may take: `usable_memory_frac * memory_bytes`, whole bytes."""
        return int(self.usable_memory_frac * self.memory_bytes)

    @property
    def doubtful(self) -> tuple[str, ...]:
        """The fields whose figures are disputed, unverified or assumed: said wherever they are printed."""
        return tuple(name for name, cited in self.cited.items() if cited.doubtful)


def find_device(name: str) -> Device:
    """The device that `name` means, any spelling, or the device in the TOML file that it names.

    Raises ServefitError for an unknown name (the nearest are suggested) and for one that is several devices.
    """
    if name.endswith(".toml"):
        return load_device(Path(name))
    devices = _catalogue()
    return devices[pick(name, devices, _aliases(), what="device", listing="servefit devices")]


def find_devices(name: str) -> tuple[Device, ...]:
    """Every device that `name` may mean: one, or all variants of an ambiguous name (to show the range)."""
    found = _aliases().get(key(name))
    if found and key(name) not in {key(slug) for slug in _catalogue()}:
        return tuple(_catalogue()[slug] for slug in found)
    return (find_device(name),)


def all_devices() -> tuple[Device, ...]:
    """The catalogue, in the order of its file."""
    return tuple(_catalogue().values())


def load_device(path: Path) -> Device:
    """The device in a TOML file of six numbers (or fewer), each a bare number or [value, source, status].

        title = "My workstation"
        kind = "gpu"                 # gpu, unified or cpu
        memory_gib = 24              # or memory_gb, memory_bytes, memory = "24 GiB"
        bandwidth_gb_per_s = 1008
        bf16_tflop_per_s = 165.2     # optional, with fp8_tflop_per_s, int8_top_per_s
        link_gb_per_s = 32           # optional, with link_latency_us
        usable_memory_frac = 0.9     # optional

    Raises ServefitError naming what is missing, misspelt or impossible.
    """
    table = read_toml(path)
    return _device(path.stem, table, sources={}, date=str(table.pop("date", "")), where=str(path))


@cache
def _catalogue() -> dict[str, Device]:
    table = tomllib.loads(files("servefit.facts").joinpath("devices.toml").read_text("utf-8"))
    sources = {k: " ".join(filter(None, (v["text"], v.get("url", "")))) for k, v in table["sources"].items()}
    return {
        slug: _device(slug, dict(entry), sources=sources, date=table["date"], where=f"devices.toml, {slug}")
        for slug, entry in table["devices"].items()
    }


@cache
def _aliases() -> dict[str, tuple[str, ...]]:
    """Spellings beside the slugs: the file's own, titles, and what a slug is without its memory size or last word."""
    table = tomllib.loads(files("servefit.facts").joinpath("devices.toml").read_text("utf-8"))["devices"]
    spelt: dict[str, tuple[str, ...]] = {}
    for slug in table:
        base = re.sub(r"-\d+gb(?=-|$)", "", slug)
        for short in {base, re.sub(r"-(sxm|pcie|nvl)$", "", base)} - {slug}:
            spelt[key(short)] = (*spelt.get(key(short), ()), slug)
    for slug, entry in table.items():
        for alias in (entry["title"], *entry.get("aliases", ())):
            spelt[key(alias)] = (slug,)
    return spelt


def _device(slug: str, table: dict[str, Any], *, sources: Mapping[str, str], date: str, where: str) -> Device:
    cited: dict[str, Cited] = {}
    table = dict(table)
    if isinstance(table.get("memory"), str):
        table["memory_bytes"] = parse_bytes(table.pop("memory"))
    kind = table.pop("kind", "gpu")
    if kind not in _FRAC:
        raise ServefitError(f"{where}: kind = {kind!r} is no kind of device.", hint="Use gpu, unified or cpu.")
    title, note = str(table.pop("title", slug)), str(table.pop("note", ""))
    table.pop("aliases", None)
    for name, raw in table.items():
        if name not in _FIGURES:
            raise ServefitError(
                f"{where}: '{name}' is not a figure of a device.", hint=f"Known: {', '.join(_FIGURES)}."
            )
        target, scale = _FIGURES[name]
        value, source, status = raw if isinstance(raw, list) and len(raw) == 3 else (raw, "given", "given")
        if status not in get_args(Status):
            raise ServefitError(
                f"{where}: {name} has the status {status!r}.", hint=f"Use {', '.join(get_args(Status))}."
            )
        cited[target] = _figure(
            value, scale, sources.get(str(source), str(source)), date, status, where=f"{where}: {name}"
        )
    for needed, example in (
        ("memory_bytes", "memory_gib = 24"),
        ("bandwidth_bytes_per_s", "bandwidth_gb_per_s = 1008"),
    ):
        if needed not in cited:
            raise ServefitError(f"{where}: {needed} is missing.", hint=f"Write for example {example}.")
    cited.setdefault("usable_memory_frac", _FRAC[kind])
    if cited["usable_memory_frac"].value > 1:
        raise ServefitError(
            f"{where}: usable_memory_frac = {cited['usable_memory_frac'].value} is more than all of it.",
            hint="Write 0.9.",
        )
    figures: dict[str, Any] = {name: figure.value for name, figure in cited.items()}
    figures["memory_bytes"] = int(figures["memory_bytes"])
    return Device(name=slug, title=title, kind=kind, note=note, cited=MappingProxyType(cited), **figures)


def _figure(value: object, scale: float, source: str, date: str, status: Any, *, where: str) -> Cited:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e18:
        raise ServefitError(f"{where} = {value!r} is not a positive number.", hint="Write for example 1008.")
    return Cited(value=float(value) * scale, source=source, date=date, status=status)


def describe_range(devices: tuple[Device, ...]) -> str:
    """The bandwidths of an ambiguous name in one phrase: "410 to 546 GB/s"."""
    speeds = sorted({d.bandwidth_bytes_per_s / GB for d in devices})
    return f"{fmt(speeds[0])} GB/s" if len(speeds) == 1 else f"{fmt(speeds[0])} to {fmt(speeds[-1])} GB/s"
