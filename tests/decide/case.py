"""A plan with its calibration and two runs on disk, and the decision written from them: what these tests start from."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

from servefit.decide.bundle import inputs_of, name_runs
from servefit.decide.choice import choose
from servefit.decide.quantities import Ledger, Measured
from servefit.decide.sections import Choices
from servefit.decide.writeup import write
from servefit.plan.files import load_plan, save_plan
from servefit.plan.plan import Plan
from servefit.records import RequestRecord, Run, RunHeader, content_sha256, load_run, save_run

GOLDEN = Path(__file__).parent.parent / "golden" / "plan-small.json"
OWN = ("Half of the users write in bursts of 3 requests.",)


def make_plan(folder: Path) -> Plan:
    """The golden plan, resting on a calibration file that is there."""
    calibration = folder / "calibration.json"
    calibration.write_text(json.dumps({"made": "for tests"}), encoding="utf-8")
    plan = replace(load_plan(GOLDEN), inputs={"calibration.json": content_sha256(calibration)})
    save_plan(plan, folder / "plan.json")
    return plan


def make_run(
    folder: Path,
    *,
    n: int = 100,
    ttft_s: float = 0.2,
    tpot_s: float = 0.021,
    osl: int = 256,
    every_s: float = 0.25,
    **header: object,
) -> Run:
    """A measured run of `n` requests of `osl` tokens, one `every_s`, each as fast as the last."""
    rows = tuple(
        RequestRecord(
            id=str(i), status="ok", due_s=i * every_s, sent_s=i * every_s, isl=512, isl_source="usage", osl=osl, osl_source="usage",
            chunk_s=tuple(i * every_s + ttft_s + k * tpot_s for k in range(osl)), done_s=i * every_s + ttft_s + osl * tpot_s,
            finish_reason="length", http_status=200,
        )
        for i in range(n)
    )  # fmt: skip
    known = {"kind": "measured", "workload_sha256": load_plan(GOLDEN).workload_sha256, "tool_version": "0"}
    run = Run(header=RunHeader(**{**known, **header}), rows=rows)
    save_run(run, folder)
    return run


def make_case(
    folder: Path, *, runs: int = 1, candidate: str | None = None, plan: Plan | None = None, **choices
) -> Path:
    """The path of a decision in `folder`, with its plan, calibration and runs beside it."""
    made = plan or make_plan(folder)
    folders = tuple(folder / f"real{i}" for i in range(runs))
    for i, place in enumerate(folders):
        make_run(place, ttft_s=0.2 + i / 100)
    named = name_runs(folders)
    inputs, notes = inputs_of(made, folder / "plan.json", named, folder)
    assert not notes
    measured = tuple(Measured(name=n, label=n, run=load_run(f)) for n, f in named.items())
    ledger = Ledger(plan=made, candidate=choose(made, candidate, despite=choices.get("despite", "")), runs=measured)
    said = {"date": "2026-11-30", "tool_version": "0", "deciders": ("Ada",), "own": OWN}
    path = folder / "decision.md"
    path.write_text(write(ledger, inputs, Choices(**{**said, **choices})), encoding="utf-8")
    return path


def copy(source: Path, to: Path) -> Path:
    """The decision's folder copied to `to`; its decision there."""
    shutil.copytree(source.parent, to)
    return to / source.name
