"""When nothing passes: why, in one sentence, and the nearest thing that works."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from servefit.facts.devices import all_devices
from servefit.facts.precisions import find_precision
from servefit.objectives import Targets
from servefit.physics.memory import weight_bytes
from servefit.physics.roofline import floor_s
from servefit.plan import pick
from servefit.plan.bases import Base
from servefit.plan.checks import LATENCIES
from servefit.plan.edges import show
from servefit.plan.plan import Candidate, Check, Recommended
from servefit.plan.scenario import Schedule, goals, offered_req_per_s
from servefit.plan.spec import PlanSpec
from servefit.units import fmt, fmt_bytes, fmt_count, fmt_s

Again = Callable[[Candidate, Targets], Sequence[Check]]
"""(candidate, other targets) -> its checks under them, by simulating."""
ROUNDS = 5
"""Value, interval, goodput: three are enough; more where a figure was first seen on one schedule alone."""
UNBOUNDED = 1e6
"""A figure that may be so large has no end: its queue grows."""
FIELDS = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "e2e": "e2e_s",
    "goodput": "goodput_frac",
    "usd_per_hour": "usd_per_hour",
    "usd_per_mtok": "usd_per_mtok",
}
"""Check name -> the target that can be loosened."""
GRAIN_S = ((1e-4, 1e-7), (0.01, 1e-5), (0.1, 1e-4), (1.0, 1e-3), (600.0, 0.01))
"""Times below the first are shown to the second (as `units.fmt_s` does)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class No:
    """The answer no, with its reason and its way out."""

    sentence: str
    fix: str


def why(
    candidates: Sequence[Candidate],
    near: Recommended | None,
    bases: Sequence[Base],
    spec: PlanSpec,
    *,
    requests: Schedule,
    again: Again,
) -> No:
    """The reason that comes first: it fits nowhere, physics forbids it, nothing carries the rate, or a near miss."""
    if near is None:
        return _fits_nowhere(bases)
    floor = _below_floor(bases, spec, requests)
    if floor is not None:
        return floor
    close = next(c for c in candidates if c.id == near.id)
    users = spec.workload.concurrency
    offered = None if users else spec.workload.rate_req_per_s or offered_req_per_s(requests)
    if close.capacity is not None and offered is not None and close.capacity.req_per_s < offered:
        return _too_much(close, offered, spec)
    if users and close.capacity and close.capacity.users and close.capacity.users < users:
        return _too_many(close, users)
    sentence = pick.answer(candidates, None, near)
    return No(sentence=sentence, fix=_fix(close, spec, again, bases))


def _fix(close: Candidate, spec: PlanSpec, again: Again, bases: Sequence[Base]) -> str:
    """The targets under which the nearest one passes, as evaluated; else what is left to do."""
    looser = relaxed(close, spec.targets, again)
    measured = any(b.basis.id == close.basis and b.basis.source == "measured" for b in bases)
    doubt = close.verdict == "too close to call" and not measured
    narrower = " A calibration of the device narrows what the figures may be." if doubt else ""
    if looser is None:
        return f"No looser target alone makes it surely pass: try more replicas, another device or less load.{narrower}"
    before, after = (goals(t) for t in (spec.targets, looser))
    said = [
        f"{c.label} {'at most' if c.at_most else 'at least'} {show(after[c.name][0], c.unit)}"
        for c in close.checks
        if c.name in after and after[c.name] != before[c.name]
    ]
    return f"With {' and '.join(said)} it would pass.{narrower}"


def relaxed(close: Candidate, targets: Targets, again: Again) -> Targets | None:
    """The targets under which every check of it passes, found by evaluating it again with each; None where none do.

    Latency targets are loosened first, to the far end of what the figure may be: goodput counts them, so it rises with
    them and is lowered only where that is not enough. Memory and quality are not loosened.
    """
    found: Sequence[Check] = close.checks
    for _ in range(ROUNDS):
        missed = [c for c in found if c.verdict != "pass"]
        changes: dict[str, float] = {}
        for c in [c for c in missed if c.name in LATENCIES] or missed:
            field = "goodput_req_per_s" if c.unit == "req_per_s" else FIELDS.get(c.name)
            if field is None or c.value is None:
                return None
            end = (c.interval or (c.value, c.value))[1 if c.at_most else 0]
            changes[field] = _outward(end, c)
            if not 0 < changes[field] < UNBOUNDED:
                return None
        if not changes:
            return targets
        targets = replace(targets, **changes)  # type: ignore[arg-type]  # FIELDS are fields of Targets
        found = again(close, targets)
    return targets if all(c.verdict == "pass" for c in found) else None


def _outward(end: float, check: Check) -> float:
    """The end rounded to what is shown of it, to the side on which it still passes."""
    steps = {"s": next((s for under, s in GRAIN_S if end < under), 6.0), "frac": 0.001}
    grain = steps.get(check.unit, 0.01)
    count = math.ceil(end / grain) if check.at_most else math.floor(end / grain)
    return round(count * grain, 9)


def _fits_nowhere(bases: Sequence[Base]) -> No:
    """No device holds the weights: the smallest precision or device that would."""
    rows = [base.row for base in bases]
    small = min(rows, key=lambda r: weight_bytes(r.model, r.precision) / r.tp)
    big = max(rows, key=lambda r: r.device.usable_bytes * r.tp)
    need = weight_bytes(small.model, small.precision)
    devices = ", ".join(dict.fromkeys(r.device.name for r in rows))
    sentence = (
        f"{small.model.name} in {small.label} has {fmt_bytes(need)} of weights and fits on none of {devices}; the "
        f"largest has {fmt_bytes(big.device.usable_bytes)} usable."
    )
    fixes = []
    for name in ("fp8", "awq"):
        needed = weight_bytes(small.model, find_precision(name))
        if needed * 1.15 < big.device.usable_bytes:
            fixes.append(f"--precision {name} ({fmt_bytes(needed)}) fits on {big.device.name}")
            break
    holds = [d for d in all_devices() if d.kind == "gpu" and d.usable_bytes > need * 1.15]
    if holds:
        fixes.append(f"--device {min(holds, key=lambda d: d.memory_bytes).name} holds it as it is")
    if big.device.kind == "gpu" and big.device.link_bytes_per_s:
        count = next((n for n in (2, 4, 8) if big.device.usable_bytes * n > need * 1.2), None)
        if count:
            fixes.append(f"--tp {count} spreads it over {count} {big.device.name}")
    return No(sentence=sentence, fix="; ".join(fixes) + "." if fixes else "A smaller model.")


def _below_floor(bases: Sequence[Base], spec: PlanSpec, requests: Schedule) -> No | None:
    """A TPOT that no device here can reach even alone with an empty cache."""
    target = spec.targets.tpot_s
    if target is None:
        return None
    floors = {}
    for base in bases:
        row = base.row
        floors[base.basis.id] = (
            floor_s(row.model, row.device, row.precision, seqs=1, ctx_tok=min(r.isl for r in requests),
                    kv_bits=row.kv_bits, tp=row.tp),
            row,
        )  # fmt: skip
    best, row = min(floors.values(), key=lambda pair: pair[0])
    if best <= target:
        return None
    faster = [
        (floor_s(row.model, d, row.precision, seqs=1, ctx_tok=0, kv_bits=row.kv_bits), d.name)
        for d in all_devices()
        if d.usable_bytes > weight_bytes(row.model, row.precision) * 1.15
    ]
    fixes = [f"a target above {fmt_s(best * 1.3)}"]
    lower = floor_s(row.model, row.device, find_precision("awq"), seqs=1, ctx_tok=0)
    if lower < target:
        fixes.append(f"--precision awq (at best {fmt_s(lower)})")
    if faster and min(faster)[0] < target:
        fixes.append(f"--device {min(faster)[1]} (at best {fmt_s(min(faster)[0])})")
    return No(
        sentence=f"A TPOT of {fmt_s(target)} is below what physics allows here: the fastest, {row.device.name}, needs "
        f"{fmt_s(best)} to read {row.model.name} in {row.label} once, and every token reads it.",
        fix="Works: " + ", or ".join(fixes) + ".",
    )


def _too_much(close: Candidate, offered: float, spec: PlanSpec) -> No:
    """A rate that nothing carries."""
    assert close.capacity is not None, "a capacity was found"
    each = close.capacity.req_per_s
    count = close.capacity.replicas_for_peak
    more = (
        f"{count} replicas of it would carry {fmt(spec.peak_req_per_s or offered, 2)} req/s and "
        f"{fmt(spec.headroom_frac * 100)}% more (--replicas {count})"
        if count
        else "more replicas"
    )
    return No(
        sentence=f"Nothing here carries {fmt(offered, 2)} requests a second within the targets; the nearest, "
        f"{pick.name(close)}, carries {fmt(each, 2)}.",
        fix=f"{more}; or a rate of at most {fmt(each, 2)} req/s.",
    )


def _too_many(close: Candidate, users: int) -> No:
    """More users than anything carries."""
    assert close.capacity is not None and close.capacity.users, "a capacity was found"
    holds = close.capacity.users
    return No(
        sentence=f"Nothing here carries {fmt_count(users, 'user')} within the targets; the nearest, {pick.name(close)}, carries "
        f"{fmt(holds)}.",
        fix=f"--replicas {math.ceil(users / holds)}, or at most {fmt_count(holds, 'user')}.",
    )
