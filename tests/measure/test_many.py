"""One load from many clients: how it is divided, clocks compared, rows merged; by processes, and on a Ray cluster of two nodes."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import servefit
from servefit.errors import CannotMeasure, ServefitError
from servefit.host.ray_cluster import connected
from servefit.measure.many import Offset, Share, _left_behind, _merged, _without_siblings, judge, shares_of
from servefit.measure.on_ray import best_offset
from servefit.measure.probe import find_endpoint
from servefit.measure.workers import Worker
from servefit.records import Finding, RequestRecord, Run, RunHeader, load_run, save_run
from servefit.traps.server import in_process
from servefit.workload.arrivals import schedule
from servefit.workload.workload import Lengths, Workload


@pytest.mark.parametrize("clients", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "load",
    [
        Workload(n=20, concurrency=5),
        Workload(n=20, rate_req_per_s=4.0),
        Workload(n=20, concurrency=3, turns=4),
        Workload(n=2, concurrency=2),
    ],
)
def test_the_load_is_divided_without_loss(load, clients):
    """Every request is asked once, due when the whole schedule says; users add up; a session stays with one client."""
    whole = schedule(load)
    parts = shares_of(load, whole, clients)
    asked = [r for _, own in parts for r in own]
    assert sorted(asked, key=lambda r: r.id) == list(whole)
    assert all(part.n == len(own) for part, own in parts)
    if load.concurrency:
        assert sum(part.concurrency for part, _ in parts) == min(load.concurrency, load.concurrency)
    else:
        assert abs(sum(part.rate_req_per_s for part, _ in parts) - 4.0) < 1e-9
    for session in {r.session for r in whole} - {None}:
        assert sum(any(r.session == session for r in own) for _, own in parts) == 1


def test_the_fastest_round_trip_tells_the_offset():
    """A slow answer is not believed: the offset is that of the fastest, sure to half its time."""
    slow, fast = (0, 9_000_000, 10_000_000), (20_000_000, 25_100_000, 20_200_000)
    assert best_offset([slow, fast]) == Offset(offset_s=0.005, sure_s=0.0001)


def test_merged_rows_and_the_worst_client_counts():
    """Rows stand in the order of their ends, users get numbers of their own, findings about clients name them."""
    row = RequestRecord(id="0", status="ok", due_s=1.0, sent_s=1.0, chunk_s=(1.5, 1.6), done_s=1.7, user=0)
    late = Finding(code="late_sends", level="suspect", message="Late.")
    few = Finding(code="few_requests", level="note", message="p95 of 1 request.")
    header = RunHeader(
        kind="measured", load={"concurrency": 1}, clock="kernel", client={"cpu_s": 2.0, "late_send_max_s": 0.1}
    )
    load = Workload(n=2, concurrency=2)
    parts = [
        Run(header=header, rows=(row,)),
        Run(header=replace(header, findings=(late, few)), rows=(replace(row, id="1", done_s=1.65),)),
    ]
    sure = {"before": Offset(offset_s=0.1, sure_s=1e-4), "after": Offset(offset_s=0.1001, sure_s=1e-4)}
    place = {"node": "a", "node_id": "x", "cores": 2}
    shares = [Share(run=part, place=place, **sure) for part in parts]
    rows = tuple(_merged(shares))
    assert [(r.id, r.user) for r in rows] == [("1", 1), ("0", 0)]
    found = judge(Run(header=header, rows=rows), shares, load)
    assert found.client["cpu_s"] == 4.0 and found.client["late_send_max_s"] == 0.1
    assert [round(c["clock_drift_s"], 6) for c in found.client["clients"]] == [0.0001, 0.0001]
    assert found.verdict == "suspect" and found.load["clients"] == 2
    messages = [f.message for f in found.findings]
    assert "Client 2: Late." in messages
    assert not any("1 request." in message for message in messages), "how many there are is judged of all rows"
    blurred = {"before": Offset(offset_s=0.0, sure_s=0.01), "after": Offset(offset_s=0.0, sure_s=0.0)}
    assert (
        judge(Run(header=header, rows=(row,)), [Share(run=parts[0], place=place, **blurred)], load).verdict == "suspect"
    )
    assert judge(Run(header=header, rows=(row,)), [Share(run=parts[0], place=place)], load).verdict == "valid"


@pytest.mark.parametrize(("others_cores", "said"), [(0.9, False), (1.9, True)])
def test_clients_on_one_node_are_not_other_programs(others_cores, said):
    """Each client sees the other's work as somebody else's: only what is left of it makes a machine busy."""
    busy = Finding(code="busy_machine", level="suspect", message="Busy.")
    header = RunHeader(kind="measured", client={"others_cores": others_cores, "cpu_cores": 0.8}, findings=(busy,))
    place = {"node": "a", "node_id": "x", "cores": 2}
    shares = [Share(run=Run(header=header, rows=()), place=place) for _ in range(2)]
    assert [bool(found) for found in _without_siblings(shares)] == [said, said]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--clients", "2"), "--clients is given without --ray"),
        (("--ray", "local", "--until", "p95=5%"), "--until does not go with --ray"),
        (("--ray", "local", "--clients", "0"), "--clients is 0"),
        (("--workers", "0"), "--workers is 0"),
        (("--workers", "2", "--ray", "local"), "Both --ray and --workers are given"),
        (("--workers", "2", "--repeat", "2"), "--repeat does not go with --workers"),
    ],
)
def test_bad_input_is_one_sentence(cli, tmp_path, monkeypatch, args, words):
    """Exit code 2 and a sentence, before anything is started."""
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("measure", "http://127.0.0.1:9", "--no-probe", *args)
    assert code == 2 and words in err


def rows_of(load: Workload, run: Run) -> None:
    """Every request once, due as the schedule says."""
    rows = sorted(run.load_rows, key=lambda row: int(row.id))
    assert [row.id for row in rows] == [str(i) for i in range(load.n)]
    assert [round(row.due_s - rows[0].due_s, 6) for row in rows] == [round(r.due_s, 6) for r in schedule(load)]
    assert all(row.ok and row.sent_s >= row.due_s for row in rows)


@pytest.mark.slow
def test_a_worker_ends_as_one_client_would():
    """What keeps a worker from going on has the exit code that it has without workers: 2 for a full disk, 3 for no answer."""
    for code, kind in ((2, ServefitError), (3, CannotMeasure)):
        word = json.dumps({"error": "requests.jsonl cannot be written.", "hint": "Free some space.", "code": code})
        with pytest.raises(ServefitError, match="cannot be written") as raised:
            Worker(SimpleNamespace(stdout=io.BytesIO(word.encode() + b"\n"))).hear()
        assert type(raised.value) is kind and raised.value.exit_code == code


def test_workers_ask_as_one(cli, tmp_path):
    """An open loop from two processes: one run, one schedule, nothing left of the workers' own folders."""
    load = Workload(n=12, rate_req_per_s=8.0, arrivals="constant", isl=Lengths(mean=64), osl=Lengths(mean=20), seed=3)
    out = tmp_path / "run"
    with in_process() as url:
        code, said, err = cli(
            "measure", f"{url}/plain", "--model", "m", "--workers", "2", "--rate", "8", "--arrivals", "constant",
            "-n", "12", "--isl", "64", "--osl", "20", "--seed", "3", "--out", out, "--quiet", "--json", "--no-probe",
        )  # fmt: skip
    assert code == 0, err
    run = load_run(out)
    rows_of(load, run)
    assert json.loads(said)["summary"]["ok"] == 12
    assert [c["requests"] for c in run.header.client["clients"]] == [6, 6]
    assert run.header.finished and not (out / "parts").exists()


@pytest.mark.slow
def test_what_killed_workers_had_is_kept(cli, tmp_path):
    """Everything killed in the middle: --resume takes over what the workers had and asks for the rest alone."""
    out = tmp_path / "run"
    asked = (
        "--model",
        "m",
        "--workers",
        "2",
        "--concurrency",
        "2",
        "-n",
        "12",
        "--isl",
        "64",
        "--osl",
        "20",
        "--out",
        out,
    )
    with in_process() as url:
        args = [str(a) for a in ("measure", f"{url}/plain", *asked, "--quiet", "--no-probe")]
        env = {**os.environ, "PYTHONPATH": str(Path(servefit.__file__).parents[1])}
        with subprocess.Popen([sys.executable, "-m", "servefit", *args], env=env) as process:
            logs = [out / "parts" / n / "requests.jsonl" for n in "12"]
            while not all(log.exists() and log.read_bytes().count(b"\n") for log in logs):
                assert process.poll() is None, "it had not ended yet"
            process.kill()
        had = sum(log.read_bytes().count(b"\n") for log in logs)
        assert 2 <= had < 12
        code, _, err = cli(*args, "--resume")
        assert code == 0, err
    run = load_run(out)
    assert sorted(int(row.id) for row in run.load_rows) == list(range(12))
    assert sum(c["requests"] for c in run.header.client["clients"]) <= 12 - had + 1
    assert run.header.finished and not (out / "parts").exists()


@pytest.fixture(scope="module")
def cluster():
    """A real Ray cluster of two nodes on loopback, one CPU each."""
    pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = str(Path(servefit.__file__).parents[1])  # the nodes find this checkout
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=small)
    made.add_node(num_cpus=1, object_store_memory=80_000_000)
    made.wait_for_nodes()
    yield made
    import ray

    ray.shutdown()
    made.shutdown()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_nodes_ask_as_one(cluster, cli, tmp_path):
    """An open loop from two nodes: every request once, due as the schedule says, times as true as from one client."""
    load = Workload(n=12, rate_req_per_s=8.0, arrivals="constant", isl=Lengths(mean=64), osl=Lengths(mean=20), seed=3)
    with in_process() as url:
        code, out, err = cli(
            "measure", f"{url}/plain", "--model", "m", "--ray", cluster.address, "--rate", "8", "--arrivals", "constant",
            "-n", "12", "--isl", "64", "--osl", "20", "--seed", "3", "--out", tmp_path / "run", "--quiet", "--json", "--no-probe",
        )  # fmt: skip
    assert code == 0, err
    run = load_run(tmp_path / "run")
    rows_of(load, run)
    clients = run.header.client["clients"]
    assert len({c["node_id"] for c in clients}) == 2
    assert all(abs(c["clock_offset_s"]) <= c["clock_sure_s"] + 1e-3 for c in clients), "one machine has one clock"
    assert json.loads(out)["summary"]["ok"] == 12
    assert run.header.load["clients"] == 2


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_plan_on_two_nodes_has_the_same_bytes(cluster, cli, tmp_path):
    """`plan --ray` gives plan.json to the byte as one process does."""
    question = (
        "plan", "--model", "llama-3.1-8b", "--device", "a100-80gb", "--rate", "2", "-n", "60", "--seeds", "2", "--seats", "2,8",
        "--policy", "chunked", "--policy", "static", "--ttft-p99", "500ms", "--tpot-p99", "30ms", "--quiet",
    )  # fmt: skip
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    cli(*question, "--jobs", "1", "--out", here)
    cli(*question, "--ray", cluster.address, "--out", there)
    assert here.read_bytes() == there.read_bytes()


@pytest.mark.ray
@pytest.mark.slow
def test_no_cluster_is_one_sentence(tmp_path):
    """Where nothing answers, exit code 3's sentence names the address."""
    pytest.importorskip("ray")
    with pytest.raises(ServefitError, match="No Ray cluster answers at nowhere:1"), connected("nowhere:1", purpose="x"):
        pass
    assert find_endpoint("http://127.0.0.1:9").name


@pytest.mark.ray
@pytest.mark.slow
def test_a_ray_that_does_not_start_is_one_sentence(monkeypatch):
    """Ray raises a bare Exception of several sentences where its node takes too long: the first is passed on."""
    ray = pytest.importorskip("ray")

    def too_long(**_):
        raise Exception("The current node timed out during startup. This could happen because some of it failed.")

    monkeypatch.setattr(ray, "init", too_long)
    said = pytest.raises(CannotMeasure, match=r"^Ray could not be started here: .* during startup\.$")
    with said, connected("local", purpose="x"):
        pass


def test_a_merge_that_was_killed_doubles_no_row(tmp_path):
    """Some rows were taken over already when everything died: those are left where they are."""
    header = RunHeader(kind="measured", load={"concurrency": 1})
    rows = [RequestRecord(id=str(i), status="ok", due_s=float(i), done_s=i + 0.5, user=0) for i in range(4)]
    for number, own in (("1", rows[::2]), ("2", rows[1::2])):
        save_run(Run(header=header, rows=tuple(own)), tmp_path / "parts" / number)
    save_run(Run(header=header, rows=(*rows[:2],)), tmp_path)
    assert [row.id for row in _left_behind(tmp_path)] == ["2", "3"]


def test_one_client_does_not_go_on_with_what_several_left(cli, tmp_path):
    """Their rows are not merged yet: it would ask again for all that they had."""
    header = RunHeader(kind="measured", load={"concurrency": 1})
    for folder in (tmp_path, tmp_path / "parts" / "1"):
        save_run(Run(header=header, rows=()), folder)
    code, out, err = cli(
        "measure", "http://127.0.0.1:9", "--no-probe", "--out", tmp_path, "--resume", "--quiet", "--json"
    )
    assert (code, out) == (2, "") and "Resume it with --workers" in err
