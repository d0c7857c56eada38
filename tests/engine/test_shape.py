"""What a step costs beyond the straight line: the bend with the size of the step, and the change of its size."""

import pytest

from servefit.engine import kernel_time
from servefit.engine.config import EngineConfig
from servefit.engine.simulate import simulate_run
from servefit.physics.steptime import TILE_TOK, StepTime, step_s
from servefit.workload.requests import Request
from servefit.workload.workload import Workload


def run_of(requests, config, step):
    """A simulated run of (due_s, isl, osl)."""
    asked = tuple(Request(id=i, due_s=d, isl=isl, osl=osl) for i, (d, isl, osl) in enumerate(requests))
    run = simulate_run(Workload(n=len(asked)), config, step, requests=asked)
    return {row.id: row for row in run.rows}


def test_a_change_of_shape_is_paid_once_for_each_change():
    """Prompt of 10 (change), first decode (change), three more decodes: 5 steps, 2 changes."""
    step = StepTime(const_s=0.010, change_s=0.004)
    row = run_of([(0.0, 10, 5)], EngineConfig(policy="continuous"), step)["0"]
    assert row.ttft_s == pytest.approx(0.014)
    assert row.itl_s == pytest.approx((0.014, 0.010, 0.010, 0.010))


def test_the_bend_is_paid_by_the_number_of_tokens():
    """Between 4 tokens (0) and 8 tokens (8 ms) a step of 6 pays 4 ms, decoding or reading."""
    step = StepTime(const_s=0.010, bend=((4, 0.0), (8, 0.008)))
    assert step_s(step, seqs=6, kv_tok=0) == pytest.approx(0.014)
    assert step_s(step, seqs=2, kv_tok=0, prefill_tok=4) == pytest.approx(0.014)
    assert step_s(step, seqs=0, kv_tok=0, prefill_tok=300) == pytest.approx(0.018)


def test_a_batch_that_is_only_seated_together_lets_the_done_go():
    """Not padded: after the short answer has ended, a step costs one sequence less; nobody joins before all are done."""
    step = StepTime(const_s=0.010, per_seq_s=0.010, per_prefill_tok_s=0.001)
    config = EngineConfig(policy="static", seats=2, padded=False)
    rows = run_of([(0.0, 10, 2), (0.0, 20, 4), (0.001, 10, 2), (0.002, 10, 2)], config, step)
    assert rows["0"].ttft_s == rows["1"].ttft_s == pytest.approx(0.040)  # 10 + 20 prompt tokens, not 2 x 20
    assert rows["1"].itl_s == pytest.approx((0.030, 0.020, 0.020))
    assert rows["2"].due_s + rows["2"].ttft_s == pytest.approx(0.110 + 0.030)


def test_requests_that_begin_are_paid_and_the_first_of_a_moment_goes_alone():
    """Three at once, 1 ms apart at the front end: the first prompt alone, then the other two with 5 ms each."""
    step = StepTime(const_s=0.010, per_prefill_tok_s=0.001, per_prompt_s=0.005, front_serial_s=0.001)
    rows = run_of([(0.0, 10, 2), (0.0, 10, 2), (0.0, 10, 2)], EngineConfig(policy="continuous"), step)
    assert rows["0"].ttft_s == pytest.approx(0.010 + 0.010 + 0.005)
    assert rows["1"].ttft_s == rows["2"].ttft_s == pytest.approx(0.025 + 0.010 + 0.020 + 0.010)


def test_a_step_of_whole_tiles_is_cheaper():
    """128 prompt tokens fill a tile, 129 do not; beside one decoding request a piece of 127 does. Both engines, one size."""
    step = StepTime(const_s=0.010, ragged_tok_s=0.001)
    assert kernel_time.TILE_TOK == TILE_TOK == 128
    assert run_of([(0.0, 128, 2)], EngineConfig(policy="continuous"), step)["0"].ttft_s == pytest.approx(0.010)
    assert run_of([(0.0, 129, 2)], EngineConfig(policy="continuous"), step)["0"].ttft_s == pytest.approx(0.010 + 0.129)
    rows = run_of([(0.0, 128, 9), (0.001, 127, 2)], EngineConfig(policy="chunked", budget_tok=128), step)
    assert rows["1"].ttft_s == pytest.approx(0.019)  # the first prompt: 10 ms; then 1 + 127 together: 10 ms


def test_who_was_preempted_is_seated_with_all_that_it_had_written():
    """Not padded, and short of memory: a preempted sequence needs room for its answer so far too, not for its prompt alone."""
    step = StepTime(const_s=0.010)
    config = EngineConfig(policy="static", seats=4, padded=False, kv_blocks=12, block_tok=4)
    lengths = [(4, 30), (1, 40), (1, 40), (8, 30), (1, 30), (18, 30)]
    rows = run_of([(0.0, isl, osl) for isl, osl in lengths], config, step)
    assert [len(rows[str(i)].chunk_s) for i in range(6)] == [osl for _, osl in lengths]
