"""What candidates rest on: devices, models and step times by name, with where each figure comes from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType

from servefit.calibrate.calibration import Calibration, load_calibration, mean_step
from servefit.errors import ServefitError
from servefit.facts.cited import Cited
from servefit.facts.devices import Device, find_device
from servefit.facts.models import ModelShape, find_model
from servefit.facts.names import key
from servefit.facts.precisions import Precision, find_precision
from servefit.files import sha256
from servefit.physics.constants import EngineConstants, find_constants
from servefit.physics.constants import constants_for as tried_on
from servefit.physics.roofline import roofline_step
from servefit.physics.steptime import StepTime
from servefit.plan.plan import StepBasis
from servefit.plan.spec import GivenDevice, PlanSpec

DATASHEET = "datasheet"
THIS_MACHINE = "this-machine"
"""The device that any calibration is of."""
DATASHEET_ERROR_FRAC = 1 / 0.6 - 1
"""A datasheet-only step may be this much longer: real decode runs at 60 to 85% of the bandwidth ceiling."""
PREDICT_ERROR_FRAC = 0.05
"""bench/predict, embedded engine, 15 held-out loads, 2026-11-30: median error 3.5 to 5% in ITL, TPOT, E2E and tok/s."""
CALIBRATION_ERROR_FRAC = 0.10
"""Where a calibration holds no residuals at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One device with one model in one precision."""

    device: Device
    model: ModelShape
    precision: Precision | None
    """None: as the model's file holds it."""
    kv_bits: int = 16
    tp: int = 1

    @property
    def label(self) -> str:
        """The precision's name for people."""
        if self.precision:
            return self.precision.name
        return (self.model.file.quant if self.model.file else "bf16").lower()

    @property
    def id(self) -> str:
        """device/model/precision/kvBITS/tpN."""
        return f"{self.device.name}/{self.model.name}/{self.label}/kv{self.kv_bits}/tp{self.tp}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A row with its step time: what candidates are made on."""

    row: Row
    basis: StepBasis
    logged_blocks: int | None
    """The engine's own block count, where it told."""
    block_tok: int
    """Tokens of a KV block: the calibrated server's own, else the question's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the question names, found."""

    devices: tuple[Device, ...]
    models: tuple[ModelShape, ...]
    calibrations: tuple[Calibration, ...]
    files: dict[str, str]
    """Path -> sha256 of every file that was read."""


def find_inputs(spec: PlanSpec) -> Inputs:
    """Devices, models and calibrations of the question. Raises ServefitError for a name or file that is not there."""
    calibrations = tuple(load_calibration(Path(path)) for path in spec.calibrations)
    files = {str(_calibration_file(path)): sha256(_calibration_file(path)) for path in spec.calibrations}
    for name in (*spec.models, *spec.devices, *([spec.workload.trace] if spec.workload.trace else [])):
        if Path(name).is_file():
            files[name] = sha256(Path(name))
    if spec.quality is not None:
        files[spec.quality] = sha256(Path(spec.quality))
    models = tuple(find_model(name) for name in spec.models)
    if not models:
        raise ServefitError("No model is named.", hint="Add --model llama-3.1-8b, or models = [...] to the file.")
    given = {device.name: _device(device) for device in spec.given_devices}
    devices = [given.pop(name) if name in given else find_device(name) for name in spec.devices]
    devices += list(given.values())
    if not devices:
        raise ServefitError(
            "No device is named.",
            hint="Add --device a100-80gb (`servefit devices` lists them), or --calibration FILE for one that was measured.",
        )
    return Inputs(devices=tuple(devices), models=models, calibrations=calibrations, files=files)


def _calibration_file(path: str) -> Path:
    return Path(path) / "calibration.json" if Path(path).is_dir() else Path(path)


def _device(given: GivenDevice) -> Device:
    figures = ("memory_bytes", "bandwidth_bytes_per_s", "flop_per_s", "usable_memory_frac")
    cited = {
        name: Cited(value=float(getattr(given, name)), source=given.origin, status="given")
        for name in figures
        if getattr(given, name) is not None
    }
    return Device(
        name=given.name,
        title=given.name,
        kind=given.kind,
        memory_bytes=given.memory_bytes,
        bandwidth_bytes_per_s=given.bandwidth_bytes_per_s,
        flop_per_s=given.flop_per_s,
        usable_memory_frac=given.usable_memory_frac,
        cited=MappingProxyType(cited),
    )


def find_bases(spec: PlanSpec, inputs: Inputs, *, context_tok: int) -> tuple[Base, ...]:
    """Every device x model x precision x KV bits x tensor parallel of the question, with its step time.

    `context_tok` is a typical context of the workload: cache reads of layers with a window are linear around it.
    """
    out = []
    for device, model, name, kv_bits, tp in product(
        inputs.devices, inputs.models, spec.precisions or ("",), spec.kv_bits, spec.tp
    ):
        precision = find_precision(name) if name else None if model.file else find_precision("bf16")
        if tp == 1 or device.kind == "gpu":
            row = Row(device=device, model=model, precision=precision, kv_bits=kv_bits, tp=tp)
            out.append(base_of(row, inputs.calibrations, spec, context_tok=context_tok))
    return tuple(out)


def base_of(row: Row, calibrations: Sequence[Calibration], spec: PlanSpec, *, context_tok: int) -> Base:
    """The row with a measured step time where a calibration of it is at hand, else with a published or a datasheet one."""
    logged = spec.kv_blocks
    calibration = _calibration_of(calibrations, row)
    if calibration is None:
        return Base(row=row, basis=_from_facts(row, spec.engine, context_tok=context_tok), logged_blocks=logged,
                    block_tok=spec.block_tok)  # fmt: skip
    block_tok = calibration.block_tok or spec.block_tok
    if logged is None and calibration.kv_tok:
        logged = calibration.kv_tok // block_tok
    return Base(row=row, basis=_measured(row, calibration), logged_blocks=logged, block_tok=block_tok)


def _calibration_of(calibrations: Sequence[Calibration], row: Row) -> Calibration | None:
    """The calibration that was made on this device with this model; None where there is none."""
    for calibration in calibrations:
        if row.tp == 1 and _same_device(calibration, row.device) and _same_model(calibration.model, row.model):
            return calibration
    return None


def _same_device(calibration: Calibration, device: Device) -> bool:
    return device.name == THIS_MACHINE or key(calibration.device) in {key(device.name), key(device.title)}


def _same_model(name: str, model: ModelShape) -> bool:
    """Whether a calibration's model name means this model: its name, repository or file, in any spelling."""
    names = {model.name, model.title, model.repo, Path(model.name).stem}
    if model.file is not None:
        names |= {model.file.path, Path(model.file.path).stem}
    spelt = {key(n) for n in names if n} | {key(n.rpartition("/")[2]) for n in names if n}
    return not name or key(name) in spelt or key(name.rpartition("/")[2]) in spelt


def _measured(row: Row, calibration: Calibration) -> StepBasis:
    domain = {
        name: (float(span[0]), float(span[1]))
        for name in ("seqs", "ctx_tok", "kv_tok", "prefill_tok")
        if (span := getattr(calibration.domain, name)) is not None
    }
    runs = ", ".join(sorted(calibration.runs)) or calibration.imported_from or "no runs named"
    who = calibration.engine or "an engine"
    return _basis(
        row,
        replace(mean_step(calibration), source="measured", lower_bound=False),
        origin=f"calibration of {who} on {calibration.device or row.device.name}: {runs}",
        error_frac=_calibration_error(calibration),
        domain=domain,
    )


def _calibration_error(calibration: Calibration) -> float:
    """Relative error of a step time that a plan must allow for, from the residuals by run (held-out ones where there are).

        error = max(floor, 2 * sqrt( sum n (|bias| + scatter / sqrt(n))^2 / sum n ))

    A figure is made of many steps, so their scatter averages out and the bias of a whole run does not: two standard
    errors of that. The floor is what bench/predict saw in the median on loads that no calibration had seen.
    """
    residuals = [r for r in calibration.residuals if r.held_out] or list(calibration.residuals)
    steps = sum(r.n for r in residuals)
    if not steps:
        return CALIBRATION_ERROR_FRAC
    square = sum(r.n * (abs(r.bias_frac) + r.median_abs_frac / math.sqrt(max(r.n, 1))) ** 2 for r in residuals) / steps
    return max(PREDICT_ERROR_FRAC, 2 * math.sqrt(square))


def _from_facts(row: Row, engine: str, *, context_tok: int) -> StepBasis:
    constants = constants_for(engine, row.device)
    step = roofline_step(row.model, row.device, row.precision, row.kv_bits, row.tp, constants, ctx_tok=context_tok)
    error = DATASHEET_ERROR_FRAC if constants is None else constants.error_frac
    return _basis(row, step, origin=step.origin, error_frac=error, domain={})


def _basis(
    row: Row, step: StepTime, *, origin: str, error_frac: float, domain: dict[str, tuple[float, float]]
) -> StepBasis:
    return StepBasis(
        id=row.id,
        device=row.device.name,
        model=row.model.name,
        precision=row.label,
        kv_bits=row.kv_bits,
        tp=row.tp,
        step=step,
        source=step.source,
        origin=origin,
        lower_bound=step.lower_bound,
        error_frac=error_frac,
        domain=domain,
    )


def constants_for(engine: str, device: Device) -> EngineConstants | None:
    """The published engine constants: the named ones, else those tried on the device or its kind; None: datasheet alone."""
    if engine == DATASHEET:
        return None
    if engine:
        return find_constants(engine)
    return tried_on(device)
