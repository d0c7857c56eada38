"""The fit recovers a known step time from rows alone, says how sure it is, and marks what it could not learn."""

import dataclasses
import statistics
from bisect import bisect_right
from random import Random

import pytest

from calibrate.synthetic import TRUTH, probe_like, serve
from servefit.calibrate.calibration import (
    FITTED,
    Batching,
    Calibration,
    coefficient,
    draws,
    mean_step,
    typical_step,
)
from servefit.calibrate.fit import fit_runs, predict_s, run_sha256
from servefit.calibrate.steps import observe
from servefit.calibrate.words import lone_ttft_s
from servefit.errors import CannotMeasure
from servefit.physics.steptime import StepTime, step_s
from servefit.records import content_sha256, save_run

KNOWN = {
    "none": Batching(policy="none", seats=1),
    "static": Batching(policy="static", seats=16),
    "continuous": Batching(policy="continuous", seats=16),
    "chunked": Batching(policy="chunked", seats=16, budget_tok=256),
}


@pytest.mark.parametrize("policy", KNOWN)
def test_noise_free_runs_give_the_truth(policy):
    """Without noise every coefficient comes back to one percent, whatever the policy."""
    runs = probe_like(policy=policy, noise=0.0, jitter_s=0.0)
    found = fit_runs(runs, batching=KNOWN[policy])
    for name in ("per_kv_tok_s", "per_prefill_tok_s", "per_prefill_pos_s", "front_end_s"):
        assert getattr(found.step, name) == pytest.approx(getattr(TRUTH, name), rel=0.02), name
    # with one seat the constant and the cost of one request are paid together
    one = found.step.const_s + found.step.per_seq_s
    assert one == pytest.approx(TRUTH.const_s + TRUTH.per_seq_s, rel=0.01)


@pytest.mark.slow
def test_known_steps_lie_within_the_stated_interval():
    """Of step times of many shapes nine intervals of ten or more hold the truth, each coefficient's four of five, none by far.

    The draws are fixed: an interval is for what it says, not for every draw. `front_end_s` misses most: where few prompts were
    seen, its share and what a prompt costs by itself (`per_prompt_s`, `front_end_per_tok_s`, bends) can stand for each other.
    """
    names = ("const_s", "per_seq_s", "per_kv_tok_s", "per_prefill_tok_s", "front_end_s")
    ranges = ((0.004, 0.03), (0.0004, 0.004), (1e-6, 6e-6), (0.0002, 0.003), (0.002, 0.02))
    held, far = dict.fromkeys(names, 0), []
    for seed in range(24):
        rng = Random(seed)
        policy = ("continuous", "chunked", "static")[seed % 3]
        truth = {name: rng.uniform(*span) for name, span in zip(names, ranges, strict=True)}
        runs = probe_like(StepTime(per_prefill_pos_s=1e-7, **truth), policy=policy, seed=seed)
        found = fit_runs(runs, batching=KNOWN[policy])
        for name in names:
            c = coefficient(found, name)
            held[name] += c.low <= truth[name] <= c.high
            if abs(c.value - truth[name]) > 1.5 * max(c.high - c.low, 2e-12):
                far.append((seed, c, truth[name]))
    assert min(held.values()) >= 20, held
    assert sum(held.values()) >= 108, held
    assert len(far) <= 1, far


def test_a_bend_and_a_change_of_shape_are_found():
    """Kernels that switch between 4 and 6 tokens, and a price for every new shape, come back from the rows."""
    step = dataclasses.replace(TRUTH, bend=((4, 0.0), (6, 0.008), (64, 0.02)), change_s=0.006)
    runs = [
        *probe_like(step, noise=0.01),
        *(serve([(0.0, 64, 40)] * n, users=n, step=step, noise=0.01, seed=n) for n in (3, 5, 6, 12, 16)),
    ]
    found = fit_runs(runs, batching=KNOWN["continuous"])
    assert found.step.change_s == pytest.approx(0.006, rel=0.2)
    for seqs in (1, 2, 4, 6, 8, 12, 16):
        truth = step_s(step, seqs=seqs, kv_tok=80 * seqs)
        assert step_s(found.step, seqs=seqs, kv_tok=80 * seqs) == pytest.approx(truth, rel=0.02), seqs
    for tok in (128, 512, 1000):
        pos = tok * tok // 2
        truth = step_s(step, seqs=0, kv_tok=0, prefill_tok=tok, prefill_pos=pos)
        assert step_s(found.step, seqs=0, kv_tok=0, prefill_tok=tok, prefill_pos=pos) == pytest.approx(truth, rel=0.03)


def test_a_batch_that_is_cheaper_than_a_smaller_one_is_found():
    """Twelve to sixteen requests take less than ten, as where a kernel switches: the bend falls, and only as far as the rows say."""
    step = dataclasses.replace(TRUTH, per_seq_s=0.0, bend=((1, 0.0), (8, 0.010), (12, 0.004), (64, 0.004)))
    runs = [
        *probe_like(step, noise=0.01),
        *(serve([(0.0, 64, 40)] * n, users=n, step=step, noise=0.01, seed=n) for n in (2, 4, 6, 8, 10, 12, 14, 16)),
    ]
    found = fit_runs(runs, batching=KNOWN["continuous"])
    for seqs in (1, 4, 8, 10, 12, 14, 16):
        truth = step_s(step, seqs=seqs, kv_tok=80 * seqs)
        assert step_s(found.step, seqs=seqs, kv_tok=80 * seqs) == pytest.approx(truth, rel=0.02), seqs
    fall = coefficient(found, "bend@12")
    assert fall.value == pytest.approx(-0.006, rel=0.03) and fall.low < fall.value < fall.high < 0
    assert all(s.const_s + extra > 0 for s in draws(found, 50, Random(1)) for _, extra in s.bend)


def test_late_steps_do_not_move_the_fit():
    """One step in twelve that takes three times as long (a busy moment) moves the constant by under 3%."""
    runs = probe_like(noise=0.02)
    late = []
    for run in runs:
        rows = []
        for row in run.rows:
            shift, moved = 0.0, []
            for i, t in enumerate(row.chunk_s):
                shift += 0.02 if i % 12 == 7 and len(run.rows) > 10 else 0.0
                moved.append(t + shift)
            rows.append(dataclasses.replace(row, chunk_s=tuple(moved)))
        late.append(dataclasses.replace(run, rows=tuple(rows)))
    found = fit_runs([late[0], *runs[1:]], batching=KNOWN["continuous"])
    assert found.step.const_s == pytest.approx(TRUTH.const_s, rel=0.03)
    assert found.mean_over_median > 1.01


def wandering(run, seed):
    """The run on a machine whose pace wanders, mostly to the slow side: stretches of some 50 ms that take up to twice as long."""
    rng, knots = Random(seed), [(0.0, 0.0)]
    while knots[-1][0] < max(r.chunk_s[-1] for r in run.rows):
        piece = rng.expovariate(20.0)
        knots.append((knots[-1][0] + piece, knots[-1][1] + piece * (1.0 + min(rng.expovariate(6.0), 1.0))))

    def moved(t):
        (a, b), (c, d) = knots[(i := max(bisect_right(knots, (t,)) - 1, 0)) : i + 2]
        return b + (t - a) * (d - b) / (c - a)

    rows = [
        dataclasses.replace(
            r,
            due_s=moved(r.due_s),
            sent_s=moved(r.sent_s or r.due_s),
            chunk_s=tuple(map(moved, r.chunk_s)),
            done_s=moved(r.done_s),
        )
        for r in run.rows
    ]
    return dataclasses.replace(run, rows=tuple(rows))


def test_the_typical_step_is_the_median_and_the_mean_step_the_mean():
    """On a machine whose pace wanders, for runs of another hour: half of the steps stay below one, the sum is that of the other."""
    known = KNOWN["continuous"]

    def hour(first):
        rounds = [r for seed in range(first, first + 3) for r in probe_like(noise=0.02, seed=seed)]
        return [wandering(r, 100 * first + i) for i, r in enumerate(rounds)]

    found = fit_runs(hour(0), batching=known)
    later = [o for r in hour(5) for o in observe(r, known) if o.plain]

    def median(step):
        return statistics.median(o.time_s / predict_s(step, o) for o in later)

    def total(step):
        return sum(o.time_s for o in later) / sum(predict_s(step, o) for o in later)

    assert median(typical_step(found)) == pytest.approx(1.0, abs=0.02)
    assert total(mean_step(found)) == pytest.approx(1.0, abs=0.02)
    assert median(found.step) < 0.985 < 1.02 < total(typical_step(found)), "the pace wanders enough for them to differ"


def test_a_prior_is_not_paid_twice():
    """Prompts of two lengths do not tell what position costs: with the right prior a third is right, and theirs are what they were."""
    run = serve([(0.0, n, 24) for n in (400, 1000)] * 6, users=1, noise=0.01)

    def waits(found):
        right = Calibration(step=TRUTH, batching=KNOWN["continuous"])
        return [lone_ttft_s(found, n) / lone_ttft_s(right, n) for n in (400, 1000, 3000)]

    blind = fit_runs([run], batching=KNOWN["continuous"])
    assert waits(blind)[:2] == pytest.approx([1.0, 1.0], abs=0.05)
    assert waits(blind)[2] < 0.8, "nothing is known of position"
    prior = StepTime(per_prefill_pos_s=TRUTH.per_prefill_pos_s, source="spec", origin="a datasheet")
    found = fit_runs([run], batching=KNOWN["continuous"], prior=prior)
    assert waits(found) == pytest.approx([1.0, 1.0, 1.0], abs=0.02)
    assert coefficient(found, "per_prefill_pos_s").source == "spec"
    assert coefficient(found, "front_end_s").source == "assumed", "of that the prior says nothing"
    assert "a prior stands in, a datasheet" in next(
        f.message for f in found.findings if "per_prefill_pos_s" in f.message
    )


def test_a_prior_that_says_more_than_was_measured_is_refused():
    """A cost of prompt tokens that alone is more than the answers took is of another machine."""
    run = serve([(0.0, 1000, 1)] * 40, users=1, noise=0.01)
    prior = StepTime(per_prefill_pos_s=1e-3, source="published", origin="a slower machine")
    with pytest.raises(CannotMeasure, match="alone says"):
        fit_runs([run], prior=prior)
    found = fit_runs([run], prior=dataclasses.replace(prior, source="spec"))
    assert coefficient(found, "per_prefill_pos_s").source == "assumed", (
        "a datasheet that nobody named is left out instead"
    )
    assert found.step == fit_runs([run]).step


def test_what_was_not_seen_is_a_prior_and_says_so():
    """Runs of one prompt length and one request at a time teach neither the cost of a batch mate nor of context."""
    run = serve([(0.0, 64, 24)] * 6, users=1, noise=0.01)
    prior = StepTime(per_prefill_pos_s=3e-7, source="published", origin="a paper of 2025")
    found = fit_runs([run], prior=prior)
    c = coefficient(found, "per_prefill_pos_s")
    assert (c.value, c.source, c.origin) == (3e-7, "published", "a paper of 2025")
    assert found.step.per_prefill_pos_s == 3e-7
    assert "not_learned" in {f.code for f in found.findings}
    assert {c.name for c in found.coefficients} == set(FITTED)


def test_too_few_steps_are_refused():
    """Two requests of three tokens teach nothing, and the sentence says how many steps there were."""
    with pytest.raises(CannotMeasure, match=r"hold 6 observed steps.*at least 30"):
        fit_runs([serve([(0.0, 64, 3)] * 2, users=1)])


def test_a_lost_request_spoils_only_its_own_moment():
    """A request that died without a token makes its busy period unknown; the others still count."""
    run = serve([(0.0, 64, 40)] * 4, users=1)
    whole = len(observe(run))
    dead = dataclasses.replace(run.rows[1], status="reset", chunk_s=())
    cut = dataclasses.replace(run, rows=(run.rows[0], dead, *run.rows[2:]))
    assert len(observe(cut)) == pytest.approx(whole * 3 / 4)


def test_engine_side_prefill_times_are_used():
    """Where the server times its prefills itself, the front end per prompt token is told apart."""
    run = serve([(0.0, isl, 24) for isl in (64, 256, 512, 1024) for _ in range(3)], users=1)
    assert coefficient(fit_runs([run]), "front_end_per_tok_s").source == "assumed"
    rows = tuple(
        dataclasses.replace(
            row,
            server={"prefill_s": TRUTH.const_s + TRUTH.per_prefill_tok_s * row.isl + TRUTH.per_prefill_pos_s * row.isl**2 / 2},
        )
        for row in run.rows
    )  # fmt: skip
    c = coefficient(fit_runs([dataclasses.replace(run, rows=rows)]), "front_end_per_tok_s")
    assert c.source == "measured"
    assert c.value == pytest.approx(TRUTH.front_end_per_tok_s, rel=0.1)


def test_held_out_residuals_are_reported():
    """A run that was not fitted shows the same small residuals; a server of twice the constant does not."""
    runs = probe_like(noise=0.01)
    same = serve([(0.0, 200, 40)] * 6, users=3, noise=0.01, seed=9)
    other = serve([(0.0, 200, 40)] * 6, users=3, step=dataclasses.replace(TRUTH, const_s=0.016))
    found = fit_runs(runs, batching=KNOWN["continuous"], held_out=[same, other])
    near, far = [r for r in found.residuals if r.held_out]
    assert near.median_abs_frac < 0.03
    assert far.bias_frac > 0.3


def test_hash_in_memory_is_the_hash_on_disk(tmp_path):
    """`run_sha256` of a run equals `content_sha256` of its folder."""
    run = serve([(0.0, 64, 10)] * 3, users=1)
    save_run(run, tmp_path / "run")
    assert run_sha256(run) == content_sha256(tmp_path / "run")


def test_a_few_tokens_in_one_chunk_are_as_many_steps():
    """A server that holds back half a character sends two tokens in one chunk: the step time stays the same."""
    run = serve([(0.0, 64, 41)] * 6, users=1)
    rows = tuple(
        dataclasses.replace(row, chunk_s=(row.chunk_s[0], *row.chunk_s[2::2]), chunk_tok=(1, *[2] * 20)) for row in run.rows
    )  # fmt: skip
    halved = dataclasses.replace(run, rows=rows)
    a, b = fit_runs([run]), fit_runs([halved])
    assert b.step.const_s + b.step.per_seq_s == pytest.approx(a.step.const_s + a.step.per_seq_s, rel=0.01)


@pytest.mark.slow
def test_an_engine_that_gains_nothing_from_small_batches_is_learned():
    """Each request up to 8 costs a whole step more, then none: a bend, though lone steps outnumber batches a hundred to one."""
    truth = StepTime(const_s=0.004, per_prefill_tok_s=0.003, per_kv_tok_s=5e-6, bend=((1, 0.0), (8, 0.077)))
    stairs = [(0.0, 48, 6 * (i + 2)) for i in range(16)]
    runs = [
        serve([(0.0, isl, 100) for isl in (32, 128, 512, 1000) for _ in range(3)], users=1, noise=0.05, step=truth),
        serve(stairs, users=16, noise=0.05, seed=1, step=truth, policy="chunked", budget_tok=2048),
        serve(stairs[:8], users=8, noise=0.05, seed=2, step=truth, policy="chunked", budget_tok=2048),
    ]
    found = fit_runs(runs, batching=Batching(policy="chunked", budget_tok=2048, seats=16)).step
    for seqs in (1, 2, 4, 8, 12, 16):
        expected = step_s(truth, seqs=seqs, kv_tok=60 * seqs)
        assert step_s(found, seqs=seqs, kv_tok=60 * seqs) == pytest.approx(expected, rel=0.10), seqs


def test_what_whole_tiles_gain_is_found_and_not_made_up():
    """A price for steps off the multiples of 128 comes back from prompts of both kinds; where there is none, it is zero."""
    lengths = (128, 256, 512, 1024, 67, 139, 279, 531, 997)

    def runs(step):
        alone = serve([(0.0, isl, 16) for isl in lengths * 3], users=1, step=step, noise=0.02, seed=4)
        return [*probe_like(step, noise=0.02), alone]

    found = fit_runs(runs(dataclasses.replace(TRUTH, ragged_tok_s=0.0002)), batching=KNOWN["continuous"])
    assert found.step.ragged_tok_s == pytest.approx(0.0002, rel=0.15)
    assert fit_runs(runs(TRUTH), batching=KNOWN["continuous"]).step.ragged_tok_s < 0.00002
