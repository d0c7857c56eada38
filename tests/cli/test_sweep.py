"""`servefit sweep`: on a simulated configuration and on a real server over loopback; resumed; its bad inputs."""

import json
from types import SimpleNamespace

import pytest

from servefit.cli.sweep import _how_long
from servefit.records import load_run
from servefit.traps.server import in_thread

SIMULATED = ("sweep", "--device", "a100-80gb", "--model", "llama-3.1-8b", "--quiet")


def test_a_configuration_until_it_breaks(cli, tmp_path):
    """Users double until TTFT breaks, each load is a run on disk, the answer names the edge, twice the same."""
    args = (*SIMULATED, "--users", "1..16", "--ttft", "150ms", "--osl", "8", "--peak", "120", "--json")
    code, out, _ = cli(*args, "--out", tmp_path / "a")
    assert code == 0
    found = json.loads(out)
    assert found["up_to"] < found["breaks_at"]
    assert found["replicas"]["at_peak"] == -(-120 // int(found["up_to"]))
    assert [s["load"] for s in found["steps"]] == sorted(s["load"] for s in found["steps"])
    for step in found["steps"]:
        assert len(load_run(tmp_path / "a" / step["run"]).load_rows) == step["n"]
    assert json.loads((tmp_path / "a" / "sweep.json").read_text()) == found
    again = json.loads(cli(*args, "--out", tmp_path / "b")[1])
    assert {**again, "folder": ""} == {**found, "folder": ""}


def test_resume_asks_only_what_is_missing(cli, tmp_path):
    """A finished load is read from its folder, untouched; one that is gone is run again."""
    args = (*SIMULATED, "--users", "1,2,4", "--ttft", "10s", "--osl", "4", "--json", "--out", tmp_path / "s")
    first = cli(*args)[1]
    kept = (tmp_path / "s" / "users-00001" / "run.json").stat().st_mtime_ns
    for file in (tmp_path / "s" / "users-00004").iterdir():
        file.unlink()
    code, out, _ = cli(*args, "--resume")
    assert (code, json.loads(out)) == (0, json.loads(first))
    assert (tmp_path / "s" / "users-00001" / "run.json").stat().st_mtime_ns == kept
    code, _, err = cli(*args[:-1], tmp_path / "s", "--resume", "--isl", "9")
    assert code == 2 and "holds another sweep: its workload sha256 differs" in err
    assert "holds a sweep already" in cli(*args)[2]


def test_a_target_that_no_load_meets_is_a_no(cli, tmp_path):
    """Exit code 5, and the sentence says at which load."""
    code, out, _ = cli(*SIMULATED, "--ttft", "1ms", "--osl", "4", "--out", tmp_path / "s")
    assert code == 5
    assert "does not hold at 1 user, the smallest load tried" in out
    assert "next: servefit explain" in out


def test_rates_and_a_figure(cli, tmp_path):
    """An open loop, with the figure as SVG."""
    pytest.importorskip("vl_convert")
    picture = tmp_path / "f.svg"
    code, out, _ = cli(
        *SIMULATED, "--rates", "1,4", "--tpot", "1s", "--osl", "4", "--out", tmp_path / "s", "--figure", picture
    )
    assert code == 0 and "edge was not reached" in out
    assert picture.read_text().startswith("<svg")


@pytest.mark.slow
def test_a_server_is_measured_the_same_way(cli, tmp_path, monkeypatch):
    """A real server over loopback: runs of kind measured, prompts that no earlier load had, one look at the server."""
    monkeypatch.chdir(tmp_path)
    with in_thread(speed=8) as server:
        before = len(server.seen.requests)
        code, out, _ = cli(
            "sweep", f"{server.url}/plain", "--model", "m", "--users", "1,2", "-n", "4", "--ttft", "5s", "--osl", "20",
            "--isl", "64", "--json", "--quiet", "--out", tmp_path / "s",
        )  # fmt: skip
        asked = [
            body["messages"][0]["content"]
            for _, _, body in server.seen.requests[before:]
            if body and "messages" in body
        ]
    assert code == 0
    found = json.loads(out)
    runs = [load_run(tmp_path / "s" / step["run"]) for step in found["steps"]]
    assert [run.header.load["concurrency"] for run in runs] == [1, 2]
    assert not found["simulated"] and {run.header.kind for run in runs} == {"measured"}
    assert len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "Neither a target nor a configuration is named"),
        (("http://127.0.0.1:9", "--device", "a100-80gb"), "and a configuration to simulate are named"),
        (("--users", "1", "--rates", "1"), "Both --users and --rates are given"),
        (("--users", "many"), "--users many is no list of loads"),
        (("--users", "1.5"), "has a load that cannot be"),
        (("--rates", "-1,2"), "has a load that cannot be"),
        (("--users", "8..2"), "--users 8..2 is no range"),
        (("--headroom", "300%"), "--headroom 300% is no share"),
        (("--peak", "-3"), "--peak is -3"),
        (("--ttft", "0"), "--ttft is 0"),
        (("-n", "0"), "-n is 0"),
        (("--resume",), "Neither a target nor a configuration is named"),
    ],
)
def test_bad_input_is_one_sentence(cli, tmp_path, monkeypatch, args, words):
    """Exit code 2 and a sentence with the value."""
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("sweep", *(() if "--ttft" in args else ("--ttft", "1s")), *args)
    assert (code, out) == (2, "")
    assert words in err


def test_no_target_no_sweep(cli, tmp_path, monkeypatch):
    """Without a promise nothing can break."""
    monkeypatch.chdir(tmp_path)
    code, _, err = cli(*SIMULATED)
    assert code == 2 and "No latency target is stated" in err


def test_how_long_a_load_takes_is_said_before_it():
    """By what the load before it answered a second; an open loop by its rate; the first closed one tells the others."""
    assert _how_long("users", 1, None, []) == "1 user: 20 requests; this one tells how long the others take"
    assert _how_long("users", 8, None, [SimpleNamespace(req_per_s=2.0)]) == "8 users: 80 requests, about 40.00 s"
    assert _how_long("rate", 2.0, 30, []) == "2 requests a second: 30 requests, about 15.00 s"
