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
    """The calibration in `path` with its provenance: the file's name and content hash. Raises ServefitError."""
    return replace(load_calibration(path), imported_from=f"{path.name} (sha256 {sha256(path)[:16]})")
