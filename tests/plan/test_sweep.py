"""The load raised until a promise breaks: the search, the promises, the knee, the replicas, the words."""

from dataclasses import replace

import pytest

from servefit.charts.sweeps import as_text, latency_against_load
from servefit.objectives import Targets
from servefit.plan.sweep import at_load, conclude, knee, make_step, replicas, search, sentences, waiting_grows
from servefit.records import RequestRecord, Run, RunHeader
from servefit.workload.workload import Workload

TARGETS = Targets(ttft_s=0.5, p=95)


def a_run(ttfts, *, kind="closed", gap_s=1.0, failed=0):
    """A run whose requests came `gap_s` apart, each with its time to the first token and ten tokens 10 ms apart."""
    rows = [
        RequestRecord(
            id=str(i), status="ok", due_s=i * gap_s, sent_s=i * gap_s, osl=11,
            chunk_s=tuple(i * gap_s + t + k * 0.01 for k in range(11)), done_s=i * gap_s + t + 0.1,
        )
        for i, t in enumerate(ttfts)
    ]  # fmt: skip
    rows += [RequestRecord(id=f"f{i}", status="timeout", due_s=0.0, done_s=9.0) for i in range(failed)]
    return Run(header=RunHeader(kind="measured", load={"kind": kind}), rows=tuple(rows))


def the_sweep(ttft_of, loads, **more):
    """A sweep over users whose TTFT is `ttft_of(users)` for each of 100 requests; more users, more requests a second."""
    steps = [make_step(a_run([ttft_of(u)] * 100, gap_s=1 / u), TARGETS, u, f"users-{u}") for u in loads]
    return conclude(
        "users", steps, targets=TARGETS, target="box", model="m", workload_sha256="", simulated=False, **more
    )


@pytest.mark.parametrize("edge", [1, 2, 3, 7, 8, 9, 31, 64])
def test_the_search_ends_at_the_edge(edge):
    """The largest load that holds is asked, and either its neighbour or one within 13% is known to break."""
    asked = []
    search("users", lambda c: asked.append(c) is None and c <= edge, start=1, most=64)
    good = max(c for c in asked if c <= edge)
    bad = min((c for c in asked if c > edge), default=None)
    assert len(asked) == len(set(asked)) <= 12
    assert (good == edge == 64) if bad is None else (bad - good == 1 or bad / good <= 1.13)


def test_a_rate_is_found_within_13_percent():
    """Rates need no whole numbers: the edge lies between two loads that are close."""
    asked = []
    search("rate", lambda r: asked.append(r) is None and r < 5.3, start=1, most=100)
    assert max(r for r in asked if r < 5.3) < 5.3 < min(r for r in asked if r >= 5.3) <= 5.3 * 1.13


def test_nothing_more_is_asked_where_the_smallest_breaks():
    """There is no load below the smallest."""
    asked = []
    search("users", asked.append, start=1, most=64)
    assert asked == [1]


def test_capacity_and_replicas_in_words():
    """The sentences of the issue: up to 8 users; 120 users, 8 a replica: 15, say 18."""
    swept = the_sweep(lambda u: 0.049 * u, [1, 2, 4, 8, 9, 10, 12], peak=120.0)
    assert (swept.up_to, swept.breaks_at) == (10, 12)
    swept = the_sweep(lambda u: 0.06 * u, [1, 2, 4, 8, 9, 10], peak=120.0)
    words = " ".join(sentences(swept))
    assert "p95 TTFT <= 500 ms holds up to 8 users on this replica; it breaks at 9." in words
    assert "120 users at the peak, 8 a replica: 15, say 18 (20% headroom)." in words


def test_a_failed_request_is_infinitely_slow():
    """6 failures in 106 requests move p95 from a good value to none at all: the promise breaks."""
    step = make_step(a_run([0.1] * 100, failed=6), TARGETS, 4, "x")
    assert (step.ttft_s, step.holds, step.failed) == (None, False, 6)
    assert make_step(a_run([0.1] * 100, failed=4), TARGETS, 4, "x").holds


def test_few_requests_are_never_sure():
    """p95 of 20 requests has no interval: it may hold, but not clearly."""
    step = make_step(a_run([0.1] * 20), TARGETS, 1, "x")
    assert (step.holds, step.clear, step.few) == (True, False, True)
    assert make_step(a_run([0.1] * 100), TARGETS, 1, "x").clear


def test_too_few_requests_to_be_sure_are_said_with_how_many_it_takes():
    """The capacity line names the number of requests from which p95 has an interval."""
    step = make_step(a_run([0.1] * 20), TARGETS, 1, "x")
    swept = conclude("users", [step], targets=TARGETS, target="b", model="m", workload_sha256="", simulated=False)
    assert "not yet sure: p95 has an interval from 59 requests at a load on, e.g. -n 100" in sentences(swept)[0]
    enough = make_step(a_run([0.1] * 59), TARGETS, 1, "x")
    sure = conclude("users", [enough], targets=TARGETS, target="b", model="m", workload_sha256="", simulated=False)
    assert "sure" not in sentences(sure)[0]


def test_an_interval_over_the_target_is_too_close_to_call():
    """The value meets the target, its interval does not: said so, and the line gives the load that is clear."""
    values = [0.1] * 95 + [0.49, 0.49, 0.9, 0.9, 0.9]
    step = make_step(a_run(values), TARGETS, 2, "x")
    assert step.held[0].verdict == "too close to call"
    clear = make_step(a_run([0.1] * 100), TARGETS, 1, "y")
    swept = conclude("users", [step, clear], targets=TARGETS, target="b", model="m", workload_sha256="", simulated=True)
    assert "holds up to 2 users with this configuration (simulated)" in sentences(swept)[0]
    assert "95% sure: up to 1 user" in sentences(swept)[0]


def test_a_queue_that_grows_breaks_whatever_the_targets_say():
    """An open loop that is answered later and later never settles, though no single wait passed the target yet."""
    growing = a_run([0.1 * i for i in range(60)], kind="open", gap_s=0.05)
    assert waiting_grows(growing)
    steady = a_run([0.4] * 60, kind="open", gap_s=0.05)
    assert not waiting_grows(steady)
    assert not waiting_grows(replace(growing, header=replace(growing.header, load={"kind": "closed"})))
    swept = conclude(
        "rate", [make_step(growing, Targets(ttft_s=60.0, p=95), 20.0, "x")], targets=TARGETS, target="b", model="m",
        workload_sha256="", simulated=False,
    )  # fmt: skip
    assert swept.up_to is None
    assert "the queue grows without end" in " ".join(sentences(swept))


def test_the_knee_is_where_power_peaks():
    """Throughput c/(c+1), response time 1+c/4: power peaks inside; without a peak inside there is no knee."""
    base = make_step(a_run([0.1] * 20), TARGETS, 1, "x")
    steps = [replace(base, load=c, req_per_s=c / (c + 1), e2e_mean_s=1 + c / 4) for c in (1, 2, 4, 8)]
    assert knee(steps) == 2
    assert knee(steps[:2]) is None
    assert knee([replace(s, e2e_mean_s=1.0) for s in steps]) is None


def test_replicas_need_a_peak_and_a_capacity():
    """Nothing is divided by nothing."""
    assert replicas(None, 8, 0.2) is None
    assert replicas(120, None, 0.2) is None
    assert replicas(1, 8, 0.2).with_headroom == 1


def test_figures():
    """Bars say goodput inside throughput; the chart carries target and band, and every load in its table."""
    swept = the_sweep(lambda u: 0.06 * u, [1, 4, 8, 16])
    bars = as_text(swept)
    assert "#" in bars[0] and "." not in bars[0]
    assert "." in bars[3] and "breaks" in bars[3]
    chart = latency_against_load(swept, "ttft")
    assert len(chart.rows) == 4 and "target" in chart.description


def test_each_load_asks_enough():
    """Ten requests a user, at least 20; a given number wins; another kind of load is taken out."""
    base = Workload(stages=((1.0, 2.0),))
    assert at_load(base, "users", 30, None) == replace(base, stages=(), concurrency=30, n=300)
    assert at_load(base, "rate", 0.5, 7) == replace(base, stages=(), rate_req_per_s=0.5, n=7)
