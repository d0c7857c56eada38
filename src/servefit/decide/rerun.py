"""Simulate the decided configuration again, from its seed, and compare every figure with what the plan says.

The same servefit gives the same figures to the last digit; another version may predict differently, and then says so.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from servefit import __version__
from servefit.decide.decision import at
from servefit.decide.derive import Quantity
from servefit.decide.findings import Finding
from servefit.decide.prose import spelled
from servefit.decide.quantities import Ledger
from servefit.decide.verify import Report
from servefit.errors import ServefitError
from servefit.facts.devices import find_device
from servefit.plan.search import simulate_again
from servefit.plan.spec import PlanSpec

SAME = 1e-9
"""Relative difference below which two figures are the same: other machines may round the last digit otherwise."""


def rerun(report: Report) -> Report:
    """The report with one more SOURCE finding for every figure that comes out differently when simulated again.

    Raises ServefitError where an input that the simulation needs is gone.
    """
    ledger = report.ledger
    if ledger is None:
        return report
    plan = ledger.plan
    try:
        made, schedules = simulate_again(ledger.candidate, _found(report, ledger))
    except KeyError:
        raise ServefitError(
            f"{ledger.candidate.id} cannot be simulated again: its step time is not made by this servefit.",
            hint="Make the plan again with `servefit plan`.",
        ) from None
    found = list(report.findings)
    if schedules != plan.schedule_sha256:
        found.append(
            _finding(report, "seed", "", "", "The seed does not give the requests that the plan was made with.")
        )
    other = Ledger(plan=replace(plan, candidates=(made,)), candidate=made, label="simulated again")
    found += _differences(report, ledger, other)
    found.sort(key=lambda f: (f.line, f.code, f.name))
    return replace(report, findings=tuple(found))


def _found(report: Report, ledger: Ledger) -> PlanSpec:
    """The plan's question with every path pointing to the recorded input of the same hash."""
    spec, recorded = ledger.plan.spec, ledger.plan.inputs
    lies = {i.sha256: str(at(report.path, i.path)) for i in report.decision.front.inputs}

    def now(name: str) -> str:
        digest = recorded.get(name) or recorded.get(f"{name}/calibration.json")
        if digest is None:
            return name
        if digest not in lies:
            raise ServefitError(
                f"{name}, which the plan was made from, is not among the decision's inputs.",
                hint="Bring it back beside the plan and decide again, then --rerun.",
            )
        return lies[digest]

    trace = spec.workload.trace
    return replace(
        spec,
        models=tuple(map(now, spec.models)),
        devices=_only(ledger.candidate.device, tuple(map(now, spec.devices)), spec),
        calibrations=tuple(map(now, spec.calibrations)),
        quality=now(spec.quality) if spec.quality else spec.quality,
        workload=replace(spec.workload, trace=now(trace)) if trace else spec.workload,
    )


def _only(device: str, names: tuple[str, ...], spec: PlanSpec) -> tuple[str, ...]:
    """The name under which the plan asked for the decided device; the others need not be known here any more.

    Raises ServefitError where this servefit does not know the decided one.
    """
    given = {d.name for d in spec.given_devices}
    found = tuple(name for name in names if (name if name in given else _known(name)) == device)
    if not found and device not in given:
        raise ServefitError(
            f"The decision cannot be simulated again: its device {device} is in no catalogue of this servefit.",
            hint="Name a device TOML in the plan, then plan and decide again; verify without --rerun checks every number.",
        )
    return found


def _known(name: str) -> str | None:
    try:
        return find_device(name).name
    except ServefitError:
        return None


def _differences(report: Report, ledger: Ledger, other: Ledger) -> Iterator[Finding]:
    """Figures of the candidate that are bound in the file, or decide its checks, and come out differently."""
    bound = {b.name for b in report.decision.bindings}
    checks = {f"{c.name}.{part}" for c in ledger.candidate.checks for part in ("value", "low", "high", "verdict")}
    version = ledger.plan.tool_version
    by = "" if version == __version__ else f" The plan was made by servefit {version}, this is {__version__}."
    for name, here in ledger.scope("").items():
        there = other.scope("").get(name)
        if name not in bound | checks or name.startswith(("range.", "count.")) or there is None or _same(here, there):
            continue
        written, now = spelled(here).strip("`"), spelled(there).strip("`")
        if written == now:
            written, now = f"{here.value!r}", f"{there.value!r}"
        yield _finding(report, name, written, now, f"Simulated again, {name} is {now}; the plan says {written}.{by}")


def _same(a: Quantity, b: Quantity) -> bool:
    if isinstance(a.value, int | float) and isinstance(b.value, int | float):
        return math.isclose(a.value, b.value, rel_tol=SAME, abs_tol=1e-12)
    return a.value == b.value


def _finding(report: Report, name: str, written: str, recomputed: str, message: str) -> Finding:
    line = next((b.line for b in report.decision.bindings if b.name == name), 1)
    return Finding(
        code="SOURCE", level="error", line=line, name=name, written=written, recomputed=recomputed, message=message
    )
