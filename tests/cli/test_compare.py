"""`servefit compare`: what it prints, its JSON, its gate, what it refuses."""

import json

import pytest

from explain.test_compare import HEADER, a_run
from servefit.records import save_run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Four runs: a base, a slower one, one asked otherwise, an invalid one."""
    from dataclasses import replace

    monkeypatch.chdir(tmp_path)
    save_run(a_run(1), tmp_path / "base")
    save_run(a_run(2, ttft_s=0.2), tmp_path / "slow")
    save_run(a_run(2, header=replace(HEADER, workload_sha256="b" * 64)), tmp_path / "unlike")
    save_run(a_run(2, header=replace(HEADER, verdict="invalid")), tmp_path / "invalid")
    return tmp_path


def test_people_see_each_figure_and_a_verdict(cli, runs):
    """A table with an interval a figure, one sentence, the method, what is next; the gate answers no."""
    code, out, _ = cli("compare", "base", "slow", "--ttft", "150ms")
    assert code == 0
    for words in (
        "slow: worse in TTFT p50",
        "cannot tell",
        "too few (400)",
        "share of good requests",
        "Newcombe",
        "next:",
    ):
        assert words in out
    assert cli("compare", "base", "slow", "--gate")[0] == 5
    assert cli("compare", "slow", "base", "--gate")[0] == 0


def test_json_is_one_object(cli, runs):
    """Every difference with interval, unit and outcome; several runs against one base."""
    code, out, _ = cli("compare", "base", "slow", "unlike", "--anyway", "--json")
    found = json.loads(out)
    assert code == 0 and len(found["comparisons"]) == 2
    first = found["comparisons"][0]["comparison"]
    assert first["outcome"] == "worse"
    ttft = next(d for d in first["differences"] if d["name"] == "TTFT p50")
    assert ttft["interval"][0] < ttft["difference"] < ttft["interval"][1]
    assert "They were not asked the same" in found["comparisons"][1]["comparison"]["warnings"][0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("base", "unlike"), "They were not asked the same"),
        (("base", "invalid"), "invalid is invalid"),
        (("base", "base"), "base is compared with itself"),
        (("base", "nowhere"), "nowhere/run.json does not exist"),
        (("base",), "Missing argument"),
        (("base", "slow", "--confidence", "120%"), "--confidence is 120%"),
        (("base", "slow", "--ttft", "soon"), "'soon' is not a number"),
    ],
)
def test_bad_input_is_one_sentence(cli, runs, args, words):
    """Exit code 2 and a sentence with the value."""
    code, out, err = cli("compare", *args)
    assert (code, out) == (2, "")
    assert words in err
