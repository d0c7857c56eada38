"""`plan` and `sweep` take the same target flags; the percentile is said once."""

import pytest

from servefit.cli import plan, sweep
from servefit.cli.promises import LATENCIES, goodput, latencies
from servefit.errors import ServefitError
from servefit.objectives import Targets

NONE = {flag: None for name in LATENCIES for flag in (name, f"{name}_p99")} | {"p": None}


@pytest.mark.parametrize("command", [plan.command, sweep.command])
def test_both_verbs_take_the_same_flags(command):
    """--ttft with --p, and --ttft-p99; likewise for TPOT and E2E."""
    flags = {opt for param in command.params for opt in param.opts}
    assert {f"--{name}" for name in LATENCIES} | {f"--{name}-p99" for name in LATENCIES} | {"--p"} <= flags


@pytest.mark.parametrize(
    ("given", "targets"),
    [
        ({"ttft": "500ms"}, {"ttft_s": 0.5}),
        ({"ttft": "500ms", "p": 90}, {"ttft_s": 0.5, "p": 90}),
        ({"ttft_p99": "500ms", "tpot_p99": "20ms"}, {"ttft_s": 0.5, "tpot_s": 0.02, "p": 99}),
        ({"ttft_p99": "500ms", "tpot": "20ms", "p": 99}, {"ttft_s": 0.5, "tpot_s": 0.02, "p": 99}),
        ({}, {}),
    ],
)
def test_a_flag_at_99_is_the_plain_one_with_that_percentile(given, targets):
    """The two ways of writing give the same targets; without any, none."""
    assert latencies(NONE | given) == targets


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ttft": "1s", "ttft_p99": "2s"}, "Both --ttft and --ttft-p99"),
        ({"ttft_p99": "2s", "p": 95}, "--ttft-p99 is at the 99th percentile, and --p is 95"),
        ({"ttft_p99": "2s", "tpot": "20ms"}, "--ttft-p99 names its percentile and --tpot none"),
        ({"e2e": "0"}, "--e2e is 0"),
        ({"tpot_p99": "-1ms"}, "'-1ms' is a time below zero"),
    ],
)
def test_what_contradicts_is_a_sentence(given, words):
    """One percentile holds for all of them, so two are refused rather than one chosen."""
    with pytest.raises(ServefitError, match=words):
        latencies(NONE | given)


def test_the_plan_holds_its_targets_at_the_percentile_that_is_asked(tmp_path, monkeypatch):
    """--ttft with --p 95 is p95 TTFT in the plan; --p alone leaves the usual targets."""
    monkeypatch.chdir(tmp_path)
    asked = dict.fromkeys(("goodput", "usd_per_hour", "usd_per_mtok"))
    found, defaults = plan._targets(Targets(), NONE | asked | {"ttft": "1s", "p": 95}, alone=True)
    assert (found.ttft_s, found.goodput_frac, found.p, defaults) == (1.0, 0.95, 95, ("goodput",))
    usual, defaults = plan._targets(Targets(), NONE | asked | {"p": 95}, alone=True)
    assert (usual.ttft_s, usual.tpot_s, usual.p, defaults) == (0.1, 0.01, 95, ("ttft", "tpot", "goodput"))


def test_goodput_is_read_alike():
    """A share with or without the percent sign for both verbs; a rate only where the load is not what is raised."""
    for rate in (False, True):
        assert (
            goodput("99%", rate=rate) == goodput("0.99", rate=rate) == {"goodput_frac": 0.99, "goodput_req_per_s": None}
        )
        for bad in ("0%", "0", "101%", "2", "4.5ms", "-1%"):
            with pytest.raises(ServefitError, match=r"goodput .* is no share above 0 and up to 1"):
                goodput(bad, rate=rate)
    assert (
        goodput("4.5/s", rate=True)
        == goodput("4.5 req/s", rate=True)
        == {"goodput_frac": None, "goodput_req_per_s": 4.5}
    )
    with pytest.raises(ServefitError, match="no rate above 0"):
        goodput("0/s", rate=True)
    with pytest.raises(ServefitError, match="is a rate, and the load is what is raised here"):
        goodput("4.5/s", rate=False)


@pytest.mark.parametrize("verb", ["plan", "sweep"])
def test_both_verbs_read_goodput_so(verb, cli):
    """The same share is refused by both in the same words."""
    code, _, err = cli(
        verb,
        *(("--model", "llama-3.1-8b", "--device", "l4", "--rate", "1") if verb == "plan" else ()),
        "--ttft",
        "1s",
        "--goodput",
        "0%",
    )
    assert code == 2
    assert "--goodput 0% is no share above 0 and up to 1" in err
