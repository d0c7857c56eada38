"""The Python API, as small as the command line: what `import servefit` offers.

Two verbs have other names here than on the command line, since `servefit.plan` and `servefit.decide` are packages:
`make_plan` and `write_decision`. Times are seconds, memory is bytes, money is US dollars; None is nothing observed.
Whatever a person can fix is raised as `servefit.errors.ServefitError`, with one sentence and a hint.
"""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from servefit import __version__
from servefit.decide.choice import choose
from servefit.decide.verify import Report, verify
from servefit.engine.config import EngineConfig
from servefit.errors import ServefitError
from servefit.facts.devices import Device, find_device
from servefit.facts.models import ModelShape, find_model
from servefit.objectives import Summary, Targets, summarize
from servefit.plan.files import load_plan, save_plan
from servefit.plan.plan import Plan
from servefit.plan.search import make_plan
from servefit.plan.spec import PlanSpec
from servefit.records import Run, load_run, save_run
from servefit.workload.workload import Lengths, Workload

__all__ = [
    "Device",
    "EngineConfig",
    "Lengths",
    "ModelShape",
    "Plan",
    "PlanSpec",
    "Report",
    "Run",
    "Summary",
    "Targets",
    "Workload",
    "find_device",
    "find_model",
    "load_plan",
    "load_run",
    "make_plan",
    "save_plan",
    "save_run",
    "simulate",
    "summarize",
    "verify",
    "write_decision",
]


def simulate(
    workload: Workload,
    *,
    model: str,
    device: str,
    precision: str | None = None,
    config: EngineConfig | None = None,
    tp: int = 1,
) -> Run:
    """The run that `device` would give under this load, from its datasheet and the published constants of its engine.

    `config` says how the server batches (default: chunked, 64 seats, 2,048 tokens a step). Where it names no KV blocks,
    the pool is what the device's memory leaves beside the weights. A run is a run, measured or not:

    >>> run = simulate(Workload(n=20, concurrency=2), model="llama-3.1-8b", device="rtx-4090")
    >>> run.header.kind, summarize(run).ok
    ('simulated', 20)

    A device that was measured is planned from its calibration: `PlanSpec(calibrations=...)` and `make_plan`.
    """
    from dataclasses import replace

    from servefit.engine.simulate import simulate_run
    from servefit.physics.constants import constants_for
    from servefit.physics.memory import kv_pool
    from servefit.physics.roofline import roofline_step

    shape, machine = find_model(model), find_device(device)
    config = config or EngineConfig()
    step = roofline_step(shape, machine, precision, 16, tp, constants_for(machine))
    if config.kv_blocks is None:
        pool = kv_pool(
            shape, machine, precision, config.budget_tok, seats=config.seats, block_tok=config.block_tok, tp=tp
        )
        config = replace(config, kv_blocks=pool.blocks)
    engine = {"step_source": step.source, "step_origin": step.origin, "precision": precision, "tp": tp}
    return simulate_run(
        workload, config, step, target=machine.name, model=shape.name, engine=engine, tool_version=__version__
    )


def write_decision(
    plan: Path | str,
    out: Path | str,
    *,
    runs: Sequence[Path | str] = (),
    candidate: str | None = None,
    despite: str = "",
    deciders: Sequence[str] = (),
    assume: Sequence[str] = (),
    status: str = "proposed",
    date: dt.date | None = None,
) -> tuple[str, ...]:
    """Write the decision file `out` from the plan file `plan`; returns notes on missing inputs and on what `runs` say little of.

    Every number in it is bound to the plan, or to one of the measured `runs`; a run of another policy or batch limit, a
    simulated and an invalid one raise CannotMeasure, as they do for `verify --against`. `candidate` is a part of a
    configuration's id (None: the plan's own pick); `despite` says why one that does not pass is taken; `assume` holds
    your own assumptions. `date` is today where it is None. Writes over a file that is there.
    """
    from servefit.decide.against import refuse_unfit
    from servefit.decide.bundle import inputs_of, name_runs
    from servefit.decide.quantities import Ledger, Measured
    from servefit.decide.sections import Choices
    from servefit.decide.writeup import write
    from servefit.files import write_text

    plan, out = _plan_file(plan), Path(out)
    known = load_plan(plan)
    chosen = choose(known, candidate, despite=despite)
    named = name_runs(tuple(Path(run) for run in runs))
    measured = tuple(Measured(name=name, label=f"run {name}", run=load_run(folder)) for name, folder in named.items())
    inputs, notes = inputs_of(known, plan, named, out.parent)
    ledger = Ledger(plan=known, candidate=chosen, label=inputs[0].path, runs=measured)
    choices = Choices(
        date=(date or dt.datetime.now(tz=dt.UTC).date()).isoformat(),
        tool_version=__version__,
        status=status,
        deciders=tuple(deciders),
        despite=despite,
        own=tuple(assume),
    )
    write_text(out, write(ledger, inputs, choices))
    return (*notes, *(f"{run.label}: {note}" for run in measured for note in refuse_unfit(ledger, run)))


def _plan_file(plan: object) -> Path:
    if isinstance(plan, Plan):
        raise ServefitError(
            "A decision is bound to a plan's file, and this is a plan in memory.",
            hint='Write it first: save_plan(plan, "plan.json"), then write_decision("plan.json", ...).',
        )
    assert isinstance(plan, str | Path), "a plan's file is named by a path"
    return Path(plan)
