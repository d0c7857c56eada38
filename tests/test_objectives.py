"""Goodput, margins and summaries, on rows small enough to do on paper."""

import math

import pytest

from servefit.objectives import Targets, failures_as_inf, is_good, margin, summarize
from servefit.records import RequestRecord, Run, RunHeader


def row(i, ttft, gap, tokens=3, status="ok", **more):
    """A request due at i seconds whose first token comes after `ttft` and the others `gap` apart."""
    times = tuple(i + ttft + gap * k for k in range(tokens))
    return RequestRecord(
        id=str(i),
        status=status,
        due_s=float(i),
        chunk_s=times,
        osl=tokens,
        isl=10,
        done_s=times[-1] if times else i + 1.0,
        **more,
    )


def run(*rows):
    """A measured run of those rows."""
    return Run(header=RunHeader(kind="measured"), rows=rows)


def test_goodput_counts_failures_and_slow_ones_as_misses():
    """D12: of four requests one is too slow to start, one too slow to type, one failed: goodput is one in 3.2 s."""
    targets = Targets(ttft_s=0.1, tpot_s=0.01)
    rows = (row(0, 0.05, 0.01), row(1, 0.2, 0.01), row(2, 0.05, 0.02), row(3, 0.05, 0.01, tokens=1, status="truncated"))
    summary = summarize(run(*rows), targets)
    assert [is_good(r, targets) for r in rows] == [True, False, False, False]
    assert (summary.n, summary.ok, summary.failed, summary.by_status) == (4, 3, 1, {"ok": 3, "truncated": 1})
    assert summary.duration_s == pytest.approx(3.05)
    assert summary.goodput_req_per_s == pytest.approx(1 / 3.05)
    assert summary.req_per_s == pytest.approx(3 / 3.05)
    assert summary.goodput_frac == 0.25
    assert summary.output_tok_per_s == pytest.approx(9 / 3.05)


def test_figures_come_from_successes_and_failures_count_as_infinite_beside_them():
    """A broken stream that started fast must not improve TTFT; with failures as +inf the p99 is infinite."""
    both = run(row(0, 0.3, 0.01), row(1, 0.001, 0.001, status="stream_error"))
    assert summarize(both).ttft_s.p50 == pytest.approx(0.3)
    assert failures_as_inf(both, "ttft_s", 99) == math.inf
    assert failures_as_inf(both, "ttft_s", 50) == pytest.approx(0.3)


def test_all_failed_is_none_not_zero():
    """Every request failed: no latency figure at all, throughput 0, goodput 0."""
    summary = summarize(run(RequestRecord(id="0", status="refused", due_s=0.0, done_s=1.0)))
    assert (summary.ttft_s.p50, summary.itl_s.n, summary.output_tok_per_s, summary.goodput_req_per_s) == (
        None,
        0,
        0.0,
        0.0,
    )


def test_an_empty_run_has_no_rates():
    """No rows, nothing observed."""
    summary = summarize(run())
    assert (summary.n, summary.duration_s, summary.req_per_s, summary.goodput_frac) == (0, None, None, None)


def test_warmup_and_cold_start_never_enter():
    """A slow cold start and a warm-up request are kept apart from the load's figures."""
    summary = summarize(run(row(0, 9.0, 1.0, phase="cold"), row(0, 8.0, 1.0, phase="warmup"), row(1, 0.1, 0.01)))
    assert (summary.n, summary.ttft_s.max) == (1, pytest.approx(0.1))


def test_margins_have_one_sign():
    """D2: at-most and at-least margins are positive on the right side of the target."""
    assert margin(105, 100, at_most=True) == -0.05
    assert margin(9.0, 10.0, at_most=False) == -0.1
    assert margin(80, 100, at_most=True) == margin(12, 10, at_most=False) == 0.2
