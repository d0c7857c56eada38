"""Simulated again from the seed: the same figures to the last digit, and a plan that was bent is found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from servefit.decide.bundle import inputs_of, make_bundle, write_folder
from servefit.decide.choice import choose
from servefit.decide.decision import load_decision
from servefit.decide.quantities import Ledger
from servefit.decide.rerun import rerun
from servefit.decide.sections import Choices
from servefit.decide.verify import verify
from servefit.decide.writeup import write
from servefit.errors import ServefitError
from servefit.objectives import Targets
from servefit.plan.files import load_plan, save_plan
from servefit.plan.search import make_plan
from servefit.plan.spec import PlanSpec
from servefit.workload.workload import Lengths, Workload


@pytest.fixture(scope="module")
def plan():
    """A real plan of four small candidates over a trace file."""
    return make_plan(
        PlanSpec(
            models=("llama-3.1-8b",),
            devices=("a100-80gb",),
            policies=("chunked",),
            seats=(16, 32),
            seeds=2,
            workload=Workload(n=40, isl=Lengths(mean=256), osl=Lengths(mean=32), rate_req_per_s=4.0, seed=3),
            targets=Targets(ttft_s=0.5, tpot_s=0.05, goodput_frac=0.9),
        )
    )


def decide(plan, folder: Path) -> Path:
    """The plan and its decision, written into `folder`."""
    save_plan(plan, folder / "plan.json")
    inputs, _ = inputs_of(plan, folder / "plan.json", {}, folder)
    ledger = Ledger(plan=plan, candidate=choose(plan, None))
    own = ("Nobody waits for more than a page.",)
    path = folder / "decision.md"
    path.write_text(write(ledger, inputs, Choices(date="2026-11-30", tool_version="0", own=own)))
    return path


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures(plan, tmp_path):
    """Every bound figure is made again, also from a bundle elsewhere."""
    path = decide(plan, tmp_path)
    assert rerun(verify(path)).holds
    write_folder(make_bundle(load_decision(path), path, tool_version="0"), tmp_path / "bundle")
    assert rerun(verify(tmp_path / "bundle")).holds


@pytest.mark.slow
def test_a_bent_plan_is_found_by_simulating_again(plan, tmp_path):
    """A latency that is 1% better than the simulation gives, everything else consistent: only --rerun can see it."""
    best = plan.recommended.id
    bent = []
    for c in plan.candidates:
        figures = replace(c.figures, e2e_s=replace(c.figures.e2e_s, p99=c.figures.e2e_s.p99 * 0.99), n=c.figures.n + 1)
        bent.append(replace(c, figures=figures) if c.id == best else c)
    path = decide(replace(plan, candidates=tuple(bent), tool_version="0.0.1"), tmp_path)
    report = verify(path)
    assert report.holds
    [found] = [f for f in rerun(report).findings if f.code == "SOURCE"]
    assert found.name == "n"
    assert "made by servefit 0.0.1" in found.message


@pytest.mark.slow
def test_another_seed_is_found(plan, tmp_path):
    """A plan whose question names another seed than its requests were made from."""
    spec = replace(plan.spec, workload=replace(plan.spec.workload, seed=4))
    report = verify(decide(replace(plan, spec=spec), tmp_path))
    assert report.holds
    assert "seed" in [f.name for f in rerun(report).findings]


def test_an_input_that_is_gone_is_one_sentence(plan, tmp_path):
    """A plan made from a file that is not among the decision's inputs cannot be simulated again."""
    spec = replace(plan.spec, calibrations=("gone.json",))
    report = verify(decide(replace(plan, spec=spec, inputs={"gone.json": "0" * 64}), tmp_path))
    with pytest.raises(ServefitError, match=r"gone\.json.*is not among"):
        rerun(report)


def test_plans_keep_their_bytes(plan, tmp_path):
    """What is hashed is what is written: loading and saving a plan gives the same file."""
    save_plan(plan, tmp_path / "a.json")
    save_plan(load_plan(tmp_path / "a.json"), tmp_path / "b.json")
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads((tmp_path / "b.json").read_text())


@pytest.mark.slow
def test_only_the_decided_device_must_still_be_known(plan, tmp_path):
    """A device that was rejected and is in no catalogue any more stands in nobody's way; the decided one is named where it is gone."""
    some = replace(plan, spec=replace(plan.spec, devices=("xeon-2-core", "a100-80gb")))
    assert rerun(verify(decide(some, tmp_path))).holds
    (tmp_path / "gone").mkdir()
    gone = replace(plan, spec=replace(plan.spec, devices=("xeon-2-core",)))
    with pytest.raises(ServefitError, match="cannot be simulated again: its device a100-80gb is in no catalogue"):
        rerun(verify(decide(gone, tmp_path / "gone")))
