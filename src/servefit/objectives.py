"""What a run is worth: its summary, the targets, goodput and margins. The same code for measured and simulated runs."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from servefit.records import RequestRecord, Run
from servefit.stats import Spread, percentile, spread

CLOCK_S = 1e-9
"""How finely times are kept."""

Verdict = Literal["pass", "fail", "too close to call"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What the service promises. Latency targets are per request for goodput, at percentile `p` for the checks."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    p: int = 99
    memory_frac: float | None = 1.0
    """Share of the device's usable memory that weights + KV + activations may take."""
    goodput_req_per_s: float | None = None
    goodput_frac: float | None = None
    """Share of offered requests that must meet every latency target (used when no absolute goodput is given)."""
    usd_per_hour: float | None = None
    usd_per_mtok: float | None = None


def is_good(row: RequestRecord, targets: Targets) -> bool:
    """Whether the request completed and met every latency target that is set; a failed request never does.

    A latency is a difference of clock readings kept to the nanosecond: one on the target to within that meets it.
    """
    if not row.ok:
        return False
    limits = ((row.ttft_s, targets.ttft_s), (row.tpot_s, targets.tpot_s), (row.e2e_s, targets.e2e_s))
    return all(limit is None or value is None or value <= limit + CLOCK_S for value, limit in limits)


def margin(value: float, target: float, *, at_most: bool) -> float:
    """How far on the right side of the target, as a share of it; negative when missed.

    >>> margin(0.08, 0.1, at_most=True), margin(12.0, 10.0, at_most=False)
    (0.2, 0.2)
    """
    return round((target - value if at_most else value - target) / target, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of a run's load rows. Latencies are over the successes; None and n=0 where nothing was observed."""

    n: int
    ok: int
    failed: int
    by_status: dict[str, int]
    ttft_s: Spread
    itl_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    output_tok: int
    input_tok: int
    duration_s: float | None
    output_tok_per_s: float | None
    req_per_s: float | None
    goodput_req_per_s: float | None
    """Good requests per second; without latency targets every success is good."""
    goodput_frac: float | None
    """Good requests over all requests, failures in the denominator."""
    verdict: Literal["valid", "suspect", "invalid"]


def summarize(run: Run, targets: Targets | None = None) -> Summary:
    """The figures of `run`; goodput against `targets` where given."""
    rows = run.load_rows
    good_ones = [row for row in rows if row.ok]
    duration = duration_s(run)
    good = sum(is_good(row, targets or Targets()) for row in rows)
    output = sum(row.osl or 0 for row in good_ones)

    def rate(count: float) -> float | None:
        return count / duration if duration and rows else None

    return Summary(
        n=len(rows),
        ok=len(good_ones),
        failed=len(rows) - len(good_ones),
        by_status=dict(sorted(Counter(row.status for row in rows).items())),
        ttft_s=spread(row.ttft_s for row in good_ones if row.ttft_s is not None),
        itl_s=run.gaps.spread() if run.gaps is not None else spread(gap for row in good_ones for gap in row.itl_s),
        tpot_s=spread(row.tpot_s for row in good_ones if row.tpot_s is not None),
        e2e_s=spread(row.e2e_s for row in good_ones if row.e2e_s is not None),
        output_tok=output,
        input_tok=sum(row.isl or 0 for row in good_ones),
        duration_s=duration,
        output_tok_per_s=rate(output),
        req_per_s=rate(len(good_ones)),
        goodput_req_per_s=rate(good),
        goodput_frac=good / len(rows) if rows else None,
        verdict=run.header.verdict,
    )


def duration_s(run: Run) -> float | None:
    """From the first due to the last end of a load row, in seconds; None where there are no rows.

    An imported run without start times has what its tool said, or None.
    """
    rows = run.load_rows
    if not rows:
        return None
    if any(finding.code == "no_start_times" for finding in run.header.findings):
        return run.header.duration_s
    start = min(row.due_s for row in rows)
    end = max(max(row.done_s or 0.0, row.chunk_s[-1] if row.chunk_s else 0.0, row.due_s) for row in rows)
    return end - start


def failures_as_inf(run: Run, figure: Literal["ttft_s", "tpot_s", "e2e_s"], p: int) -> float | None:
    """The p-th percentile with every failed request as +inf, beside the success-only view; None without rows."""
    rows = run.load_rows
    values = [getattr(row, figure) if row.ok else math.inf for row in rows]
    return percentile([v for v in values if v is not None], p)
