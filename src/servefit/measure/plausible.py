"""Times that physics does not allow: a finding about the measurement, never a record."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from servefit.errors import ServefitError
from servefit.packed import chosen
from servefit.records import Finding, RequestRecord, Run

if TYPE_CHECKING:
    from servefit.facts.devices import Device
    from servefit.facts.models import ModelShape

LOOKED_AT = 200
"""Rows that are looked at, evenly spread over the run."""
FEW = 0.05
"""Of the rows: below it a merged read or a wrong count may stand behind it."""
_LEAST_BYTES = 10**8


def about_physics(
    run: Run, device: "Device", model: "ModelShape", precision: str | None = None, *, slack_frac: float = 0.05
) -> list[Finding]:
    """Findings where more than 5% of the rows are faster than the device's bandwidth or peak allows for the model.

    Without `precision` the weights are taken as 4 bit (or as in the model's file), so that only what no usual format
    explains is found. Tokens that the server said came from its cache are not held to have been computed.
    """
    from servefit.physics.roofline import implausible

    good = chosen(run.load_rows, lambda row: bool(row.ok and row.isl and row.osl))
    looked = good[:: max(1, len(good) // LOOKED_AT)]
    weights = precision or (None if model.file else "q4_0")
    found: dict[str, list[tuple[float, str, str]]] = {}
    for row in looked:
        try:
            odd = implausible(
                model, device, weights, isl=max(1, (row.isl or 1) - (row.cached_tok or 0)), osl=row.osl,
                ttft_s=row.ttft_from_send_s, tpot_s=_tpot_s(row), slack_frac=slack_frac,
            )  # fmt: skip
        except (ServefitError, ValueError):
            return []
        for finding in odd:
            share = finding.measured_s / finding.floor_s
            found.setdefault(finding.code, []).append((share, finding.message, ", or ".join(finding.explains[:2])))
    out = []
    for code, rows in found.items():
        if len(rows) > FEW * len(looked):
            _, message, explains = min(rows)
            out.append(Finding(code=code, level="suspect",
                               message=f"{len(rows)} of {len(looked)} requests are faster than {device.title} can be with "
                                       f"{model.title}: {message}",
                               hint=f"What lies behind it most often: {explains}."))  # fmt: skip
    return out


def about_this_machine(run: Run, model: "ModelShape", precision: str | None = None) -> list[Finding]:
    """The same for a server on this machine, held against its memory's bandwidth, which is measured after the load.

    Nothing is said of weights that may lie in the processor's cache (below twice its size), and a reading that a busy
    machine made too low is allowed for: only times below half of the floor count.
    """
    from servefit.check import checkup
    from servefit.host import machine
    from servefit.physics.memory import streamed_weight_bytes

    try:
        least = streamed_weight_bytes(model, precision or (None if model.file else "q4_0"))
        if least < 2 * (machine.last_cache_bytes() or 0) or least < _LEAST_BYTES:
            return []
        return about_physics(run, checkup.this_device(), model, precision, slack_frac=0.5)
    except ServefitError:
        return []


def _tpot_s(row: RequestRecord) -> float | None:
    """TPOT of an answer long enough that one merged read does not decide it."""
    return row.tpot_s if (row.osl or 0) >= 8 else None


def known_shape(names: Sequence[str]) -> "ModelShape | None":
    """The shape of the first of these names that the catalogue knows; None where it knows none."""
    from servefit.facts.models import find_model

    for name in names:
        try:
            return find_model(name)
        except ServefitError:
            continue
    return None
