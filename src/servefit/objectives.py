"""What a run is worth: its summary, the targets, goodput and margins. The same code for measured and simulated runs."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from servefit.packed import numbers
from servefit.records import RequestRecord, Run
from servefit.spill import Ranked
from servefit.stats import Spread, in_order, rank, spread

if TYPE_CHECKING:
    from array import array

CLOCK_S = 1e-9
"""How finely times are kept."""

Verdict = Literal["pass", "fail", "too close to call"]
LatencyName = Literal["ttft_s", "tpot_s", "e2e_s"]
LATENCIES: tuple[LatencyName, ...] = get_args(LatencyName)
"""What each request has one of."""


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
    """The figures of `run`; goodput against `targets` where given. Looks at each row once, since those of a long run are built anew."""
    wanted = targets or Targets()
    by_status: Counter[str] = Counter()
    rows = run.load_rows
    ttft, itl, tpot, e2e = (numbers(rows) for _ in range(4))
    good = output = read = 0
    start, end = math.inf, -math.inf
    for row in rows:
        by_status[row.status] += 1
        start, end = min(start, row.due_s), max(end, _end_s(row))
        good += is_good(row, wanted)
        if not row.ok:
            continue
        output += row.osl or 0
        read += row.isl or 0
        if run.gaps is None:
            itl.extend(row.itl_s)
        for values, value in ((ttft, row.ttft_s), (tpot, row.tpot_s), (e2e, row.e2e_s)):
            if value is not None:
                values.append(value)
    n, ok = by_status.total(), by_status["ok"]
    duration = _duration_s(run, start, end) if n else None

    def rate(count: float) -> float | None:
        return count / duration if duration and n else None

    return Summary(
        n=n,
        ok=ok,
        failed=n - ok,
        by_status=dict(sorted(by_status.items())),
        ttft_s=spread(ttft),
        itl_s=run.gaps.spread() if run.gaps is not None else spread(itl),
        tpot_s=spread(tpot),
        e2e_s=spread(e2e),
        output_tok=output,
        input_tok=read,
        duration_s=duration,
        output_tok_per_s=rate(output),
        req_per_s=rate(ok),
        goodput_req_per_s=rate(good),
        goodput_frac=good / n if n else None,
        verdict=run.header.verdict,
    )


def _end_s(row: RequestRecord) -> float:
    return max(row.done_s or 0.0, row.chunk_s[-1] if row.chunk_s else 0.0, row.due_s)


def _duration_s(run: Run, start: float, end: float) -> float | None:
    """From the first due to the last end of a load row, in seconds.

    An imported run without start times has what its tool said, or None.
    """
    if any(finding.code == "no_start_times" for finding in run.header.findings):
        return run.header.duration_s
    return end - start


def latencies(
    run: Run, names: Sequence[LatencyName] = LATENCIES
) -> "tuple[dict[LatencyName, array[float] | Ranked], int]":
    """TTFT, TPOT and E2E of the load rows that completed, in seconds; and how many did not complete."""
    rows = run.load_rows
    seen = {name: numbers(rows) for name in names}
    failed = 0
    for row in rows:
        if not row.ok:
            failed += 1
            continue
        for name, values in seen.items():
            value = getattr(row, name)
            if value is not None:
                values.append(value)
    return seen, failed


def failures_as_inf(run: Run, figure: LatencyName, p: int) -> float | None:
    """The p-th percentile with every failed request as +inf, beside the success-only view; None without rows."""
    seen, failed = latencies(run, (figure,))
    return percentile_with_failed(in_order(seen[figure]), failed, p)


def percentile_with_failed(ordered: Sequence[float] | Ranked, failed: int, p: int) -> float | None:
    """The p-th percentile of values in order and so many more that are infinite; None where there are none.

    >>> percentile_with_failed([1.0, 2.0], 2, 50), percentile_with_failed([1.0, 2.0], 2, 51)
    (2.0, inf)
    """
    n = len(ordered) + failed
    if not n:
        return None
    place = rank(p, n) - 1
    return ordered[place] if place < len(ordered) else math.inf
