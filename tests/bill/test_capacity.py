"""Capacity by the datasheet, and what one change does to the machine bill."""

import pytest

from servefit.bill.capacity import capacity_req_per_s, seats_in_memory, variants
from servefit.bill.cost import Machine, Shape, what_if_machine
from servefit.errors import ServefitError
from servefit.facts.devices import find_device
from servefit.facts.models import find_model
from servefit.physics.steptime import StepTime

H100, LLAMA = find_device("h100-sxm"), find_model("llama-3.1-8b")
SHAPE = Shape(isl=1000, osl=200)


def test_on_paper():
    """90 tokens at 1 ms and 10 ms a step are 0.1 s, 100 steps of 10 ms shared by ten are 0.1 s: 5 a second."""
    step = StepTime(const_s=0.010, per_prefill_tok_s=0.001)
    assert capacity_req_per_s(step, Shape(isl=90, osl=101), 10) == pytest.approx(5.0)


def test_one_change_at_a_time():
    """Fewer weight bytes, fewer KV bytes, more seats and caching each raise capacity; fewer seats lower it."""
    base, ways = variants(LLAMA, H100, "bf16", SHAPE, 16, stable_tok=800)
    served = {v.factor: v.capacity_req_per_s for v in ways}
    assert set(served) == {
        "weights in fp8",
        "weights in awq",
        "8-bit KV cache",
        "8 seats",
        "32 seats",
        "prefix caching",
    }
    assert served["8 seats"] < base < served["32 seats"]
    for name in ("weights in fp8", "8-bit KV cache", "prefix caching"):
        assert served[name] > base


def test_memory_limits_seats():
    """Seats that do not fit are refused with how many do, and no variant offers them."""
    fit = seats_in_memory(LLAMA, H100, "bf16", SHAPE)
    assert 200 < fit < 500
    with pytest.raises(ServefitError, match=str(fit)):
        variants(LLAMA, H100, "bf16", SHAPE, fit + 1)
    assert seats_in_memory(find_model("llama-3.1-70b"), H100, "bf16", SHAPE) == 0


def test_whole_machines_or_full_ones():
    """At a rate that one machine serves anyway, more capacity saves nothing; between full machines it does."""
    machine = Machine(usd_per_hour=3.6, capacity_req_per_s=5.0)
    _, ways = variants(LLAMA, H100, "bf16", SHAPE, 16)
    assert all(row.saved_frac == 0 for row in what_if_machine(machine, 0.5, ways))
    assert any(row.saved_frac > 0 for row in what_if_machine(machine, 0.5, ways, whole=False))
