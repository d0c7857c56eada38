"""When nothing passes: why, in one sentence, and the nearest thing that works."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from servefit.facts.devices import all_devices
from servefit.facts.precisions import find_precision
from servefit.physics.memory import weight_bytes
from servefit.physics.roofline import floor_s
from servefit.plan import pick
from servefit.plan.bases import Base
from servefit.plan.checks import worst
from servefit.plan.edges import show
from servefit.plan.plan import Candidate, Recommended
from servefit.plan.scenario import Schedule, offered_req_per_s
from servefit.plan.spec import PlanSpec
from servefit.units import fmt, fmt_bytes, fmt_count, fmt_s


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
    requests: Schedule,
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
    missed = worst([c for c in close.checks if c.verdict != "pass"])
    if missed is None or missed.value is None:
        return No(sentence=sentence, fix="Loosen a target, or name more devices.")
    edge = missed.value if missed.interval is None else missed.interval[1 if missed.at_most else 0]
    return No(
        sentence=sentence,
        fix=f"With {missed.label} {'at most' if missed.at_most else 'at least'} {show(edge, missed.unit)} it would pass.",
    )


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
