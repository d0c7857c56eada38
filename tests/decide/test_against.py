"""What would change it: expressions over a run, what a run may say, and what is recorded."""

import pytest

from decide.case import make_case, make_run
from servefit.decide.against import evaluate_on, expressions, hold, prediction_said, vocabulary
from servefit.decide.decision import Checked, parse_decision, recorded
from servefit.decide.verify import verify
from servefit.errors import CannotMeasure, ServefitError


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A decision that holds."""
    return verify(make_case(tmp_path_factory.mktemp("case")))


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("ttft.p99 > 0.2 s", True),
        ("ttft.p99 > 200 ms and tpot.p99 > 1 s", False),
        ("ttft.p99 > ttft.target", False),
        ("not ttft.p99 <= 0.1 s", True),
        ("failed.share > 1%", False),
        ("goodput.share < 99.5 % or n < 5", False),
        ("gap.ttft.p99 > 20%", False),
        ("ttft.p99 > 2 * tpot.p99 + 10 ms", True),
        ("output.rate >= 1,000 tok/s", True),
        ("goodput.rate < 240 req/min", True),
        ("n >= 600", True),
    ],
)
def test_expressions_are_evaluated_with_units(report, text, holds):
    """A literal has the unit that stands behind it; names are the run's figures."""
    assert evaluate_on(text, vocabulary(report.ledger, None))[0] is holds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft.p99 > 0.1", "compares a time with a bare number"),
        ("ttft.p99 > 5%", "compares a time with a ratio"),
        ("ttft.p99 > output.rate", "compares a time with a token rate"),
        ("ttft.p99 > 5 parsec", "'parsec'"),
        ("ttft.p999 > 5 s", "'ttft.p999' is no value"),
        ("ttft.p99", "is a number, not a comparison"),
        ("ttft.p99 > ", "is not an expression"),
        ("__import__('os').system('true')", "not allowed"),
        ("ttft.p99 > 9**9**9 * 1 s", "finite"),
        ("policy > 3", "'policy' is no value"),
    ],
)
def test_what_is_no_expression_is_one_sentence(report, text, said):
    """Units are checked, and nothing is executed."""
    with pytest.raises(ServefitError, match=r".") as caught:
        evaluate_on(text, vocabulary(report.ledger, None))
    assert said in caught.value.message


def test_nothing_observed_decides_nothing(report, tmp_path):
    """A run in which every request failed has no TTFT: that is no confirmation."""
    make_run(tmp_path / "failed", n=1)
    text = (tmp_path / "failed" / "requests.jsonl").read_text()
    (tmp_path / "failed" / "requests.jsonl").write_text(text.replace('"ok"', '"timeout"'))
    with pytest.raises(CannotMeasure, match="nothing was observed of ttft"):
        hold(report.decision, report.ledger, tmp_path / "failed")


def test_a_fast_run_confirms_and_a_slow_one_overturns(report, tmp_path):
    """The default expression is: any target missed on the real system."""
    make_run(tmp_path / "good", ttft_s=0.49)
    make_run(tmp_path / "bad", ttft_s=0.51)
    good, bad = (hold(report.decision, report.ledger, tmp_path / name) for name in ("good", "bad"))
    assert (good.result, bad.result) == ("confirmed", "overturned")
    assert {name: value for name, value, _ in bad.outcomes[0].values}["ttft.p99"] == pytest.approx(0.51)
    [pair] = [p for p in bad.pairs if p.name == "ttft.p99"]
    assert (pair.predicted, round(pair.gap_frac, 3)) == (0.21, round(0.51 / 0.21 - 1, 3))


def test_a_decision_can_stand_where_its_prediction_does_not(report, tmp_path):
    """No target is missed, yet what was measured lies outside the check's interval: both are said, in one sentence."""
    interval = report.ledger.candidate.check("ttft").interval
    assert interval[1] < 0.49
    make_run(tmp_path / "slow", ttft_s=0.49)
    make_run(tmp_path / "as-said", ttft_s=sum(interval) / 2)
    slow, fine = (hold(report.decision, report.ledger, tmp_path / name) for name in ("slow", "as-said"))
    assert (slow.result, "ttft.p99" in slow.outside, "ttft.p99" in fine.outside) == ("confirmed", True, False)
    assert {p.name: p.interval for p in slow.pairs}["ttft.p99"] == interval
    make_run(tmp_path / "fast", ttft_s=interval[0] / 2)  # better than predicted is not as predicted either
    assert "ttft.p99" in hold(report.decision, report.ledger, tmp_path / "fast").outside
    said = prediction_said(slow)
    assert said.startswith("The decision stands, the prediction does not: ") and "p99 TTFT is 490 ms, expected " in said
    assert "p99 TTFT" not in prediction_said(fine)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"kind": "simulated"}, "simulated"),
        ({"verdict": "invalid"}, "not valid"),
        ({"engine": {"policy": "static"}}, "policy static"),
        ({"engine": {"policy": "chunked", "seats": 8}}, "seats 8"),
    ],
)
def test_a_run_that_says_nothing_about_it_is_refused(report, tmp_path, header, said):
    """Another configuration, a simulation and an invalid run neither confirm nor overturn."""
    make_run(tmp_path / "run", **header)
    with pytest.raises(CannotMeasure, match=said):
        hold(report.decision, report.ledger, tmp_path / "run")


def test_another_or_a_lighter_load_is_said(report, tmp_path):
    """Less load than was planned for confirms nothing, and the run says in what it was lighter; it can overturn all the same."""
    make_run(tmp_path / "short", workload_sha256="other", osl=20)
    short = hold(report.decision, report.ledger, tmp_path / "short")
    assert short.result == "open" and "not the plan's" in " ".join(short.notes)
    assert "mean answer is 20 tok against the plan's 256 tok" in " ".join(short.notes)
    make_run(tmp_path / "seldom", every_s=1.0)
    seldom = hold(report.decision, report.ledger, tmp_path / "seldom")
    assert seldom.result == "open" and "rate is 1.00 req/s against the plan's 4.00 req/s" in " ".join(seldom.notes)
    make_run(tmp_path / "slow", every_s=1.0, ttft_s=0.51)
    assert hold(report.decision, report.ledger, tmp_path / "slow").result == "overturned"
    make_run(tmp_path / "more", every_s=0.2, osl=300)
    assert hold(report.decision, report.ledger, tmp_path / "more").result == "confirmed"


def test_a_lighter_run_is_not_recorded(cli, tmp_path):
    """`--against` with a lighter load ends with 3, and the decision file is as it was."""
    (tmp_path / "case").mkdir()
    decision = make_case(tmp_path / "case")
    before = decision.read_bytes()
    make_run(tmp_path / "light", every_s=1.0)
    code, out, _ = cli("verify", str(decision), "--against", str(tmp_path / "light"))
    assert (code, decision.read_bytes()) == (3, before)
    assert "neither confirmed nor overturned by" in out


def test_another_machine_or_model_is_said(report, tmp_path):
    """A server on this very machine, or one that calls its model otherwise, may not be what was decided on."""
    make_run(tmp_path / "run", endpoint={"url": "http://127.0.0.1:8000"}, model="tiny-1b")
    notes = " ".join(hold(report.decision, report.ledger, tmp_path / "run").notes)
    assert "on the measuring machine itself" in notes and "calls itself tiny-1b" in notes
    make_run(tmp_path / "far", endpoint={"url": "http://gpu.example:8000"}, model=report.ledger.candidate.model)
    notes = " ".join(hold(report.decision, report.ledger, tmp_path / "far").notes)
    assert "measuring machine" not in notes and "calls itself" not in notes


def test_a_result_is_recorded_in_the_front_matter_alone(report):
    """Newest first; only an overturning changes the status; the body and other keys stay as they are."""
    body = report.decision.text[report.decision.front_end :]
    first = Checked(run="real", sha256="a" * 64, date="2026-12-01", result="confirmed")
    second = Checked(run="../x y", sha256="b" * 64, date="2026-12-02", result="overturned")
    once = parse_decision(recorded(report.decision, first, where="d"), where="d")
    assert (once.front.status, once.front.checked_against) == ("proposed", (first,))
    twice = parse_decision(recorded(once, second, where="d"), where="d")
    assert (twice.front.status, twice.front.checked_against) == ("overturned", (second, first))
    assert twice.text.endswith(body)


def test_a_front_matter_laid_out_otherwise_is_left_alone(report):
    """Where a line cannot be added, a sentence says so and nothing is written."""
    text = report.decision.text
    flow = text.replace("servefit:\n", "servefit: {", 1)
    head, rest = flow.split("---\n\n#", 1)
    table = head.split("servefit: {", 1)[1]
    import json

    import yaml

    value = yaml.safe_load("servefit:\n" + table)["servefit"]
    flow = head.split("servefit: {", 1)[0] + "servefit: " + json.dumps(value) + "\n---\n\n#" + rest
    checked = Checked(run="real", sha256="a", date="2026-12-01", result="confirmed")
    with pytest.raises(ServefitError, match="cannot be added"):
        recorded(parse_decision(flow, where="d"), checked, where="d")


def test_a_recorded_check_is_held_true(tmp_path):
    """The run that was held against must stay the same and keep saying what is recorded; a flipped status is found."""
    path = make_case(tmp_path, runs=0)
    make_run(tmp_path / "bad", ttft_s=0.6)
    before = verify(path)
    from servefit.records import content_sha256

    checked = Checked(run="bad", sha256=content_sha256(tmp_path / "bad"), date="2026-12-01", result="overturned")
    path.write_text(recorded(before.decision, checked, where="d"))
    assert verify(path).holds
    text = path.read_text()
    for old, new, code in (
        ("status: overturned", "status: accepted", "STALE"),
        ("result: overturned", "result: confirmed", "STALE"),
        (checked.sha256, "0" * 64, "SOURCE"),
    ):
        path.write_text(text.replace(old, new))
        assert code in [f.code for f in verify(path).findings], new
    assert len(expressions(before.decision)) == 1
