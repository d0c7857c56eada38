"""Better, worse or cannot tell: each outcome provoked, false alarms counted, what stands in the way said."""

from dataclasses import replace

import pytest

from servefit.explain.compare import batch_rates, compare, differs, warnings
from servefit.objectives import Targets
from servefit.records import Finding, RequestRecord, Run, RunHeader
from servefit.stats import percentile_difference
from servefit.workload.requests import stream

HEADER = RunHeader(kind="measured", finished=True, workload_sha256="a" * 64, load={"kind": "closed", "concurrency": 2})


def a_run(seed, *, n=400, ttft_s=0.1, gap_s=0.01, failed=0, header=HEADER):
    """A run of `n` requests 50 ms apart, TTFT exponential around its mean, 20 tokens each."""
    rng = stream(seed, "ttft")
    rows = []
    for i in range(n):
        due = i * 0.05
        first = due + ttft_s * (0.5 + rng.expovariate(2.0))
        chunks = tuple(first + gap_s * k for k in range(20))
        rows.append(
            RequestRecord(
                id=str(i), status="ok", due_s=due, sent_s=due, chunk_s=chunks, done_s=chunks[-1], osl=20, isl=100
            )
        )
    rows += [RequestRecord(id=f"f{i}", status="timeout", due_s=0.1, done_s=5.0) for i in range(failed)]
    return Run(header=header, rows=tuple(rows))


def outcomes(result):
    """The outcome of each figure by its name."""
    return {d.name: d.outcome for d in result.differences}


def test_faster_is_better_and_slower_is_worse():
    """Half the TTFT at the same pace: better in TTFT, the same answer turned round is worse, pace stays as it is."""
    found = compare(a_run(1), a_run(2, ttft_s=0.05))
    assert (found.outcome, outcomes(found)["TTFT p50"], outcomes(found)["TTFT p95"]) == ("better", "better", "better")
    assert outcomes(found)["TPOT p50"] != "worse"
    assert found.sentence.startswith("better in TTFT p50, TTFT p95")
    turned = compare(a_run(2, ttft_s=0.05), a_run(1))
    assert (turned.outcome, outcomes(turned)["TTFT p50"]) == ("worse", "worse")


def test_a_trade_is_mixed():
    """Earlier to start and slower to type is neither better nor worse."""
    found = compare(a_run(1), a_run(2, ttft_s=0.05, gap_s=0.02))
    assert found.outcome == "mixed"
    assert "better in TTFT" in found.sentence and "worse in TPOT" in found.sentence


def test_failures_are_worse():
    """40 of 440 failed against none: worse in the share answered, whatever the latencies of the rest."""
    found = compare(a_run(1), a_run(2, failed=40), targets=Targets(ttft_s=10.0))
    assert outcomes(found)["share answered"] == "worse"
    assert outcomes(found)["share of good requests"] == "worse"


def test_few_requests_cannot_tell():
    """A tail of 20 requests says nothing about p95, even where the median of both is far apart."""
    found = compare(a_run(1, n=20), a_run(2, n=20, ttft_s=1.0))
    assert outcomes(found)["TTFT p95"] == "cannot tell"
    assert outcomes(found)["TTFT p50"] == "worse"


@pytest.mark.slow
def test_alike_runs_are_not_told_apart():
    """40 pairs of runs of one and the same server: all 95%-sure intervals together are wrong in at most a few."""
    alarms = sum(
        compare(a_run(2 * k, n=150), a_run(2 * k + 1, n=150)).outcome not in ("cannot tell", "the same")
        for k in range(40)
    )
    assert alarms <= 4


@pytest.mark.slow
def test_the_interval_covers_the_truth():
    """200 pairs of samples whose p95 differ by ln(20)/1 - ln(20)/2: the 95% interval holds it in at least 92%."""
    hits = 0
    for k in range(200):
        rng = stream(k, "coverage")
        a, b = [rng.expovariate(1.0) for _ in range(120)], [rng.expovariate(2.0) for _ in range(120)]
        low, high = percentile_difference(a, b, 95, rng, draws=1000)
        hits += low <= -2.995732 / 2 <= high
    assert hits >= 184


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer():
    """Nothing is random but by the seed."""
    a, b = a_run(1), a_run(2)
    assert compare(a, b, seed=4) == compare(a, b, seed=4)
    assert compare(a, b, seed=4) != compare(a, b, seed=5)


def test_unlike_workloads_are_named():
    """Two known hashes that differ are a reason to refuse; an unknown one is only a warning."""
    other = a_run(2, header=replace(HEADER, workload_sha256="b" * 64))
    assert "They were not asked the same" in differs(a_run(1), other)
    unknown = a_run(2, header=replace(HEADER, workload_sha256=""))
    assert differs(a_run(1), unknown) is None
    assert "not known what the second run was asked" in " ".join(warnings(a_run(1), unknown))


def test_what_stands_in_the_way_is_said():
    """Cached prompts, a busy machine, stolen time, a suspect run, an unfinished one, another kind, another model."""
    bad = replace(
        HEADER, verdict="suspect", findings=(Finding(code="late_sends", level="suspect", message=""),), finished=False,
        machine={"cores": 2, "load_1min": 9.0}, model="b",
    )  # fmt: skip
    cached = tuple(replace(row, cached_tok=60) for row in a_run(1, n=20).rows)
    said = " ".join(warnings(a_run(1, header=replace(HEADER, model="a")), Run(header=bad, rows=cached)))
    for words in ("60% of the second run's prompt tokens came from a cache", "suspect (late_sends)", "was not finished",
                  "busy: load 9.0 on 2 cores", "The model differs: a against b"):  # fmt: skip
        assert words in said
    stolen = a_run(1, header=replace(HEADER, client={"steal_frac": 0.2}))
    assert "20% of its time" in " ".join(warnings(a_run(1), stolen))
    assert "the other simulated" in " ".join(warnings(a_run(1), a_run(1, header=replace(HEADER, kind="simulated"))))


def test_batches_of_throughput():
    """Eight inner slices; their mean is the steady rate: 20 tokens every 50 ms."""
    rates = batch_rates(a_run(1))
    assert len(rates) == 8
    assert abs(sum(rates) / 8 - 400) < 8
    assert batch_rates(a_run(1, n=10)) == []


def test_the_servers_own_times_are_compared_where_it_tells():
    """Prefill and decode by token, as llama.cpp tells them."""

    def told(scale):
        rows = tuple(replace(row, server={"prefill_s": 0.1 * scale, "decode_s": 0.2}) for row in a_run(1).rows)
        return Run(header=HEADER, rows=rows)

    names = outcomes(compare(told(2), told(1)))
    assert names["server's prefill per token p50"] == "better"
    assert names["server's decode per token p50"] == "the same"
