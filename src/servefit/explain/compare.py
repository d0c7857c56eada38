"""Is one run better than another, worse, or can nobody tell? Every figure with an interval for its difference."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from servefit.objectives import Targets, is_good
from servefit.packed import chosen
from servefit.records import RequestRecord, Run
from servefit.stats import mean_difference, percentile, percentile_difference, share_difference
from servefit.units import fmt, fmt_count, fmt_percent
from servefit.workload.requests import stream

Outcome = Literal["better", "worse", "cannot tell", "the same"]
Unit = Literal["s", "frac", "tok/s"]
METHOD = (
    "percentiles: bootstrap of the order statistic, seeded (Maritz and Jarrett 1978); shares: Newcombe 1998; throughput: "
    "Welch on eight batch means. The intervals are widened (Bonferroni) so that all of them together are that sure; "
    "requests count as independent, which those that share a queue are only roughly."
)
WINDOWS = 10
"""Equal slices of a run whose throughputs are compared; the first and the last (start and drain) are left out."""
OF_ROWS: dict[str, tuple[Callable[[RequestRecord], float | None], tuple[int, ...]]] = {
    "TTFT": (lambda row: row.ttft_s, (50, 95, 99)),
    "TPOT": (lambda row: row.tpot_s, (50, 95, 99)),
    "E2E": (lambda row: row.e2e_s, (50, 95, 99)),
    "longest gap": (lambda row: max(row.itl_s, default=None), (50, 95)),
    "server's prefill per token": (lambda row: _each(row, "prefill_s", row.isl), (50,)),
    "server's decode per token": (lambda row: _each(row, "decode_s", row.osl), (50,)),
}
"""What each successful request has of its own: name -> (seconds, percentiles). The longest gap is a user's worst stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of two runs."""

    name: str
    unit: Unit
    less_is_better: bool
    base: float | None
    other: float | None
    n: tuple[int, int]
    difference: float | None
    """other - base."""
    interval: tuple[float, float] | None
    """Of the difference; None where there are too few observations for one."""
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs side by side."""

    differences: tuple[Difference, ...]
    warnings: tuple[str, ...]
    confidence: float
    each_confidence: float
    outcome: Outcome | Literal["mixed"]
    sentence: str


def differs(base: Run, other: Run) -> str | None:
    """Why the two were not asked the same, in a sentence; None where they were."""
    ours, theirs = base.header.workload_sha256, other.header.workload_sha256
    if ours and theirs and ours != theirs:
        return f"They were not asked the same: workload {ours[:12]} ({_load(base)}) against {theirs[:12]} ({_load(other)})."
    return None


def _load(run: Run) -> str:
    load = run.header.load
    rate = load.get("rate_req_per_s") or load.get("rate")
    how = fmt_count(load["concurrency"], "user") if load.get("concurrency") else f"{rate} req/s" if rate else "traced"
    return f"{load.get('n')} requests, {how}, {load.get('isl')} in, {load.get('osl')} out"


def compare(
    base: Run, other: Run, *, targets: Targets | None = None, confidence: float = 0.95, seed: int = 0
) -> Comparison:
    """Each figure that both runs have: better, worse, or cannot tell."""
    figures = _figures(base, other, targets)
    each = 1 - (1 - confidence) / max(1, len(figures))
    found = tuple(figure(each, seed) for figure in figures)
    outcome, sentence = _verdict(found)
    return Comparison(
        differences=found, warnings=warnings(base, other), confidence=confidence, each_confidence=each, outcome=outcome,
        sentence=sentence,
    )  # fmt: skip


def _figures(base: Run, other: Run, targets: Targets | None) -> list[Callable[[float, int], Difference]]:
    """What can be compared, as functions of the confidence and the seed."""
    out: list[Callable[[float, int], Difference]] = []
    for noun, (value, percentiles) in OF_ROWS.items():
        a, b = ([v for row in run.load_rows if row.ok and (v := value(row)) is not None] for run in (base, other))
        if a and b:
            out += [_of_percentile(f"{noun} p{p}", a, b, p) for p in percentiles]
    out.append(_of_share("share answered", base, other, lambda row: row.ok))
    if targets is not None:
        out.append(_of_share("share of good requests", base, other, lambda row: is_good(row, targets)))
    rates = [batch_rates(run) for run in (base, other)]
    if all(rates):
        out.append(_of_rates(rates[0], rates[1]))
    return out


def _of_percentile(name: str, a: Sequence[float], b: Sequence[float], p: int) -> Callable[[float, int], Difference]:
    def figure(confidence: float, seed: int) -> Difference:
        interval = percentile_difference(a, b, p, stream(seed, f"compare/{name}"), confidence=confidence)
        return _difference(name, "s", percentile(a, p), percentile(b, p), n=(len(a), len(b)), interval=interval)

    return figure


def _of_share(
    name: str, base: Run, other: Run, hit: Callable[[RequestRecord], bool]
) -> Callable[[float, int], Difference]:
    def figure(confidence: float, _seed: int) -> Difference:
        counts = [(sum(map(hit, run.load_rows)), len(run.load_rows)) for run in (base, other)]
        (a, n), (b, m) = counts
        interval = share_difference((a, n), (b, m), confidence=confidence) if n and m else None
        return _difference(
            name, "frac", a / n if n else None, b / m if m else None, n=(n, m), interval=interval, less=False
        )

    return figure


def _of_rates(a: Sequence[float], b: Sequence[float]) -> Callable[[float, int], Difference]:
    def figure(confidence: float, _seed: int) -> Difference:
        interval = mean_difference(a, b, confidence=confidence)
        means = math.fsum(a) / len(a), math.fsum(b) / len(b)
        return _difference("output while under way", "tok/s", *means, n=(len(a), len(b)), interval=interval, less=False)

    return figure


def _difference(
    name: str,
    unit: Unit,
    base: float | None,
    other: float | None,
    *,
    n: tuple[int, int],
    interval: tuple[float, float] | None,
    less: bool = True,
) -> Difference:
    outcome: Outcome = "cannot tell"
    if interval is not None and (interval[0] > 0 or interval[1] < 0):
        outcome = "better" if (interval[1] < 0) == less else "worse"
    elif interval == (0.0, 0.0):
        outcome = "the same"
    gap = None if base is None or other is None else other - base
    return Difference(
        name=name, unit=unit, less_is_better=less, base=base, other=other, n=n, difference=gap, interval=interval,
        outcome=outcome,
    )  # fmt: skip


def _each(row: RequestRecord, name: str, count: int | None) -> float | None:
    """The server's own time by token, where it tells."""
    took = (row.server or {}).get(name)
    return took / count if took is not None and count else None


def batch_rates(run: Run) -> list[float]:
    """Output tokens a second in each of eight equal slices of the run, without its start and its drain.

    Empty where there are fewer than 20 answers, or their tokens' times were not recorded. Source: batch means, A. M. Law,
    Simulation Modeling and Analysis, 5th ed., 9.5.3.
    """
    rows = chosen(run.load_rows, lambda row: bool(row.ok and row.chunk_s and "gaps_not_recorded" not in row.findings))
    if len(rows) < 20 or "no_start_times" in {f.code for f in run.header.findings}:
        return []
    start, end = min(row.due_s for row in rows), max(row.chunk_s[-1] for row in rows)
    width = (end - start) / WINDOWS
    counts = [0] * WINDOWS
    for row in rows:
        for at in row.token_s:
            counts[min(WINDOWS - 1, int((at - start) / width))] += 1
    return [count / width for count in counts[1:-1]]


def warnings(base: Run, other: Run) -> tuple[str, ...]:
    """What stands in the way of reading the difference as one of the two servers."""
    out = []
    if unlike := differs(base, other):
        out.append(unlike)
    pairs = [("the first", base), ("the second", other)]
    for which, run in pairs:
        header = run.header
        if not header.workload_sha256:
            out.append(f"It is not known what {which} run was asked: nothing says that both were asked the same.")
        if header.verdict != "valid":
            codes = ", ".join(f.code for f in header.findings if f.level != "note")
            out.append(f"{which.capitalize()} run is {header.verdict}" + (f" ({codes})." if codes else "."))
        if not header.finished:
            out.append(f"{which.capitalize()} run was not finished.")
        read = sum(row.isl or 0 for row in run.load_rows)
        cached = sum(row.cached_tok or 0 for row in run.load_rows)
        if read and cached / read > 0.02:
            out.append(
                f"{fmt_percent(cached / read)} of {which} run's prompt tokens came from a cache: its TTFT is not a cold one."
            )
        if busy := _busy(run):
            out.append(f"{which.capitalize()} run's machine was busy: {busy}.")
    kinds = {base.header.kind, other.header.kind}
    if len(kinds) > 1:
        out.append("One was measured, the other simulated.")
    for name in ("model", "clock"):
        ours, theirs = getattr(base.header, name), getattr(other.header, name)
        if len(kinds) == 1 and ours and theirs and ours != theirs:
            out.append(f"The {name} differs: {ours} against {theirs}.")
    return tuple(out)


def _busy(run: Run) -> str:
    """What else the machine did, in words; "" where nothing is known or it was quiet."""
    machine, client = run.header.machine, run.header.client
    cores = machine.get("cores") or 0
    load, steal = machine.get("load_1min"), client.get("steal_frac")
    if cores and load is not None and load > 0.7 * cores:
        return f"load {fmt(load, 1)} on {cores} cores before it began"
    if steal is not None and steal > 0.05:
        return f"{fmt_percent(steal)} of its time went to other guests of the host"
    return ""


def _verdict(found: Sequence[Difference]) -> tuple[Outcome | Literal["mixed"], str]:
    names = {o: [d.name for d in found if d.outcome == o] for o in ("better", "worse", "cannot tell", "the same")}
    if names["better"] and names["worse"]:
        return "mixed", f"better in {_list(names['better'])}; worse in {_list(names['worse'])}."
    either: tuple[Outcome, Outcome] = ("better", "worse")
    for word in either:
        if names[word]:
            rest = "; in the rest nobody can tell" if names["cannot tell"] else ""
            return word, f"{word} in {_list(names[word])}{rest}."
    if names["cannot tell"]:
        return "cannot tell", "nobody can tell them apart by these runs."
    return "the same", "the same in every figure."


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
