"""A calibration: what one engine step costs on one server, how sure we are, and where it was measured.

On disk it is one JSON file that names its runs by content hash. `plan`, `simulate` and `explain` read it.

Schema history
    1   2026-11-30   first
"""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from servefit.errors import ServefitError
from servefit.files import read_json, structure, write_json
from servefit.physics.steptime import TILE_TOK, Source, StepTime, scaled
from servefit.records import Finding

SCHEMA_VERSION = 1

FITTED = {
    "const_s": "every step",
    "change_s": "each step of another size than the one before",
    "per_seq_s": "each decoding request",
    "per_kv_tok_s": "each token of context that a decoding request reads",
    "per_prefill_tok_s": "each prompt token",
    "ragged_tok_s": f"each prompt token more, in a step of tokens that are no multiple of {TILE_TOK}",
    "per_prefill_pos_s": "each prompt token times its position",
    "per_prompt_s": "each request that begins, while all wait",
    "front_end_s": "each request, outside the steps",
    "front_end_per_tok_s": "each prompt token, outside the steps",
}
"""The coefficients that runs can teach, with what each is paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One coefficient of `StepTime`: its value, a 95% interval, and where it comes from. Seconds."""

    name: str
    """A field of `StepTime`, or "bend@8": what the bend rises (or, below 0, falls) by up to 8 tokens, from the point before."""
    value: float
    low: float
    high: float
    source: Source
    """"measured" where the runs bear on it; else the source of the prior that stands in."""
    origin: str = ""
    points: int = 0
    """Observations in which this coefficient plays a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Over which range the runs taught, lowest to highest; None where nothing of the kind was seen."""

    seqs: tuple[int, int] | None = None
    """Requests decoding together."""
    ctx_tok: tuple[int, int] | None = None
    """Mean context of a decoding request, in tokens."""
    kv_tok: tuple[int, int] | None = None
    """Context tokens read by one step, all requests together."""
    prefill_tok: tuple[int, int] | None = None
    """Prompt length, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """How far measured step times of one run lie from the fitted ones, as shares of the fitted ones."""

    run: str
    """Name of the run; its hash stands in `Calibration.runs`."""
    n: int
    """Observations: steps, or stretches of steps around a prefill."""
    bias_frac: float
    """Median of (measured - fitted) / fitted."""
    median_abs_frac: float
    p90_abs_frac: float
    held_out: bool = False
    """True where the run was not used in the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How the server forms its batches, recognised from behaviour; confidence from 0 (a guess) to 1 (it was told)."""

    policy: Literal["none", "static", "dynamic", "continuous", "chunked", "unknown"] = "unknown"
    confidence: float = 0.0
    seats: int | None = None
    """Requests that decode together at most."""
    seats_at_least: int | None = None
    """The most that were seen together, where nobody ever had to wait for a seat."""
    budget_tok: int | None = None
    """Tokens of one step at most: with `chunked` the size of the pieces, else how many whole prompts share a step."""
    timeout_s: float | None = None
    """How long an incomplete batch waits for others, where batches are formed."""
    prefix_cache: bool | None = None
    evidence: tuple[str, ...] = ()
    """What was seen, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Step time of one engine with one model on one device, learned from runs."""

    schema_version: int = SCHEMA_VERSION
    step: StepTime
    coefficients: tuple[Coefficient, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    """Of the coefficients in their order, s^2; zero rows for those that were not measured."""
    domain: Domain = Domain()
    residuals: tuple[Residual, ...] = ()
    runs: dict[str, str] = field(default_factory=dict)
    """Run -> content hash."""
    device: str = ""
    engine: str = ""
    engine_build: str = ""
    model: str = ""
    batching: Batching = Batching()
    kv_tok: int | None = None
    """Tokens that the KV cache holds, where the server said so or ran out of them."""
    block_tok: int | None = None
    """Tokens of one block of that cache, where the server said so."""
    noise_frac: float | None = None
    """Spread of a single step's time around the fit: the 16th to 84th percentile range, halved, as a share."""
    mean_over_median: float | None = None
    """Measured time over fitted time, summed over all steps: above 1 where a few steps are late."""
    median_over_fit: float | None = None
    """The median of measured over fitted time of single steps: below 1 where the machine's pace wanders, mostly to the slow side."""
    scope: Literal["server", "one user of a service"] = "server"
    """Behind a hosted API the capacity is shared: the calibration then holds for one user of it."""
    created: str | None = None
    tool_version: str = ""
    imported_from: str = ""
    """Where an imported calibration came from; "" for one's own."""
    verdict: Literal["valid", "suspect", "invalid"] = "valid"
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """One way in which a workload leaves the measured domain."""

    what: Literal["seqs", "ctx_tok", "kv_tok", "prefill_tok"]
    measured: tuple[int, int]
    reached: int
    ratio: float
    """Reached over the nearest measured edge: 2.0 is twice past the top, 0.5 half of the bottom."""


def beyond(domain: Domain, **reached: int) -> tuple[Excess, ...]:
    """Where the figures in `reached` (seqs, ctx_tok, kv_tok, prefill_tok) leave the measured domain, the farthest first.

    >>> beyond(Domain(ctx_tok=(32, 128)), ctx_tok=768)[0].ratio
    6.0
    >>> beyond(Domain(ctx_tok=(32, 128)), ctx_tok=100)
    ()
    """
    found: list[Excess] = []
    for what, value in reached.items():
        span = getattr(domain, what)
        if span is None:
            continue
        low, high = span
        if value > high:
            found.append(Excess(what=what, measured=span, reached=value, ratio=value / max(high, 1)))  # type: ignore[arg-type]
        elif value < low:
            found.append(Excess(what=what, measured=span, reached=value, ratio=value / low))  # type: ignore[arg-type]
    return tuple(sorted(found, key=lambda e: -abs(math.log(max(e.ratio, 1e-9)))))


def draws(calibration: Calibration, n: int, rng: Random) -> tuple[StepTime, ...]:
    """`n` step times that the runs allow: coefficients drawn from their joint normal, below zero only where the interval goes there.

    Correlated errors stay correlated: a larger constant goes with a smaller cost per request. Coefficients that were
    not measured stay at their prior. The spread of a figure over these is the calibration's own part of its interval.
    """
    root = _cholesky(calibration.covariance)
    out: list[StepTime] = []
    for _ in range(n):
        z = [rng.gauss(0.0, 1.0) for _ in root]
        moved = {
            c.name: max(-math.inf if c.low < 0 else 0.0, c.value + math.fsum(root[i][k] * z[k] for k in range(i + 1)))
            for i, c in enumerate(calibration.coefficients)
            if root
        }
        out.append(with_coefficients(calibration.step, moved))
    return tuple(out)


def with_coefficients(step: StepTime, values: dict[str, float]) -> StepTime:
    """`step` with the coefficients in `values`; those called "bend@N" are rises, and add up to the bend.

    Any step reads the weights, so the bend takes away half of the constant at most.

    >>> with_coefficients(StepTime(bend=((4, 0.0), (8, 1.0))), {"const_s": 2.0, "bend@8": 3.0, "bend@16": -1.0}).bend
    ((4, 0.0), (8, 3.0), (16, 2.0))
    >>> with_coefficients(StepTime(const_s=2.0), {"bend@8": -3.0}).bend
    ((1, 0.0), (8, -1.0))
    """
    plain = {name: value for name, value in values.items() if not name.startswith(BEND)}
    rises = sorted((int(name.removeprefix(BEND)), value) for name, value in values.items() if name.startswith(BEND))
    bend = step.bend
    if rises:
        total, points = 0.0, [(step.bend[0][0] if step.bend else 1, 0.0)]
        lowest = -0.5 * plain.get("const_s", step.const_s)
        for at, rise in rises:
            total = max(total + rise, lowest)
            points.append((at, total))
        bend = tuple(
            p
            for i, p in enumerate(points)
            if not 0 < i < len(points) - 1 or not points[i - 1][1] == p[1] == points[i + 1][1]
        )
    return replace(step, bend=bend, **plain)  # type: ignore[arg-type]


def mean_step(calibration: Calibration) -> StepTime:
    """The step time on average, late steps included: every time of the fitted step, times `mean_over_median`.

    What the machine takes away now and then (another program, a timer) is in no typical step, but in every answer's
    TPOT, E2E and in the throughput. On a quiet machine the factor is 1.00 to 1.02. At most 1.5: above that a few very late
    steps are accidents, not the engine; at least 0.9.

    >>> round(mean_step(Calibration(step=StepTime(const_s=0.010, bend=((1, 0.0), (4, 0.02))), mean_over_median=1.1)).bend[1][1], 6)
    0.022
    """
    return scaled(calibration.step, min(max(calibration.mean_over_median or 1.0, 0.9), 1.5))


def typical_step(calibration: Calibration) -> StepTime:
    """The step time that half of the steps stay below: every time of the fitted step, times `median_over_fit` (0.8 to 1.1).

    A pace that wanders, mostly to the slow side, moves the centre of a robust fit above the median; the median gap between
    tokens is the typical step's.

    >>> typical_step(Calibration(step=StepTime(const_s=0.010), median_over_fit=0.95)).const_s
    0.0095
    """
    return scaled(calibration.step, min(max(calibration.median_over_fit or 1.0, 0.8), 1.1))


BEND = "bend@"


def _cholesky(matrix: tuple[tuple[float, ...], ...]) -> list[list[float]]:
    """Lower triangular root of a covariance; rows of zero variance stay zero."""
    n = len(matrix)
    root = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            rest = matrix[i][j] - math.fsum(root[i][k] * root[j][k] for k in range(j))
            if i == j:
                root[i][i] = math.sqrt(rest) if rest > 1e-9 * max(matrix[i][i], 0.0) else 0.0
            elif root[j][j] > 0.0:
                root[i][j] = rest / root[j][j]
    return root


def coefficient(calibration: Calibration, name: str) -> Coefficient | None:
    """The coefficient called `name`, or None."""
    return next((c for c in calibration.coefficients if c.name == name), None)


def to_json(calibration: Calibration) -> dict[str, Any]:
    """The calibration as plain JSON values, its schema version first."""
    return asdict(calibration)


def save_calibration(calibration: Calibration, path: Path) -> None:
    """Write the calibration to `path`, whole or not at all."""
    write_json(path, to_json(calibration))


def load_calibration(path: Path) -> Calibration:
    """The calibration in `path` (a calibration.json, or a folder that holds one).

    Raises ServefitError where it is none, from a newer servefit, or holds a coefficient that no step can have.
    """
    path = path / "calibration.json" if path.is_dir() else path
    value = read_json(path)
    if not isinstance(value, dict) or "step" not in value or "schema_version" not in value:
        raise ServefitError(f"{path} is not a calibration.", hint="Make one with servefit calibrate.")
    version = value["schema_version"]
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ServefitError(
            f"{path} has schema version {version!r}; this servefit reads up to {SCHEMA_VERSION}.",
            hint="Update servefit.",
        )
    calibration = structure(value, Calibration, where=str(path))
    for spec in fields(StepTime):
        figure = getattr(calibration.step, spec.name)
        if spec.name.endswith("_s") and not (math.isfinite(figure) and figure >= 0):
            raise ServefitError(
                f"{path}: {spec.name} is {figure}, and no step can take that.", hint="Calibrate again, or restore it."
            )
    for at, extra in calibration.step.bend:
        if not math.isfinite(extra) or (extra < 0 and calibration.step.const_s + extra <= 0):
            raise ServefitError(
                f"{path}: the bend adds {extra} s at {at} tokens, and no step can take that.",
                hint="Calibrate again, or restore it.",
            )
    return calibration
