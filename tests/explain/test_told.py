"""What stands beside the rows: the server's own counters and the network's round trip, each where it is known."""

from dataclasses import replace
from typing import Any

import pytest

from explain.runs import by_hand, shake, simulate, stream
from servefit.explain.decompose import divide_run
from servefit.explain.rules import diagnose_run
from servefit.explain.told import counted, round_trip_s
from servefit.records import Run


def remote(run: Run, **client: Any) -> Run:
    """The same run, measured over a network."""
    header = replace(run.header, endpoint={"url": "https://api.example.com/v1"}, client=client)
    return replace(run, header=header)


def parts(run: Run) -> dict[str, float]:
    """The typical wait's parts in seconds."""
    return {p.name: p.s for p in divide_run(run)[0].parts}


def read_together(*, queue_s: float) -> Run:
    """Eight prompts read four at a time: TTFT grows with those under way, and nobody waited in line (if `queue_s` says so)."""
    alone = [stream(i, i - 9.0, 0.07, [0.02] * 20, phase="warmup") for i in range(3)]
    rows = [stream(i, (0.0 if i < 4 else 1.0) + i * 1e-3, 0.07 + 0.07 * (i % 4), [0.02] * 20) for i in range(8)]
    return by_hand([*alone, *rows], engine={"name": "vllm"}, server={"ttft_n": 8.0, "ttft_s": 1.4, "queue_s": queue_s})


def test_the_servers_counters_overrule_the_estimate():
    """A server (vLLM) counts 0.1 ms in line over eight requests: then it was no queue, however TTFT grew with the load."""
    run = read_together(queue_s=0.0001)
    assert counted(run) is not None
    assert not {"queueing", "prompts_ahead", "seats_full"} & {c.code for c in diagnose_run(run).causes}
    assert parts(run)["queue"] == pytest.approx(0.0001 / 8)
    assert parts(run)["prefill"] > 0.06
    untold = replace(run, header=replace(run.header, server={}))
    assert parts(untold)["queue"] > 0.02


def test_counters_that_say_queue_leave_the_queue():
    """Where the server counts waiting, the estimate from the rows stands."""
    assert "prompts_ahead" in {c.code for c in diagnose_run(read_together(queue_s=0.5)).causes}


def test_counters_of_others_are_not_ours():
    """A server that answered twice as many requests as ours meanwhile served somebody else too: its means are not ours."""
    run = read_together(queue_s=0.0001)
    assert counted(replace(run, header=replace(run.header, server={**run.header.server, "ttft_n": 16.0}))) is None


def test_network_is_a_part_of_its_own_where_it_is_known():
    """8 ms of round trip to a remote server are the network's, and no longer the start's."""
    run = remote(shake(simulate(n=6, users=1)), rtt_s=0.008)
    assert parts(run)["network"] == pytest.approx(0.008)
    assert sum(parts(run).values()) == pytest.approx(divide_run(run)[0].total_s)


def test_no_network_where_there_is_none_or_none_was_taken():
    """On this machine there is no network to name, and a run without a round trip says nothing about it."""
    run = simulate(n=6, users=1)
    local = replace(run, header=replace(run.header, endpoint={"url": "http://127.0.0.1:1"}, client={"rtt_s": 0.008}))
    assert round_trip_s(local) is None
    assert "network" not in parts(local)
    assert "network" not in parts(remote(run))
    start = next(p for p in divide_run(remote(run))[0].parts if p.name == "start")
    assert start.how.startswith("network, ")
