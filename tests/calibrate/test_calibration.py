"""A calibration survives the disk, refuses what it cannot be, and says where a workload leaves its domain."""

import json
import random
import statistics

import pytest

from calibrate.synthetic import TRUTH, probe_like
from servefit.calibrate.calibration import (
    Calibration,
    Domain,
    beyond,
    coefficient,
    draws,
    load_calibration,
    mean_step,
    save_calibration,
    typical_step,
)
from servefit.calibrate.fit import fit_runs
from servefit.errors import ServefitError
from servefit.physics.steptime import StepTime


@pytest.fixture(scope="module")
def learned():
    """A calibration from five small runs."""
    return fit_runs(probe_like())


def test_round_trip(learned, tmp_path):
    """What was saved is what is loaded, from the file or its folder."""
    save_calibration(learned, tmp_path / "calibration.json")
    assert load_calibration(tmp_path / "calibration.json") == learned
    assert load_calibration(tmp_path) == learned


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema_version": 99}, "schema version 99"),
        ({"schema_version": "1"}, "schema version '1'"),
        ({"step": {"const_s": -1.0}}, "const_s is -1.0"),
        ({"step": {"const_s": 0.01, "bend": [[1, 0.0], [8, -0.02]]}}, "-0.02 s at 8 tokens"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_damage_is_one_sentence(learned, tmp_path, change, sentence):
    """A newer schema, an impossible coefficient and an unknown key are each named."""
    path = tmp_path / "calibration.json"
    save_calibration(learned, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ServefitError, match=sentence):
        load_calibration(path)


def test_another_json_is_not_a_calibration(tmp_path):
    """A plan or any other JSON file is refused with what to do."""
    path = tmp_path / "plan.json"
    path.write_text("[]")
    with pytest.raises(ServefitError, match="is not a calibration"):
        load_calibration(path)


def test_beyond_names_the_farthest_first():
    """Context 6 times past the measured range comes before a batch twice past it; what is inside is not named."""
    domain = Domain(seqs=(1, 8), ctx_tok=(32, 128), prefill_tok=(32, 1000))
    found = beyond(domain, seqs=16, ctx_tok=768, prefill_tok=500, kv_tok=5)
    assert [(e.what, e.ratio) for e in found] == [("ctx_tok", 6.0), ("seqs", 2.0)]
    assert beyond(domain, prefill_tok=8)[0].ratio == 0.25


def test_draws_scatter_as_the_intervals_say(learned):
    """Drawn step times have the mean and the standard error of the fit, and never a negative coefficient."""
    drawn = draws(learned, 2000, random.Random(1))
    c = coefficient(learned, "const_s")
    values = [d.const_s for d in drawn]
    assert statistics.fmean(values) == pytest.approx(c.value, rel=0.01)
    assert statistics.pstdev(values) == pytest.approx((c.high - c.low) / 2 / 2.2, rel=0.15)
    assert min(d.front_end_per_tok_s for d in drawn) >= 0
    assert draws(learned, 3, random.Random(7)) == draws(learned, 3, random.Random(7))


def test_truth_is_among_the_draws(learned):
    """The known constant lies inside the range of the drawn ones."""
    values = sorted(d.const_s for d in draws(learned, 500, random.Random(2)))
    assert values[0] < TRUTH.const_s < values[-1]


def test_late_steps_are_in_the_mean_step_only():
    """Each time changes by the share that late steps add, the bend too; an absent factor changes nothing, and no factor goes too far."""
    step = StepTime(const_s=0.010, per_seq_s=0.001, front_end_s=0.004, bend=((1, 0.0), (4, 0.020)), p_norm=2.0)
    late = mean_step(Calibration(step=step, mean_over_median=1.2))
    assert (late.const_s, late.per_seq_s, late.front_end_s) == pytest.approx((0.012, 0.0012, 0.0048))
    assert late.bend == ((1, 0.0), (4, pytest.approx(0.024))) and late.p_norm == 2.0
    assert mean_step(Calibration(step=step)) == typical_step(Calibration(step=step)) == step
    assert mean_step(Calibration(step=step, mean_over_median=0.97)).const_s == pytest.approx(0.0097)
    assert mean_step(Calibration(step=step, mean_over_median=0.5)).const_s == pytest.approx(0.009)
    assert typical_step(Calibration(step=step, median_over_fit=0.95)).bend[1][1] == pytest.approx(0.019)
    assert mean_step(Calibration(step=step, mean_over_median=9.0)).const_s == pytest.approx(0.015)
