"""A workload: how many requests, of which lengths, arriving how. One seed makes the same schedule anywhere."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from servefit.errors import ServefitError
from servefit.files import read_toml, structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How many tokens: always `mean`, or drawn around it and cut to [min, max]."""

    kind: Literal["fixed", "uniform", "normal", "lognormal"] = "fixed"
    mean: int = 128
    sd: float = 0.0
    min: int = 1
    max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked of a service. Exactly one of `rate_req_per_s`, `concurrency`, `trace`, `stages` says when."""

    name: str = ""
    n: int = 100
    isl: Lengths = Lengths(mean=256)
    osl: Lengths = Lengths(mean=64)
    rate_req_per_s: float | None = None
    arrivals: Literal["poisson", "constant", "gamma", "burst"] = "poisson"
    """How an open loop arrives; "burst" sends all at once."""
    burstiness: float = 1.0
    """Gamma shape: 1 is Poisson, below 1 burstier, above 1 more even."""
    stages: tuple[tuple[float, float], ...] = ()
    """Open loop in stages of (requests per second, seconds): a step or a ramp."""
    concurrency: int | None = None
    """Closed loop: this many users, each sending again when its answer is complete."""
    ramp_s: float = 0.0
    """Closed loop: users start evenly over this time; 0 is a start-up burst."""
    think_s: float = 0.0
    """Closed loop: pause of a user between an answer and the next request."""
    turns: int = 1
    """Requests of one session: each carries the conversation so far as its prefix."""
    shared_prefix_tok: int = 0
    """Tokens at the start of every prompt of a group that are the same."""
    prefix_groups: int = 1
    trace: str | None = None
    """Path of a trace file: Azure CSV, Mooncake JSONL, or one of our own runs."""
    time_scale: float = 1.0
    """Trace replay: 2 plays it twice as fast."""
    seed: int = 0

    def __post_init__(self) -> None:
        """A whole number for a length is that length, always."""
        for name in ("isl", "osl"):
            value: object = getattr(self, name)
            if isinstance(value, Lengths):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ServefitError(
                    f"{name} is {value!r}.", hint="It is a whole number of tokens, or Lengths(mean=...)."
                )
            object.__setattr__(self, name, Lengths(mean=value))


def workload_sha256(workload: Workload) -> str:
    """Hex SHA-256 of what is asked, the name left out: two runs are comparable when it is the same."""
    value = {k: v for k, v in asdict(workload).items() if k != "name"}
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def load_workload(path: Path) -> Workload:
    """The workload of a TOML file, its trace path taken from the file's folder. Raises ServefitError."""
    table = read_toml(path)
    table = table.get("workload", table)
    if isinstance(table, dict):
        for name in ("isl", "osl"):
            if isinstance(table.get(name), int):
                table[name] = {"mean": table[name]}
    workload = structure(table, Workload, where=str(path))
    if workload.trace is not None and not Path(workload.trace).is_absolute():
        workload = replace(workload, trace=str(path.parent / workload.trace))
    return workload
