"""`servefit simulate`: the contract of its switches, its JSON, its errors."""

import json

import pytest
from click.testing import CliRunner

from servefit.cli.simulate import command
from servefit.errors import ServefitError
from servefit.records import load_run

BASE = ["--device", "a100-80gb", "--model", "llama-3.1-8b"]


def call(*args):
    """Run the verb; returns its output."""
    result = CliRunner().invoke(command, [*BASE, *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_json_has_the_contracts_summary(tmp_path):
    """One object; n, ok, failed, by_status, four spreads, rates, verdict, findings; the run is saved beside it."""
    out = call("--rate", "4", "-n", "30", "--isl", "128", "--osl", "16", "--json", "--out", str(tmp_path / "run"))
    value = json.loads(out)
    summary = value["summary"]
    assert (summary["n"], summary["ok"], summary["failed"], summary["by_status"]) == (30, 30, 0, {"ok": 30})
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        assert set(summary[name]) == {"p50", "p90", "p95", "p99", "mean", "max", "n"}
    assert summary["verdict"] == "valid"
    assert load_run(tmp_path / "run").header.schedule_sha256 == value["schedule_sha256"]


def test_the_same_call_gives_the_same_bytes():
    """Twice the same question, twice the same answer."""
    args = ("--concurrency", "4", "-n", "20", "--policy", "continuous", "--seats", "4", "--json")
    assert call(*args) == call(*args)


def test_people_see_a_table_and_what_is_next():
    """A table of four latencies, the throughput, the source of the step time, the next command."""
    out = call("--rate", "4", "-n", "10")
    for word in ("TTFT", "TPOT", "output tok/s", "step time: published", "next: servefit plan"):
        assert word in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--rate", "-1"], "rate_req_per_s is -1.0"),
        ([], "neither rate nor concurrency"),
        (["--rate", "1", "--policy", "magic"], "no batching policy 'magic'"),
        (["--rate", "1", "--seats", "0"], "seats is 0"),
        (["--rate", "1", "--budget-tok", "8"], "budget_tok 8 is below seats 64"),
        (["--rate", "1", "--horizon", "-2"], "--horizon is -2.0"),
        (["--trace", "nowhere.csv"], "nowhere.csv does not exist"),
    ],
)
def test_faults_are_one_sentence(args, words):
    """What cannot be asked is one sentence with its value."""
    with pytest.raises(ServefitError, match=words):
        CliRunner().invoke(command, [*BASE, *args], catch_exceptions=False, standalone_mode=False)
