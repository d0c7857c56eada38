"""The question: read from TOML with its shorthands, refused in one sentence where it makes no sense."""

import pytest

from servefit.errors import ServefitError
from servefit.plan.spec import FILE_EXAMPLE, load_spec, spec_from_table


def test_the_example_in_the_reference_is_a_question(tmp_path):
    """Times with units, lengths as one number, and a trace beside the file."""
    path = tmp_path / "plan.toml"
    path.write_text(FILE_EXAMPLE.replace("n = 1000\nrate_req_per_s = 4", 'trace = "trace.csv"'))
    spec = load_spec(path)
    assert (spec.targets.ttft_s, spec.targets.tpot_s) == (0.5, 0.03)
    assert (spec.workload.isl.mean, spec.workload.osl.kind) == (512, "fixed")
    assert spec.workload.trace == str(tmp_path / "trace.csv")
    assert spec.devices == ("a100-80gb", "rtx-4090")


def test_a_misspelt_key_is_named_with_its_path(tmp_path):
    """`tpott` is no target."""
    path = tmp_path / "plan.toml"
    path.write_text(FILE_EXAMPLE.replace("tpot =", "tpott ="))
    with pytest.raises(ServefitError, match="tpott"):
        load_spec(path)


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"seats": [4, 0]}, "seats has 0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"headroom_frac": 1.5}, "headroom_frac is 1.5"),
        ({"targets": {"tpot_s": -0.01}}, "tpot_s is -0.01"),
        ({"targets": {"p": 97}}, "p is 97"),
        ({"targets": {"goodput_frac": 99}}, "goodput_frac is 99"),
    ],
)
def test_impossible_numbers_are_refused_with_the_value(table, word):
    """A seat count of 0, no schedule at all, a headroom that is no share."""
    with pytest.raises(ServefitError, match=word):
        spec_from_table(table, where="flags")
