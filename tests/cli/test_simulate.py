"""`servefit simulate`: the contract of its switches, its JSON, its errors."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from click.testing import CliRunner

from servefit.calibrate.calibration import Batching, Calibration, load_calibration, save_calibration
from servefit.cli import simulate_long
from servefit.cli.simulate import command
from servefit.engine import flow, jump
from servefit.engine.jump import kernel_compiled
from servefit.errors import ServefitError
from servefit.physics.steptime import StepTime
from servefit.records import load_run
from servefit.workload import arrivals

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
    out = call("--rate", "40", "-n", "1000", "--osl", "4")
    for word in (
        "1,000 requests",
        "finished 1,000 of 1,000",
        "TTFT",
        "TPOT",
        "output tok/s",
        "step time: published",
        "next: servefit plan",
    ):
        assert word in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--rate", "-1"], "--rate is -1"),
        ([], "neither rate nor concurrency"),
        (["--rate", "1", "--policy", "magic"], "no batching policy 'magic'"),
        (["--rate", "1", "--seats", "0"], "seats is 0"),
        (["--rate", "1", "--budget-tok", "8"], "budget_tok 8 is below seats 64"),
        (["--rate", "1", "--horizon", "-2"], "--horizon is -2"),
        (["--trace", "nowhere.csv"], "nowhere.csv does not exist"),
        (["--rate", "1", "--router", "magic"], "no router 'magic'"),
        (["--rate", "1", "--policy", "dynamic", "--timeout", "nan"], "--timeout is nan"),
        (["--rate", "1", "--draft-tok", "999999999"], "--draft-tok is 999999999"),
    ],
)
def test_faults_are_one_sentence(args, words):
    """What cannot be asked is one sentence with its value."""
    with pytest.raises(ServefitError, match=words):
        CliRunner().invoke(command, [*BASE, *args], catch_exceptions=False, standalone_mode=False)


# --- with a calibration -----------------------------------------------------------------------------------------------


@pytest.fixture
def calibration(tmp_path):
    """A static server of 4 seats that waits 0.5 s for company, 2,048 tokens a step, in a file."""
    found = Calibration(
        step=StepTime(const_s=0.010, per_seq_s=0.001, per_prefill_tok_s=0.0005, source="measured", origin="test"),
        batching=Batching(policy="static", seats=4, budget_tok=2048, timeout_s=0.5), kv_tok=8192, block_tok=32,
        device="here", model="toy", mean_over_median=1.1,
    )  # fmt: skip
    save_calibration(found, tmp_path / "c.json")
    return tmp_path / "c.json"


def simulated(calibration, *args):
    """The JSON object of the verb with this calibration."""
    result = CliRunner().invoke(command, ["--calibration", str(calibration), "--json", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_a_calibration_brings_its_own_batching(calibration):
    """Seats, budget, cache, blocks and the wait are the server's; its batch is not padded; the file is named by hash."""
    value = simulated(calibration, "--concurrency", "4", "-n", "4", "--isl", "100", "--osl", "3")
    engine = value["engine"]
    assert [engine[k] for k in ("policy", "seats", "budget_tok", "kv_blocks", "padded")] == [
        "dynamic",
        4,
        2048,
        256,
        False,
    ]
    assert engine["block_tok"] == 32
    assert (value["target"], value["model"], list(value["inputs"])) == ("here", "toy", [str(calibration)])
    # a step of 400 prompt tokens, then two of four tokens, each 1.1 times the typical one
    assert value["summary"]["ttft_s"]["p50"] == pytest.approx(1.1 * (0.010 + 400 * 0.0005))
    assert value["summary"]["itl_s"]["p50"] == pytest.approx(1.1 * (0.010 + 4 * 0.001))


def test_a_budget_that_nobody_knows_is_said(calibration, tmp_path):
    """A continuous server whose budget was not seen: 2,048 are assumed, and the run says so; named, or known, it does not."""
    unknown = replace(load_calibration(calibration), batching=Batching(policy="continuous", seats=4))
    save_calibration(unknown, tmp_path / "u.json")
    asked = ("--concurrency", "1", "-n", "2")

    def codes(*args):
        return [f["code"] for f in simulated(*args)["summary"]["findings"]]

    assert "budget_assumed" in codes(tmp_path / "u.json", *asked)
    assert "budget_assumed" not in codes(tmp_path / "u.json", *asked, "--budget-tok", "2048")
    assert "budget_assumed" not in codes(calibration, *asked, "--policy", "continuous")


def test_what_is_said_wins_over_the_calibration(calibration):
    """Another policy, other seats, another budget: the same server, set otherwise."""
    engine = simulated(
        calibration, "--policy", "chunked", "--seats", "2", "--budget-tok", "64", "--rate", "2", "-n", "5"
    )["engine"]
    assert (engine["policy"], engine["seats"], engine["budget_tok"]) == ("chunked", 2, 64)
    waits = simulated(
        calibration, "--policy", "dynamic", "--timeout", "0.1", "--concurrency", "1", "-n", "2", "--isl", "10"
    )
    assert waits["summary"]["ttft_s"]["p50"] == pytest.approx(0.1 + 1.1 * (0.010 + 10 * 0.0005))


def test_prompts_beyond_the_budget_take_a_second_prefill_step(calibration):
    """Four prompts of 700 do not share 2,048 tokens: two are read, their first token comes, then the other two."""
    value = simulated(calibration, "--concurrency", "4", "-n", "4", "--isl", "700", "--osl", "2")
    first, second = 1.1 * (0.010 + 1400 * 0.0005), 2.2 * (0.010 + 1400 * 0.0005)
    assert value["summary"]["ttft_s"]["max"] == pytest.approx(second)
    assert value["summary"]["ttft_s"]["mean"] == pytest.approx((first + second) / 2)


def test_a_device_and_a_calibration_are_one_too_many(calibration):
    """One of them is refused, in a sentence."""
    with pytest.raises(ServefitError, match="both given"):
        simulated(calibration, "--device", "a100-80gb", "--rate", "1")


@pytest.mark.parametrize("fleet", [(), ("--replicas", "3", "--router", "least-outstanding")])
def test_a_long_load_is_counted_without_rows(monkeypatch, fleet):
    """Past so many requests: the same counts, hashes and rates, percentiles within a bin, and a note that says so."""
    if kernel_compiled() is None:
        pytest.skip("numba is not installed")
    asked = ("--rate", "9", "-n", "150", "--isl", "900", "--osl", "20", "--kv-blocks", "300", *fleet, "--json")
    whole = json.loads(call(*asked))
    monkeypatch.setattr(simulate_long, "LONG", 100)
    same_but_binned(json.loads(call(*asked)), whole)


def same_but_binned(found, whole):
    """The same figures, floats to a bin, and a note that says so."""
    notes, none = found["summary"].pop("findings"), whole["summary"].pop("findings")
    assert ([note["code"] for note in notes], none) == (["binned"], [])

    def compare(mine, wanted):
        if isinstance(wanted, dict):
            assert set(mine) == set(wanted)
            for name in wanted:
                compare(mine[name], wanted[name])
        else:
            assert mine == (pytest.approx(wanted, rel=4e-5) if isinstance(wanted, float) else wanted)

    compare(found, whole)


def azure(path, due_s):
    """A trace of so many rows, written there."""
    rows = [f"2023-11-16 18:{at // 60:02.0f}:{at % 60:06.3f},{300 + 7 * i},{1 + i % 40}" for i, at in enumerate(due_s)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return str(path)


@pytest.mark.parametrize("more", [(), ("-n", "120"), ("--replicas", "3")])
def test_a_long_trace_is_read_in_pieces(monkeypatch, tmp_path, more):
    """Past so many rows: the counts, hashes and rates of the whole trace, and no request of it is held."""
    if kernel_compiled() is None:
        pytest.skip("numba is not installed")
    asked = ("--trace", azure(tmp_path / "a.csv", [i * 0.11 for i in range(150)]), *more, "--json")
    whole = json.loads(call(*asked))
    monkeypatch.setattr(simulate_long, "LONG", 100)
    monkeypatch.setattr(flow, "PIECE", 32)
    monkeypatch.setattr(arrivals, "load_trace", None)
    same_but_binned(json.loads(call(*asked)), whole)


def test_a_long_trace_out_of_order_is_read_whole(monkeypatch, tmp_path):
    """One row that was asked before the one above it: the same output as always, and a sentence on stderr."""
    if kernel_compiled() is None:
        pytest.skip("numba is not installed")
    asked = ("--trace", azure(tmp_path / "a.csv", [*range(30), 28.5]), "--json")
    whole = call(*asked)
    monkeypatch.setattr(simulate_long, "LONG", 10)
    result = CliRunner().invoke(command, [*BASE, *asked], catch_exceptions=False)
    assert (result.stdout, result.exit_code) == (whole, 0)
    assert "is not in time order: all of it is held in memory" in result.stderr


def test_without_the_compiled_engine_the_memory_is_said(monkeypatch, tmp_path):
    """A long load without numba is simulated as a whole: the same output, and a sentence on stderr with the bytes."""
    asked = ("--trace", azure(tmp_path / "a.csv", range(30)), "--json")
    whole = call(*asked)
    monkeypatch.setattr(simulate_long, "LONG", 10)
    monkeypatch.setattr(jump, "kernel_compiled", lambda: None)
    monkeypatch.setattr(flow, "kernel_compiled", lambda: None)
    result = CliRunner().invoke(command, [*BASE, *asked], catch_exceptions=False)
    assert (result.stdout, result.exit_code) == (whole, 0)
    assert "without servefit[fast]" in result.stderr
    assert "a token of its answer" in result.stderr


def test_refused_requests_of_a_long_load_are_infinite(monkeypatch):
    """All are larger than the cache: none answered, each percentile with failures is infinite, and it is said."""
    if kernel_compiled() is None:
        pytest.skip("numba is not installed")
    asked = ("--rate", "9", "-n", "20", "--isl", "900", "--osl", "20", "--kv-blocks", "3", "--json")
    whole = json.loads(call(*asked))["summary"]
    monkeypatch.setattr(simulate_long, "LONG", 10)
    summary = json.loads(call(*asked))["summary"]
    assert (summary["ok"], summary["by_status"], summary["ttft_s"]["p50"]) == (0, {"rejected": 20}, None)
    assert summary["failures_as_inf"] == whole["failures_as_inf"]
    assert "20 of 20 requests are larger" in summary["findings"][0]["message"]


def test_long_work_says_how_far_it_has_got(monkeypatch):
    """On a terminal a load that is counted piece by piece has a bar: told at each piece, of all that are asked for."""
    if kernel_compiled() is None:
        pytest.skip("numba is not installed")
    told = []

    @contextmanager
    def recorded(*, quiet):
        told.append(quiet)
        yield lambda done, everything: told.append((done, everything))

    monkeypatch.setattr(simulate_long, "LONG", 100)
    monkeypatch.setattr(simulate_long, "progress", recorded)
    monkeypatch.setattr("servefit.engine.flow.PIECE", 40)
    call("--rate", "9", "-n", "150", "--isl", "90", "--osl", "2", "--json")
    assert told == [True, (0, 150), (40, 150), (80, 150), (120, 150)], "no terminal here, so nothing would be drawn"
