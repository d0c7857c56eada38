"""What a plan is asked: the workload, the targets, and the axes to search, from a TOML file or from flags."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from servefit.errors import ServefitError
from servefit.files import read_toml, structure
from servefit.objectives import Targets
from servefit.units import parse_seconds
from servefit.workload.workload import Workload

MAX_SEEDS = 100
"""The interval narrows with their root: more buy little."""

Pick = Literal["measured", "cheapest", "margin", "capacity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDevice:
    """A device that is in no catalogue, by the figures that matter: this machine, or one that is not sold yet."""

    name: str
    kind: Literal["gpu", "unified", "cpu"]
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flop_per_s: float | None = None
    usable_memory_frac: float = 0.7
    origin: str = "given"
    """Who measured or stated them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPrice:
    """What you pay for one such device, whatever the catalogue says: a contract, a discount, a machine of your own."""

    device: str
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpec:
    """A question for the planner. Every axis is a list; an empty list means the planner's own choice, which it states."""

    name: str = ""
    models: tuple[str, ...] = ()
    """Catalogue names, or paths of a config.json or a GGUF file."""
    devices: tuple[str, ...] = ()
    """Catalogue names, or paths of a device TOML file; `this-machine` with a calibration made here."""
    precisions: tuple[str, ...] = ()
    """Weights: "bf16", "fp8", "int8", "q4" ...; empty: the model's own."""
    kv_bits: tuple[int, ...] = (16,)
    policies: tuple[str, ...] = ("none", "static", "continuous", "chunked")
    seats: tuple[int, ...] = ()
    """Batch limits; empty: 1, 2, 4, 8, ... until both edges are found, then the numbers around each edge."""
    budgets_tok: tuple[int, ...] = (2048,)
    replicas: tuple[int, ...] = (1,)
    tp: tuple[int, ...] = (1,)
    """GPUs that one replica is spread over (tensor parallel)."""
    workload: Workload = field(default_factory=Workload)
    targets: Targets = field(default_factory=Targets)
    given_devices: tuple[GivenDevice, ...] = ()
    """Devices in no catalogue; each is searched beside `devices`."""
    given_prices: tuple[GivenPrice, ...] = ()
    """Prices that go before the catalogue's; `[prices]` in the file, device = US dollars an hour of one."""
    engine: str = ""
    """Name of published engine constants; "" takes those that fit the device's kind, "datasheet" takes none."""
    calibrations: tuple[str, ...] = ()
    """Paths of calibration files; each makes its device's rows measured."""
    kv_blocks: int | None = None
    """An engine's own logged block count, which wins over any formula."""
    block_tok: int = 16
    prefix_cache: bool = False
    padded: bool | None = None
    """Whether `static` and `dynamic` pad to the longest of the batch; None: yes, unless the step time was measured on an
    engine of one's own, whose KV is paged."""
    timeout_s: float = 0.1
    """How long `dynamic` waits for a full batch."""
    seeds: int = 3
    """Schedules with their own seed; every candidate sees the same ones."""
    peak_req_per_s: float | None = None
    """The peak that the replicas must carry; None: the workload's own rate."""
    headroom_frac: float = 0.2
    """How much higher than stated the peak may turn out, as a share of it."""
    quality: str | None = None
    """A result file of lm-evaluation-harness: precision -> score, so that none is chosen on speed alone."""
    quality_at_least: float | None = None
    pick: Pick = "cheapest"
    """Which passing candidate is recommended; ties go to the smallest memory, then to the largest margin."""
    by_default: tuple[str, ...] = ()
    """The checks whose targets nobody asked for, by name: the plan says so beside them."""


def load_spec(path: Path) -> PlanSpec:
    """The question in a TOML file. Raises ServefitError naming every misspelt or missing key with its path.

    Times may be written with their unit (`ttft = "100 ms"`), lengths as one number (`isl = 512`); relative paths are
    taken from the file's folder. See `FILE_EXAMPLE`.
    """
    spec = spec_from_table(read_toml(path), where=str(path))
    return _from_folder(spec, path.parent)


FILE_EXAMPLE = """\
models = ["llama-3.1-8b"]
devices = ["a100-80gb", "rtx-4090"]
policies = ["continuous", "chunked"]

[workload]
n = 1000
rate_req_per_s = 4
isl = 512
osl = 256

[targets]
ttft = "500 ms"
tpot = "30 ms"
goodput_frac = 0.99
"""


def spec_from_table(table: dict[str, Any], *, where: str) -> PlanSpec:
    """The question in a table of plain values (TOML, JSON or flags), with the shorthands of `load_spec`."""
    table = {**table}
    for name in (
        "models",
        "devices",
        "precisions",
        "policies",
        "calibrations",
        "kv_bits",
        "seats",
        "budgets_tok",
        "replicas",
        "tp",
    ):
        if name in table and not isinstance(table[name], list | tuple):
            table[name] = [table[name]]
    if isinstance(table.get("prices"), dict):
        given = table.pop("prices")
        table["given_prices"] = [{"device": name, "usd_per_hour": usd} for name, usd in given.items()]
    if isinstance(table.get("workload"), dict):
        table["workload"] = _lengths(_times(table["workload"]))
    if isinstance(table.get("targets"), dict):
        table["targets"] = _times(table["targets"])
    spec = structure(table, PlanSpec, where=where)
    check_spec(spec, where=where)
    return spec


def _times(table: dict[str, Any]) -> dict[str, Any]:
    """`ttft = "100 ms"` as `ttft_s = 0.1`: any text value of a key that is a time."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        name = key if key.endswith("_s") or key not in ("ttft", "tpot", "e2e", "ramp", "think") else f"{key}_s"
        out[name] = parse_seconds(value) if name.endswith("_s") and isinstance(value, str) else value
    return out


def _lengths(table: dict[str, Any]) -> dict[str, Any]:
    """`isl = 512` as a fixed length of 512 tokens."""
    return {k: {"mean": v} if k in ("isl", "osl") and isinstance(v, int) else v for k, v in table.items()}


def _from_folder(spec: PlanSpec, folder: Path) -> PlanSpec:
    """The paths in it, taken from the folder of the file that names them."""

    def near(name: str) -> str:
        return name if Path(name).is_absolute() or not _is_path(name) else str(folder / name)

    workload = spec.workload
    if workload.trace is not None:
        workload = replace(workload, trace=near(workload.trace))
    return replace(
        spec,
        models=tuple(near(m) for m in spec.models),
        devices=tuple(near(d) for d in spec.devices),
        calibrations=tuple(near(c) for c in spec.calibrations),
        quality=None if spec.quality is None else near(spec.quality),
        workload=workload,
    )


def _is_path(name: str) -> bool:
    """Whether a model or device is named by a file rather than by a catalogue name."""
    return "/" in name or name.endswith((".json", ".toml", ".gguf", ".csv", ".jsonl"))


FLAGS = "flags"
"""Where a question comes from that no file holds."""


def _named(where: str, key: str) -> str:
    """A key as its writer knows it.

    >>> _named("plan.toml", "quality_at_least"), _named(FLAGS, "quality_at_least")
    ('plan.toml: quality_at_least', '--quality-at-least')
    """
    return f"--{key.replace('_', '-')}" if where == FLAGS else f"{where}: {key}"


def check_spec(spec: PlanSpec, *, where: str = "plan") -> None:
    """Raises ServefitError for a question that has no answer whatever the devices are; `where` it was asked (a file, `FLAGS`)."""
    for name in ("kv_bits", "seats", "budgets_tok", "replicas", "tp"):
        bad = [v for v in getattr(spec, name) if v < 1]
        if bad:
            raise ServefitError(
                f"{_named(where, name)} has {bad[0]}, which is below 1.", hint=f"Write {name} as whole numbers from 1."
            )
    if spec.targets.p not in (50, 90, 95, 99):
        raise ServefitError(
            f"{_named(where, 'p')} is {spec.targets.p}.", hint="Latency targets are held at p50, p90, p95 or p99."
        )
    for name in (
        "ttft_s",
        "tpot_s",
        "e2e_s",
        "memory_frac",
        "goodput_req_per_s",
        "goodput_frac",
        "usd_per_hour",
        "usd_per_mtok",
    ):
        value = getattr(spec.targets, name)
        if value is not None and not 0 < value < math.inf:
            raise ServefitError(
                f"{where}: the target {name} is {value}.", hint="Write a value above 0, or leave it out."
            )
    for price in spec.given_prices:
        if not 0 < price.usd_per_hour < math.inf:
            raise ServefitError(
                f"{where}: the price of {price.device} is {price.usd_per_hour}.",
                hint="Write US dollars an hour above 0, such as 1.10, or leave it out.",
            )
    if spec.targets.goodput_frac is not None and spec.targets.goodput_frac > 1:
        raise ServefitError(
            f"{where}: goodput_frac is {spec.targets.goodput_frac}.", hint="Write a share such as 0.99."
        )
    for name, least in (("peak_req_per_s", "above 0"), ("kv_blocks", "of 1 or more")):
        value = getattr(spec, name)
        if value is not None and not 0 < value < math.inf:
            raise ServefitError(f"{where}: {name} is {value}.", hint=f"Write a value {least}, or leave it out.")
    if spec.quality_at_least is not None and spec.quality is None:
        raise ServefitError(
            f"{_named(where, 'quality_at_least')} is {spec.quality_at_least}, and no scores are given.",
            hint="Name a file of scores by precision with --quality (quality in the file).",
        )
    if not 1 <= spec.seeds <= MAX_SEEDS:
        raise ServefitError(
            f"{_named(where, 'seeds')} is {spec.seeds}.",
            hint=f"One schedule at least, {MAX_SEEDS} at most; three give an interval.",
        )
    if not 0 <= spec.headroom_frac <= 1:
        raise ServefitError(
            f"{where}: headroom_frac is {spec.headroom_frac}.", hint="Write a share from 0 to 1, such as 0.2."
        )
