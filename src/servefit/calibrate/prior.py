"""What stands in for a coefficient that no run bears on: the datasheet's floor, or what somebody else's calibration says."""

from dataclasses import replace
from pathlib import Path

from servefit.calibrate.calibration import FITTED, with_coefficients
from servefit.calibrate.files import imported
from servefit.errors import ServefitError
from servefit.facts.devices import find_device
from servefit.facts.models import find_model
from servefit.physics.roofline import roofline_step
from servefit.physics.steptime import StepTime


def datasheet(model: str, device: str) -> StepTime | None:
    """The least that each token can cost on the device, by its bandwidth and arithmetic; None where either is in no catalogue.

    Only what one more request, token of context or prompt token costs: the constant and the front end are the engine's own.

    >>> prior = datasheet("llama-3.1-8b", "rtx-4090")
    >>> prior.source, prior.const_s, round(prior.per_kv_tok_s * 1e9), round(prior.per_prefill_tok_s * 1e6, 1)
    ('spec', 0.0, 130, 84.5)
    """
    try:
        floor = roofline_step(find_model(model), find_device(device))
    except ServefitError:
        return None
    return StepTime(
        per_seq_s=floor.per_seq_s,
        per_kv_tok_s=floor.per_kv_tok_s,
        per_prefill_tok_s=floor.per_prefill_tok_s + floor.compute_per_tok_s,
        per_prefill_pos_s=floor.per_prefill_pos_s,
        source="spec", origin=f"the datasheet's floor: {floor.origin}",
    )  # fmt: skip


def passed_on(path: Path) -> StepTime:
    """The coefficients of the calibration in `path`, with where they come from. Raises ServefitError."""
    found = imported(path)
    known = {c.name: c.value for c in found.coefficients if c.source == "measured" and c.name in FITTED}
    who = " on ".join(filter(None, [found.engine, found.device])) or "an engine"
    return replace(
        with_coefficients(StepTime(), known),
        source="published",
        origin=f"{who}, as calibrated in {found.imported_from}",
    )
