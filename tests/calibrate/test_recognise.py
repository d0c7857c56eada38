"""The batching of a server is recognised from arrival times alone, with a confidence that is earned."""

import dataclasses

import pytest

from calibrate.synthetic import TRUTH, probe_like, serve
from servefit.calibrate.calibration import Batching, Calibration
from servefit.calibrate.recognise import recognise, server_config, settle, told
from servefit.calibrate.words import lone_ttft_s, words
from servefit.physics.steptime import StepTime


def probed(policy, *, seats=8, budget_tok=128, noise=0.03, seed=0):
    """Runs as the probes make them: a burst of 16, then prompts that join while others decode."""
    common = {
        "policy": policy,
        "seats": seats,
        "budget_tok": budget_tok,
        "noise": noise,
        "seed": seed,
        "jitter_s": 2e-4,
    }
    burst = serve([(0.0, 64, 30 + 3 * i) for i in range(16)], **common)
    join = serve([(0.0, 64, 300), *((0.4 + 0.8 * i, isl, 8) for i, isl in enumerate((256, 512, 1000)))], **common)
    return [burst, join]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["none", "static", "continuous", "chunked"])
def test_each_policy_is_recognised(policy, seed):
    """Each policy shows in the arrivals, with seats counted, under 3% noise."""
    found = recognise(probed(policy, seed=seed))
    assert found.policy == policy
    assert found.seats == (1 if policy == "none" else 8)
    assert found.confidence > 0.5
    assert found.evidence


@pytest.mark.parametrize("budget_tok", [64, 128, 256])
def test_the_budget_is_read_from_the_pieces(budget_tok):
    """Prompt over pieces gives the token budget."""
    assert recognise(probed("chunked", budget_tok=budget_tok)).budget_tok == budget_tok


def test_a_budget_larger_than_the_prompt_is_unknown():
    """Prompts read in one step beside the others' tokens say chunked, with little certainty, and no budget is made up."""
    found = recognise(probed("chunked", budget_tok=4096))
    assert (found.policy, found.budget_tok) == ("chunked", None)
    assert found.confidence < 0.5
    assert any("budget of a step is not known" in e for e in found.evidence)
    assert any("budget of a step unknown" in line for line in words(Calibration(step=TRUTH, batching=found)))


def test_enough_seats_are_only_a_lower_bound():
    """When nobody waits, the number of seats is not known: only that there are at least so many."""
    found = recognise(probed("continuous", seats=64))
    assert (found.seats, found.seats_at_least) == (None, 16)


def test_lone_requests_say_nothing():
    """One at a time by the client looks like nothing in particular, not like a server with one seat."""
    found = recognise([serve([(0.0, 64, 24)] * 5, users=1)])
    assert (found.policy, found.confidence, found.seats) == ("unknown", 0.0, None)
    assert recognise([]).policy == "unknown"


def test_prefix_cache_shows_in_the_second_answer():
    """The same long prompt again: much sooner with a cache, as before without."""
    cold = serve([(0.0, 512, 8)] * 3, users=1)
    warm = serve([(0.0, 512, 8)] * 3, users=1, cached={1: 496, 2: 496})
    for run, expected in ((cold, False), (warm, True)):
        rows = tuple(dataclasses.replace(row, cached_tok=None) for row in run.rows)
        header = dataclasses.replace(run.header, load={"prompt_source": "given"})
        assert recognise([dataclasses.replace(run, rows=rows, header=header)]).prefix_cache is expected
    assert recognise([cold]).prefix_cache is None


def test_what_the_server_says_wins_and_contradictions_are_kept():
    """The server's own word is taken, and a behaviour that looks otherwise is said beside it."""
    runs = probed("static")
    said = told(
        [dataclasses.replace(r, header=dataclasses.replace(r.header, engine={"policy": "chunked", "seats": 4, "budget_tok": 64})) for r in runs]
    )  # fmt: skip
    settled = settle(said, recognise(runs))
    assert (settled.policy, settled.seats, settled.budget_tok, settled.confidence) == ("chunked", 4, 64, 1.0)
    assert any("looks static" in e and "8 ran together" in e for e in settled.evidence)
    assert told(runs) is None
    only_seats = [dataclasses.replace(r, header=dataclasses.replace(r.header, engine={"seats": 12})) for r in runs]
    settled = settle(told(only_seats), recognise(only_seats))
    assert (settled.policy, settled.seats) == ("static", 12)
    assert settle(None, Batching(policy="none")) == Batching(policy="none")


def test_fit_probes_are_enough_for_the_policy():
    """The runs that teach the step time also tell prompts-first from chunked."""
    assert recognise(probe_like(TRUTH, policy="continuous")).policy == "continuous"
    assert recognise(probe_like(TRUTH, policy="chunked")).policy == "chunked"


def test_the_calibrated_server_is_simulated_as_it_ran():
    """Its policy, seats, budget, cache and blocks, never padded; what is said otherwise wins; a wait with a limit is dynamic."""
    seen = Calibration(
        step=TRUTH,
        batching=Batching(policy="static", seats=8, budget_tok=2048, timeout_s=2.0),
        kv_tok=1024,
        block_tok=32,
    )
    config = server_config(seen)
    assert (config.policy, config.seats, config.budget_tok, config.timeout_s) == ("dynamic", 8, 2048, 2.0)
    assert (config.kv_blocks, config.block_tok, config.padded) == (32, 32, False)
    other = server_config(seen, policy="chunked", seats=4, budget_tok=64, kv_blocks=7)
    assert (other.policy, other.seats, other.budget_tok, other.kv_blocks) == ("chunked", 4, 64, 7)
    assert server_config(seen, timeout_s=0.5).timeout_s == 0.5
    unknown = server_config(Calibration(step=TRUTH))
    assert (unknown.policy, unknown.seats, unknown.kv_blocks, unknown.block_tok) == ("continuous", 1, None, 16)


def test_a_lone_wait_in_words_is_the_simulated_one():
    """A prompt of 1,000 tokens in pieces of 256 takes four steps, each with its constant: the sentence says what `simulate` says."""
    step = StepTime(const_s=0.010, per_prefill_tok_s=0.0001)
    found = Calibration(step=step, batching=Batching(policy="chunked", budget_tok=256, seats=8, confidence=1.0))
    assert lone_ttft_s(found, 1000) == pytest.approx(4 * 0.010 + 1000 * 0.0001)
    assert any("140 ms for 1,000 prompt tokens" in line for line in words(found))
