"""What a plan is asked: the workload, the targets, and the axes to search, from a TOML file or from flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from servefit.errors import ServefitError
from servefit.files import read_toml, structure
from servefit.objectives import Targets
from servefit.workload.workload import Workload

Pick = Literal["cheapest", "margin", "capacity"]


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
    calibrations: tuple[str, ...] = ()
    """Paths of calibration files; each makes its device's rows measured."""
    kv_blocks: int | None = None
    """An engine's own logged block count, which wins over any formula."""
    block_tok: int = 16
    prefix_cache: bool = False
    timeout_s: float = 0.1
    """How long `dynamic` waits for a full batch."""
    seeds: int = 3
    """Schedules with their own seed; every candidate sees the same ones."""
    peak_req_per_s: float | None = None
    """The peak that the replicas must carry; None: the workload's own rate."""
    headroom_frac: float = 0.2
    """Share of the capacity that stays free at the peak."""
    quality: str | None = None
    """A result file of lm-evaluation-harness: precision -> score, so that none is chosen on speed alone."""
    quality_at_least: float | None = None
    pick: Pick = "cheapest"
    """Which passing candidate is recommended; ties go to the smallest memory, then to the largest margin."""


def load_spec(path: Path) -> PlanSpec:
    """The question in a TOML file. Raises ServefitError naming every misspelt or missing key with its path.

    A [workload] or [targets] table may write times as "100ms": see the guide. Relative paths are from the file's folder.
    """
    return spec_from_table(read_toml(path), where=str(path))


def spec_from_table(table: dict[str, Any], *, where: str) -> PlanSpec:
    """The question in a table of plain values (TOML, JSON or flags)."""
    spec = structure(table, PlanSpec, where=where)
    check_spec(spec, where=where)
    return spec


def check_spec(spec: PlanSpec, *, where: str = "plan") -> None:
    """Raises ServefitError for a question that has no answer whatever the devices are."""
    for name in ("kv_bits", "seats", "budgets_tok", "replicas", "tp"):
        bad = [v for v in getattr(spec, name) if v < 1]
        if bad:
            raise ServefitError(
                f"{where}: {name} has {bad[0]}, which is below 1.", hint=f"Write {name} as whole numbers from 1."
            )
    if spec.seeds < 1:
        raise ServefitError(f"{where}: seeds is {spec.seeds}.", hint="One schedule at least; three give an interval.")
    if not 0 <= spec.headroom_frac < 1:
        raise ServefitError(
            f"{where}: headroom_frac is {spec.headroom_frac}.", hint="Write a share from 0 to below 1, such as 0.2."
        )
