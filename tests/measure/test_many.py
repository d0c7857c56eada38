"""One load from many clients: how it is divided, clocks compared, rows merged; on a real Ray cluster of two nodes."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import servefit
from servefit.errors import ServefitError
from servefit.measure.many import Offset, _without_siblings, best_offset, merge, shares
from servefit.measure.probe import find_endpoint
from servefit.records import Finding, RequestRecord, Run, RunHeader, load_run
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
    parts = shares(load, whole, clients)
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


def test_merged_rows_are_on_one_clock_and_the_worst_client_counts():
    """Rows move by the common beginning, users get numbers of their own, findings name their clients."""
    row = RequestRecord(id="0", status="ok", due_s=1.0, sent_s=1.0, chunk_s=(1.5, 1.6), done_s=1.7, user=0)
    late = Finding(code="late_sends", level="suspect", message="Late.")
    header = RunHeader(
        kind="measured", load={"concurrency": 1}, clock="kernel", client={"cpu_s": 2.0, "late_send_max_s": 0.1}
    )
    load = Workload(n=2, concurrency=2)
    run = merge(
        [Run(header=header, rows=(row,)), Run(header=replace(header, findings=(late,)), rows=(replace(row, id="1"),))],
        load, schedule(load), first=(), shift_s=2.0, places=[{"node": "a", "node_id": "x", "cores": 2}] * 2,
        offsets=[Offset(offset_s=0.1, sure_s=1e-4)] * 2, after=[Offset(offset_s=0.1001, sure_s=1e-4)] * 2,
    )  # fmt: skip
    assert [(r.due_s, r.chunk_s, r.ttft_s, r.user) for r in run.rows] == [
        (3.0, (3.5, 3.6), 0.5, 0),
        (3.0, (3.5, 3.6), 0.5, 1),
    ]
    assert run.header.client["cpu_s"] == 4.0 and run.header.client["late_send_max_s"] == 0.1
    assert [round(c["clock_drift_s"], 6) for c in run.header.client["clients"]] == [0.0001, 0.0001]
    assert run.header.verdict == "suspect"
    assert "Client 2: Late." in {f.message for f in run.header.findings}
    unsure = merge(
        [Run(header=header, rows=(row,))], load, schedule(load), first=(), shift_s=0.0,
        places=[{"node": "a", "node_id": "x", "cores": 2}], offsets=[Offset(offset_s=0.0, sure_s=0.01)],
        after=[Offset(offset_s=0.0, sure_s=0.0)],
    )  # fmt: skip
    assert unsure.header.verdict == "suspect"


@pytest.mark.parametrize(("others_cores", "said"), [(0.9, False), (1.9, True)])
def test_clients_on_one_node_are_not_other_programs(others_cores, said):
    """Each client sees the other's work as somebody else's: only what is left of it makes a machine busy."""
    busy = Finding(code="busy_machine", level="suspect", message="Busy.")
    header = RunHeader(kind="measured", client={"others_cores": others_cores, "cpu_cores": 0.8}, findings=(busy,))
    place = {"node": "a", "node_id": "x", "cores": 2}
    runs = _without_siblings([Run(header=header, rows=())] * 2, [place] * 2)
    assert [bool(run.header.findings) for run in runs] == [said, said]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--clients", "2"), "--clients is given without --ray"),
        (("--ray", "local", "--until", "p95=5%"), "--until does not go with --ray"),
        (("--ray", "local", "--clients", "0"), "--clients is 0"),
    ],
)
def test_bad_input_is_one_sentence(cli, tmp_path, monkeypatch, args, words):
    """Exit code 2 and a sentence, before anything is started."""
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("measure", "http://127.0.0.1:9", "--no-probe", *args)
    assert code == 2 and words in err


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
    rows = sorted(run.load_rows, key=lambda row: int(row.id))
    assert [row.id for row in rows] == [str(i) for i in range(12)]
    assert [round(row.due_s - rows[0].due_s, 6) for row in rows] == [round(r.due_s, 6) for r in schedule(load)]
    assert all(row.ok and row.sent_s >= row.due_s for row in rows)
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
    from servefit.host.ray_cluster import connected

    with pytest.raises(ServefitError, match="No Ray cluster answers at nowhere:1"), connected("nowhere:1", purpose="x"):
        pass
    assert find_endpoint("http://127.0.0.1:9").name
