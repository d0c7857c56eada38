"""The whole search on small questions: ranges, the CPU that never passes, assumptions found by themselves, hard noes."""

import json
import re
from dataclasses import replace

import pytest

from servefit.calibrate.calibration import Calibration, Domain, Residual, load_calibration, save_calibration
from servefit.errors import ServefitError
from servefit.objectives import Targets
from servefit.physics.steptime import StepTime
from servefit.plan.bases import _calibration_error
from servefit.plan.edges import show
from servefit.plan.files import plan_to_json
from servefit.plan.search import make_plan
from servefit.plan.spec import GivenDevice, GivenPrice, PlanSpec
from servefit.workload.workload import Lengths, Workload

pytestmark = pytest.mark.slow

CHAT = Workload(n=120, isl=Lengths(mean=512), osl=Lengths(mean=256), rate_req_per_s=3.0)
SLO = Targets(ttft_s=0.5, tpot_s=0.03, goodput_frac=0.9)
QUESTION = PlanSpec(
    models=("llama-3.1-8b",), devices=("a100-80gb",), policies=("chunked",), workload=CHAT, targets=SLO, seeds=2
)


@pytest.fixture(scope="module")
def plan():
    """A100 and a server CPU under the same chat load."""
    return make_plan(replace(QUESTION, devices=("a100-80gb", "epyc-9654"), policies=("none", "chunked")))


def test_one_configuration_is_recommended_and_passes(plan):
    """D1, D7: exactly one candidate, every check of it passes, and its margins are those of its values."""
    best = plan.candidate(plan.recommended.id)
    assert best.verdict == "pass" and best.device == "a100-80gb"
    assert [c.name for c in best.checks] == ["ttft", "tpot", "memory", "goodput"]
    for check in best.checks:
        sign = 1 if check.at_most else -1
        assert check.margin == pytest.approx(sign * (check.target - check.value) / check.target, abs=1e-9)
        assert check.interval[0] <= check.value <= check.interval[1]


def test_the_low_edge_names_its_target(plan):
    """D8: below the passing range requests queue, so TTFT or goodput ends it; above, nothing more is ever in flight."""
    (found,) = [r for r in plan.ranges if r.device == "a100-80gb" and r.policy == "chunked"]
    assert found.passing and found.low.reached and found.low.outside_seats < found.low.seats
    assert found.low.check in {"ttft", "goodput"}
    assert not found.high.reached and "at once" in found.high.why_not


def test_the_cpu_row_says_which_check_it_never_passes(plan):
    """C16, D9: the CPU fails TPOT at every setting; its best value is the one at one seat."""
    (failure,) = plan.failures
    assert failure.device == "epyc-9654"
    tpot = next(n for n in failure.never if n.check == "tpot")
    values = [c.check("tpot").value for c in plan.candidates if c.device == "epyc-9654"]
    assert tpot.best_value == min(values) > SLO.tpot_s
    assert failure.sentence.startswith("epyc-9654 never passes p99 TPOT: its best is")


def test_seats_cost_memory_and_buy_capacity(plan):
    """D4: each trade's memory is its extra seats times one seat's KV at 768 tokens."""
    for trade in plan.seat_trades:
        assert trade.memory_bytes == trade.extra_seats * 48 * 16 * 131_072
    best = plan.candidate(plan.recommended.id)
    assert best.capacity.req_per_s > CHAT.rate_req_per_s * 0.9
    assert best.capacity.limited_by in {"ttft", "tpot", "goodput"}


def test_policies_see_the_same_requests(plan):
    """The hash of every schedule is in the plan, one per seed, and the seeds differ."""
    assert len(set(plan.schedule_sha256)) == 2


def test_cost_follows_from_price_and_throughput(plan):
    """Dollars per million tokens are the hourly price over the tokens of an hour, with the price's source and date."""
    best = plan.candidate(plan.recommended.id)
    hour = best.figures.output_tok_per_s * 3600
    assert best.cost.usd_per_mtok == pytest.approx(best.cost.usd_per_hour / hour * 1e6)
    assert best.cost.source and best.cost.as_of
    assert all(c.cost is None for c in plan.candidates if c.device == "epyc-9654")


def test_a_price_of_ones_own_goes_before_the_catalogues():
    """Another spelling of the device's name will do; the cost says who gave it; a price of a device not asked about is refused."""
    own = replace(QUESTION, given_prices=(GivenPrice(device="A100 80GB", usd_per_hour=0.25),), replicas=(2,))
    best = make_plan(own)
    c = best.candidate(best.recommended.id)
    assert (c.cost.usd_per_hour, c.cost.source, c.cost.as_of) == (0.5, "given by the user", "")
    (said,) = [a for a in best.assumptions if a.id == "price-date"] or [None]
    assert said is None or (said.source == "assumed" and "given by the user" in said.text)
    with pytest.raises(ServefitError, match="A price is given for h100-sxm, which is not among"):
        make_plan(replace(QUESTION, given_prices=(GivenPrice(device="h100-sxm", usd_per_hour=1.0),)))


def test_assumptions_are_sorted_by_how_little_they_may_move(plan):
    """Those that can change the decision come first, then the nearest breaking point."""
    ids = [a.id for a in plan.assumptions]
    assert {"step-source", "arrival-rate", "output-length", "arrival-burstiness", "kv-pool", "network"} <= set(ids)
    nearness = [a.breaking.factor if a.breaking else 1e9 for a in plan.assumptions if not a.changes_decision]
    nearness = [max(f, 1 / f) for f in nearness]
    assert nearness == sorted(nearness)
    rate = next(a for a in plan.assumptions if a.id == "arrival-rate")
    assert rate.breaking.value > rate.planned and rate.breaking.check in {"ttft", "tpot", "goodput"}


def test_what_ifs_change_one_thing(plan):
    """Fewer bits speed typing up; a prefix cache shortens the wait; more seats never quicken one user's pace."""
    by_id = {w.id: w for w in plan.what_ifs}
    assert by_id["precision-awq"].tpot_s[1] < by_id["precision-awq"].tpot_s[0]
    assert "memory" in by_id["precision-awq"].changes
    assert by_id["prefix-cache"].ttft_s[1] < by_id["prefix-cache"].ttft_s[0]
    assert by_id["seats-x2"].tpot_s[1] >= by_id["seats-x2"].tpot_s[0] * 0.999


def test_two_processes_give_the_same_bytes(plan):
    """`jobs` changes nothing in the plan."""
    spec = replace(QUESTION, workload=replace(CHAT, n=40), policies=("none", "chunked"), seats=(8, 16))
    assert json.dumps(plan_to_json(make_plan(spec))) == json.dumps(plan_to_json(make_plan(spec, jobs=2)))


# --- a calibration used past its context (D10) ------------------------------------------------------------------------


@pytest.fixture
def calibrated(tmp_path):
    """Decode steps measured at 128 tokens of context, on 4.9 GB of weights, used for 512 in and 256 out."""
    step = StepTime(const_s=0.010, per_seq_s=0.0002, per_prefill_tok_s=2e-5, source="measured", origin="test")
    path = tmp_path / "calibration.json"
    save_calibration(
        Calibration(
            step=step, device="this-machine", engine="e", model="llama-3.1-8b",
            domain=Domain(seqs=(1, 32), ctx_tok=(128, 128), prefill_tok=(64, 1024)),
            residuals=(Residual(run="r", n=100, bias_frac=0.01, median_abs_frac=0.02, p90_abs_frac=0.05, held_out=True),),
        ),
        path,
    )  # fmt: skip
    machine = GivenDevice(name="this-machine", kind="unified", memory_bytes=36 * 10**9, bandwidth_bytes_per_s=546e9)
    return PlanSpec(
        models=("llama-3.1-8b",), precisions=("q4_k_m",), given_devices=(machine,), calibrations=(str(path),),
        policies=("chunked",), seats=(24,), workload=replace(CHAT, rate_req_per_s=5.0), targets=SLO, seeds=1,
    )  # fmt: skip


def test_the_short_calibration_is_found_by_itself(calibrated):
    """D10: measured at 128, used at 768: at 24 seats a step reads 1.38 times the bytes; TPOT and TTFT are optimistic."""
    plan = make_plan(calibrated)
    (found,) = [a for a in plan.assumptions if a.id == "context-length"]
    assert (found.measured, found.reached[1], found.source) == ((128.0, 128.0), 768.0, "measured")
    ratios = [found.details[f"step_bytes_ratio_at_{s}_seats"] for s in (1, 8, 16, 24, 32, 64)]
    assert ratios == pytest.approx([1.017, 1.133, 1.260, 1.380, 1.494, 1.899], abs=0.003)
    directions = {b.check: b.direction for b in found.biases}
    assert directions["tpot"] == directions["ttft"] == "optimistic"
    assert directions["memory"] == "none"
    assert "128 tokens" in found.text and "768 tokens" in found.text


def test_a_calibration_that_reaches_far_enough_assumes_nothing_about_context(calibrated, tmp_path):
    """Measured up to 1,024 tokens, 768 are inside: no such assumption."""
    text = (
        (tmp_path / "calibration.json")
        .read_text()
        .replace('"ctx_tok": [\n      128,\n      128', '"ctx_tok": [\n      128,\n      1024')
    )
    (tmp_path / "calibration.json").write_text(text)
    assert "context-length" not in [a.id for a in make_plan(calibrated).assumptions]


def test_the_error_of_a_calibration_is_that_of_its_runs_not_of_its_steps():
    """A run off by 8% with 4% scatter over 100 steps makes 2 * (8% + 0.4%); single steps that scatter by half do not."""

    def error(bias, scatter):
        run = Residual(run="r", n=100, bias_frac=bias, median_abs_frac=scatter, p90_abs_frac=0.9, held_out=True)
        return _calibration_error(Calibration(step=StepTime(), residuals=(run,)))

    assert error(0.08, 0.04) == pytest.approx(0.168)
    assert error(0.0, 0.5) == pytest.approx(0.1)
    assert error(0.0, 0.01) == 0.05


def test_a_calibrated_row_is_measured_and_named_by_hash(calibrated):
    """The row's step time is measured, its error is that of the held-out runs, and the file stands among the inputs."""
    plan = make_plan(calibrated)
    (basis,) = plan.bases
    assert (basis.source, basis.lower_bound) == ("measured", False)
    assert basis.error_frac == 0.05  # the floor: 2 * (1% + 2% / sqrt(100)) is less
    assert list(plan.inputs) == list(calibrated.calibrations)
    assert len(plan.inputs[calibrated.calibrations[0]]) == 64


def test_a_calibrated_server_is_planned_as_it_runs(calibrated, tmp_path):
    """Its batches are not padded, its cache has its own blocks, and late steps are in the step time."""
    path = tmp_path / "calibration.json"
    save_calibration(replace(load_calibration(path), kv_tok=64_000, block_tok=32, mean_over_median=1.1), path)
    few = replace(calibrated, policies=("static",), seats=(4,), workload=replace(calibrated.workload, n=12))
    plan = make_plan(few)
    (found,) = plan.candidates
    assert (found.memory.block_tok, found.memory.kv_pool_blocks) == (32, 2000)
    assert plan.bases[0].step.const_s == pytest.approx(0.011)
    assert found.figures != make_plan(replace(few, padded=True)).candidates[0].figures


# --- answers that are no ----------------------------------------------------------------------------------------------


def test_a_model_that_fits_nowhere():
    """A 70B in 16 bit on one 24 GB card: the sentence names the sizes, the fix what holds it."""
    plan = make_plan(replace(QUESTION, models=("llama-3.1-70b",), devices=("rtx-4090",)))
    assert plan.recommended is None and plan.nearest is None
    assert "fits on none of rtx-4090" in plan.answer and "141" in plan.answer
    assert "--device" in plan.nearest_fix
    assert all(c.figures is None and c.verdict == "fail" for c in plan.candidates)


def test_a_tpot_below_physics():
    """2 ms a token from an A100 that needs 7.4 ms to read the weights once."""
    plan = make_plan(replace(QUESTION, targets=replace(SLO, tpot_s=0.002), seats=(1, 8)))
    assert "below what physics allows" in plan.answer and "2.00 ms" in plan.answer
    assert "--precision" in plan.nearest_fix or "--device" in plan.nearest_fix


def test_a_rate_that_nothing_carries():
    """A hundred requests a second: what one carries, and how many replicas would do."""
    plan = make_plan(replace(QUESTION, workload=replace(CHAT, rate_req_per_s=60.0, n=300), seats=(32, 64)))
    assert plan.recommended is None
    assert "Nothing here carries" in plan.answer
    assert "replicas of it would carry" in plan.nearest_fix


def test_an_empty_trace(tmp_path):
    """A trace without a row is refused before anything is simulated."""
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(ServefitError, match=r"trace\.csv"):
        make_plan(replace(QUESTION, workload=Workload(n=10, trace=str(path))))


def test_names_that_are_not_there():
    """No model, no device, an unknown one: each is one sentence."""
    with pytest.raises(ServefitError, match="No model is named"):
        make_plan(replace(QUESTION, models=()))
    with pytest.raises(ServefitError, match="No device is named") as none:
        make_plan(replace(QUESTION, devices=()))
    assert "servefit devices" in (none.value.hint or "")
    with pytest.raises(ServefitError, match="a100-800gb"):
        make_plan(replace(QUESTION, devices=("a100-800gb",)))


def test_precisions_without_scores_are_said_to_be():
    """Two precisions and no scores: the plan says what they were compared on; one precision needs no such words."""
    both, one = (
        " ".join(make_plan(replace(QUESTION, precisions=names, seats=(48,), seeds=1)).notes)
        for names in (("bf16", "awq"), ("bf16",))
    )
    assert "awq and bf16 are compared on speed and cost alone" in both
    assert "speed and cost alone" not in one


def test_quality_keeps_a_fast_precision_from_winning(tmp_path):
    """Scores below the target fail their precision, whatever its speed."""
    path = tmp_path / "quality.json"
    path.write_text(json.dumps({"bf16": 0.70, "awq": {"results": {"mmlu": {"acc,none": 0.60}}}}))
    plan = make_plan(
        replace(QUESTION, precisions=("bf16", "awq"), seats=(48,), quality=str(path), quality_at_least=0.68)
    )
    verdicts = {c.precision: c.check("quality").verdict for c in plan.candidates}
    assert verdicts == {"bf16": "pass", "awq": "fail"}


# --- too close to call -------------------------------------------------------------------------------------------------

CLOSE = PlanSpec(
    models=("llama-3.1-8b",), devices=("l4",), precisions=("int8",), tp=(2,), policies=("chunked",), seats=(64,),
    workload=Workload(n=300, isl=Lengths(mean=500), osl=Lengths(mean=250), rate_req_per_s=5.0),
    targets=Targets(ttft_s=1.0, tpot_s=0.04, goodput_frac=0.99), seeds=2,
)  # fmt: skip


def _targets_in(fix):
    """The targets that a sentence of advice names: "With p99 TPOT at most 46.9 ms and goodput at least 90.0% ..."."""
    found = re.findall(r"(TTFT|TPOT|goodput) at (?:most|least) ([\d.]+) ?(ms|s|%)", fix)
    names = {"TTFT": "ttft_s", "TPOT": "tpot_s", "goodput": "goodput_frac"}
    return {names[what]: float(value) * {"ms": 1e-3, "s": 1.0, "%": 1e-2}[unit] for what, value, unit in found}


@pytest.mark.parametrize(
    "targets",
    [CLOSE.targets, replace(CLOSE.targets, ttft_s=0.3, tpot_s=0.036)],
    ids=["tpot", "ttft-and-tpot"],
)
def test_the_advice_is_enough(targets):
    """Every check in doubt is named with what it may be; the targets that the advice names, and no other change, pass."""
    plan = make_plan(replace(CLOSE, targets=targets))
    (only,) = plan.candidates
    assert plan.recommended is None
    for check in only.checks:
        assert (check.label in plan.nearest.rule) == (check.verdict != "pass")
        if check.verdict == "too close to call":
            highest = re.escape(show(check.interval[1], check.unit))
            assert re.search(f"{check.label} is [^;]*, but may be [^;]*{highest}", plan.answer)
    looser = _targets_in(plan.nearest_fix)
    assert looser
    assert make_plan(replace(CLOSE, targets=replace(targets, **looser))).recommended is not None


def test_a_price_that_is_missed():
    """A dollar more than was offered: the advice names what it costs, rounded up, and that passes."""
    dear = replace(QUESTION, seats=(32,), targets=replace(SLO, usd_per_hour=0.5))
    plan = make_plan(dear)
    (price,) = re.findall(r"cost per hour at most \$([\d.]+) it would pass", plan.nearest_fix)
    assert plan.recommended is None and "misses by least: cost per hour" in plan.answer
    assert make_plan(replace(dear, targets=replace(SLO, usd_per_hour=float(price)))).recommended is not None


def test_a_what_if_is_as_doubtful_as_a_candidate():
    """Weights in awq instead of int8: the same verdict and the same figure as planned with --precision awq."""
    (found,) = [w for w in make_plan(CLOSE).what_ifs if w.id == "precision-awq"]
    (candidate,) = make_plan(replace(CLOSE, precisions=("awq",))).candidates
    assert found.verdict == candidate.verdict == "too close to call"
    assert found.tpot_s[1] == candidate.figures.tpot_s.p99


@pytest.mark.parametrize("p", [50, 95])
def test_trade_offs_are_at_the_percentile_that_was_asked_for(p: int):
    """What-ifs and trades of seats: the latencies of the targets' percentile, and no other's."""
    plan = make_plan(replace(QUESTION, targets=replace(SLO, p=p)))
    best = plan.candidate(plan.recommended.id)
    assert plan.what_ifs and plan.seat_trades
    for w in plan.what_ifs:
        assert (w.p, w.ttft_s[0], w.tpot_s[0]) == (p, best.figures.ttft_s.at(p), best.figures.tpot_s.at(p)), w.id
    for t in plan.seat_trades:
        a, b = (plan.candidate(x).figures for x in (t.from_id, t.to_id))
        assert (t.p, t.ttft_s) == (p, b.ttft_s.at(p) - a.ttft_s.at(p))
        assert t.tpot_s == b.tpot_s.at(p) - a.tpot_s.at(p)


@pytest.mark.parametrize(
    ("n", "p", "enough"), [(99, 99, 1000), (100, 99, None), (19, 95, 200), (20, 95, None), (1, 50, 20), (2, 50, None)]
)
def test_few_requests_are_said(n: int, p: int, enough: int | None):
    """Where the percentile is the slowest request, one request decides: said, with how many put ten beyond it."""
    spec = replace(QUESTION, targets=replace(SLO, p=p), workload=replace(CHAT, n=n), seats=(48,), seeds=1)
    said = [note for note in make_plan(spec).notes if f"p{p} of {n} requests" in note]
    assert len(said) == (enough is not None)
    assert enough is None or f"-n {enough} " in said[0]
