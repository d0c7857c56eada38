"""The same results in the same order on one process, on two and on a Ray cluster; errors come back as sentences."""

import json
from dataclasses import replace

import pytest

from servefit.errors import CannotMeasure, ServefitError
from servefit.objectives import Targets
from servefit.plan.files import plan_to_json
from servefit.plan.search import make_plan
from servefit.plan.spec import PlanSpec
from servefit.plan.workers import run_all
from servefit.workload.workload import Lengths, Workload

SMALL = PlanSpec(
    models=("llama-3.1-8b",), devices=("a100-80gb",), policies=("none", "chunked"), seats=(8, 16), seeds=1,
    workload=Workload(n=30, isl=Lengths(mean=128), osl=Lengths(mean=32), rate_req_per_s=4.0),
    targets=Targets(ttft_s=0.5, tpot_s=0.03, goodput_frac=0.9),
)  # fmt: skip


def _times(shared, item):
    if item < 0:
        raise ServefitError(f"{item} is below 0.")
    return shared * item


def test_order_and_progress():
    """Results stand in the order of the items, and each is announced."""
    seen = []
    assert run_all(_times, [3, 1, 2], 10, on_done=lambda done, of: seen.append((done, of))) == [30, 10, 20]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_an_error_in_a_process_is_the_same_sentence():
    """A ServefitError raised in a worker process arrives with its message."""
    with pytest.raises(ServefitError, match="-1 is below 0"):
        run_all(_times, [1, -1], 10, jobs=2)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_gives_the_same_bytes():
    """A real local cluster, and the plan is the same to the byte; a cluster that is not there is a sentence."""
    pytest.importorskip("ray")
    assert json.dumps(plan_to_json(make_plan(SMALL, ray_address="local"))) == json.dumps(plan_to_json(make_plan(SMALL)))
    with pytest.raises(CannotMeasure, match="No Ray cluster answers"):
        make_plan(replace(SMALL, policies=("none",)), ray_address="127.0.0.1:1")
