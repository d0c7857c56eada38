"""Calibrations that travel: exported without a name of anybody's machine, imported with where they came from."""

from dataclasses import replace
from pathlib import Path

from servefit.calibrate.calibration import Calibration, load_calibration
from servefit.files import sha256


def anonymous(calibration: Calibration) -> Calibration:
    """What may be passed on: device, engine and build, model, coefficients, domain, residuals; runs only as hashes."""
    numbers = {name: f"run {i + 1}" for i, name in enumerate(calibration.runs)}
    return replace(
        calibration,
        runs={numbers[name]: digest for name, digest in calibration.runs.items()},
        residuals=tuple(replace(r, run=numbers.get(r.run, "held out")) for r in calibration.residuals),
        created=None if calibration.created is None else calibration.created[:10],
        imported_from="",
    )


def imported(path: Path) -> Calibration:
    """The calibration in `path` with its provenance, the file's name and content hash, which goes with its step time into plans.

    Raises ServefitError.
    """
    found, source = load_calibration(path), f"{path.name} (sha256 {sha256(path)[:16]})"
    return replace(
        found,
        imported_from=source,
        step=replace(found.step, origin=f"{found.step.origin}, imported from {source}".removeprefix(", ")),
    )
