"""Verdicts: a value, what it may be, and whether that is clearly on the right side of the target.

A margin that is smaller than the value's own uncertainty is not a pass: it is too close to call.
"""

import math
from collections.abc import Sequence

from servefit.objectives import Verdict, margin
from servefit.plan.plan import Check, NeverPasses

T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t, two-sided 95%, by the number of values; 2 beyond ten (at most 10% narrow)."""

LABELS: dict[str, tuple[str, str, bool]] = {
    "ttft": ("TTFT", "s", True),
    "tpot": ("TPOT", "s", True),
    "e2e": ("E2E", "s", True),
    "memory": ("memory", "frac", True),
    "goodput": ("goodput", "frac", False),
    "usd_per_hour": ("cost per hour", "usd_per_hour", True),
    "usd_per_mtok": ("cost per 1M output tokens", "usd_per_mtok", True),
    "quality": ("quality", "score", False),
}
"""name -> (label without percentile, unit, at most)."""


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where one of the values was not observed, or there are none.

    >>> mean([1.0, 3.0]), mean([1.0, None])
    (2.0, None)
    """
    seen = [v for v in values if v is not None]
    return math.fsum(seen) / len(seen) if seen and len(seen) == len(values) else None


def seed_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the mean over more seeds would lie, 95% sure: mean +- t * s / sqrt(k), not below 0; a point for one value.

    >>> seed_interval([1.0, 1.0, 1.0]), seed_interval([2.0])
    ((1.0, 1.0), (2.0, 2.0))
    >>> tuple(round(x, 3) for x in seed_interval([0.9, 1.0, 1.1]))
    (0.752, 1.248)
    """
    k = len(values)
    middle = math.fsum(values) / k
    if k == 1:
        return middle, middle
    s = math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (k - 1))
    half = T_975.get(k, 2.0) * s / math.sqrt(k)
    return max(0.0, middle - half), middle + half


def verdict_of(interval: tuple[float, float], target: float, *, at_most: bool) -> Verdict:
    """Pass where the whole interval meets the target, fail where none of it does, else too close to call.

    >>> verdict_of((0.08, 0.09), 0.1, at_most=True), verdict_of((0.09, 0.11), 0.1, at_most=True)
    ('pass', 'too close to call')
    """
    low, high = interval
    if at_most:
        return "pass" if high <= target else "fail" if low > target else "too close to call"
    return "pass" if low >= target else "fail" if high < target else "too close to call"


def make_check(
    name: str,
    target: float,
    value: float | None,
    interval: tuple[float, float] | None,
    *,
    p: int = 99,
    unit: str | None = None,
) -> Check:
    """The check of that name. Nothing observed, or nothing finite, is a fail: an unserved target is a missed one."""
    noun, default_unit, at_most = LABELS[name]
    label = f"p{p} {noun}" if name in ("ttft", "tpot", "e2e") else noun
    if value is None or not math.isfinite(value):
        value, interval, gap, verdict = None, None, None, "fail"
    else:
        interval = interval or (value, value)
        gap = margin(value, target, at_most=at_most) if target else None
        verdict = verdict_of(interval, target, at_most=at_most)
    return Check(
        name=name,
        label=label,
        unit=unit or default_unit,  # type: ignore[arg-type]  # the literal's members stand in LABELS
        at_most=at_most,
        target=target,
        value=value,
        interval=interval,
        margin=gap,
        verdict=verdict,  # type: ignore[arg-type]
    )


def overall(checks: Sequence[Check]) -> Verdict:
    """Pass where every check passes, fail where one fails, else too close to call."""
    verdicts = {check.verdict for check in checks}
    return "fail" if "fail" in verdicts else "too close to call" if "too close to call" in verdicts else "pass"


def worst(checks: Sequence[Check]) -> Check | None:
    """The check that misses by most, as a share of its target; one without a value before any other; None of none."""
    return min(checks, key=lambda c: -math.inf if c.margin is None else c.margin, default=None)


LATENCIES = ("ttft", "tpot", "e2e")


def tightest(checks: Sequence[Check]) -> Check | None:
    """The check to watch: of those that do not pass the worst, else the latency with the smallest margin.

    Goodput counts the requests within the latency targets, so it has no room of its own to lose; at 100% it is at its
    ceiling, and its margin there only says what the target is. Where no latency is promised: the smallest margin of the
    others. None where no check has a margin.

    >>> near = [make_check("tpot", 0.04, 0.03, None), make_check("goodput", 0.95, 1.0, None)]
    >>> tightest(near).name, tightest(near[1:]).name
    ('tpot', 'goodput')
    """
    known = [c for c in checks if c.margin is not None]
    missed = [c for c in known if c.verdict != "pass"]
    latencies = [c for c in known if c.name in LATENCIES]
    others = [c for c in known if not (c.name == "goodput" and c.unit == "frac" and c.value == 1.0)]
    return worst(missed or latencies or others or known)


def smallest_margin(checks: Sequence[Check], *, names: Sequence[str] | None = None) -> float:
    """The smallest margin of the checks named (all of them where None); -inf where a value is missing.

    >>> smallest_margin([make_check("ttft", 0.1, 0.08, None), make_check("tpot", 0.01, 0.009, None)])
    0.1
    """
    chosen = [c for c in checks if names is None or c.name in names]
    return min((-math.inf if c.margin is None else c.margin for c in chosen), default=0.0)


def misses(checks: Sequence[Check]) -> tuple[float, float, float]:
    """How far from a clear pass: what misses by less sorts first. The same order on the screen, in an answer, in a decision.

    Too close comes before a fail. Of those too close the fewest checks in doubt, then the least by which these may miss
    together; of those that fail the least by which the worst value misses.

    >>> one = [make_check("tpot", 0.05, 0.038, (0.025, 0.053)), make_check("goodput", 0.99, 1.0, (0.996, 1.0))]
    >>> two = [make_check("tpot", 0.05, 0.038, (0.025, 0.052)), make_check("goodput", 0.99, 1.0, (0.987, 1.0))]
    >>> fails = [make_check("tpot", 0.05, 0.0501, (0.0501, 0.06)), make_check("goodput", 0.99, 1.0, None)]
    >>> misses(one) < misses(two) < misses(fails)
    True
    """
    verdict = overall(checks)
    if verdict == "fail":
        return 2.0, -smallest_margin(checks), 0.0
    doubtful = [c for c in checks if c.verdict != "pass"]
    ends = [(c, c.interval[1 if c.at_most else 0]) for c in doubtful if c.interval]
    most = math.fsum(-margin(end, c.target, at_most=c.at_most) for c, end in ends)
    return float(verdict != "pass"), float(len(doubtful)), most


def never(checks_by_id: Sequence[tuple[str, tuple[Check, ...]]]) -> tuple[NeverPasses, ...]:
    """The checks that fail for every one of the candidates (id, checks), worst best value first."""
    out: list[tuple[float, NeverPasses]] = []
    names = [c.name for c in checks_by_id[0][1]] if checks_by_id else []
    for name in names:
        all_of = [(id_, c) for id_, checks in checks_by_id for c in checks if c.name == name]
        if any(c.verdict != "fail" for _, c in all_of):
            continue
        seen = [(id_, c) for id_, c in all_of if c.margin is not None]
        best_id, best = max(seen, key=lambda pair: pair[1].margin or 0.0, default=(None, all_of[0][1]))
        out.append(
            (
                -math.inf if best.margin is None else best.margin,
                NeverPasses(
                    check=name,
                    label=best.label,
                    unit=best.unit,
                    at_most=best.at_most,
                    target=best.target,
                    best_value=best.value,
                    best_candidate=best_id,
                ),
            )
        )
    return tuple(found for _, found in sorted(out, key=lambda pair: pair[0]))
