"""A plan for people: the answer, the best candidates, where the ranges end and why, what it rests on, what to do next."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import click

from servefit.cli.show import plain, table
from servefit.plan.checks import misses
from servefit.plan.edges import Group, group_of, show, too_close
from servefit.plan.pick import SEATS, latency_margin
from servefit.plan.plan import Assumption, Candidate, Check, Edge, Plan, SeatRange, WhatIf
from servefit.units import fmt, fmt_bytes, fmt_count, fmt_percent, fmt_s

ROWS = 5
"""Rows of a table on a screen; `--all` and plan.json hold all of them."""
FEW = 5
"""Assumptions and what-ifs on a screen."""


def show_plan(plan: Plan, path: Path, *, everything: bool = False) -> None:
    """Print the plan; `everything` with every candidate, assumption and note in it."""
    click.echo(plain(plan.answer))
    if plan.nearest_fix:
        click.echo(plain(plan.nearest_fix))
    _bounds(plan)
    _candidates(plan, everything=everything)
    _ranges(plan, everything=everything)
    _why_not(plan, everything=everything)
    _assumptions(plan, everything=everything)
    _what_ifs(plan, everything=everything)
    _notes(plan, everything=everything)
    follow = f"servefit decide {path}" if plan.recommended else "servefit plan with a looser target or another --device"
    more = "" if everything else "; --all shows them"
    click.echo(plain(f"{path}: {len(plan.candidates)} candidates, every figure{more}.\nnext: {follow}"))


def _bounds(plan: Plan) -> None:
    """What was asked, on one line: a latency promise is worth nothing without its token shape."""
    w = plan.spec.workload
    load = (
        f"{fmt(w.rate_req_per_s, 2)} req/s ({w.arrivals})"
        if w.rate_req_per_s
        else fmt_count(w.concurrency, "user")
        if w.concurrency
        else f"trace {w.trace}"
        if w.trace
        else "stages"
        if w.stages
        else "one burst"
    )
    shape = "" if w.trace else f", {w.isl.mean} in, {w.osl.mean} out"
    promise = "; ".join(
        f"{c.label} {'at most' if c.at_most else 'at least'} {show(c.target, c.unit)}"
        + (" (by default)" if c.name in plan.spec.by_default else "")
        for c in plan.candidates[0].checks
    )
    seeds = len(plan.schedule_sha256)
    click.echo(plain(f"\nasked: {load}{shape}, {fmt(w.n)} requests x {fmt_count(seeds, 'schedule')}"))
    click.echo(plain(f"promised: {promise}"))
    if plan.recommended:
        rule = plan.recommended.rule
        own = group_of(plan.candidate(plan.recommended.id))
        idle = any(r.high and r.high.why_not.startswith("more change nothing") for r in plan.ranges if _group(r) == own)
        ends = "the low end of the passing range (more seats change nothing: no high end)"
        ends = ends if idle else "both ends of the passing range"
        seats = f"; of equal margins the seats farthest from {ends}" if SEATS in rule else ""
        click.echo(plain(f"chosen by: {rule.partition(';')[0]}{seats}"))


def _ordered(plan: Plan) -> list[Candidate]:
    """The recommended (or nearest) one, those that pass, those that are too close, then the nearest misses."""
    chosen = plan.recommended or plan.nearest

    def key(c: Candidate) -> tuple[float, ...]:
        price = c.cost.usd_per_hour if c.cost else float("inf")
        passes = c.verdict == "pass"
        return (
            chosen is None or c.id != chosen.id,
            not passes,
            c.figures is None,
            *((price,) if passes else misses(c.checks)),
            -latency_margin(c),
        )

    return sorted(plan.candidates, key=key)


def _best(plan: Plan) -> list[Candidate]:
    """The best of each device and policy; devices on which nothing passes have a sentence of their own.

    Where more than one precision was asked, the best of each device and precision come first: that is what was asked.
    """
    ordered = _ordered(plan)
    firsts: dict[tuple[str, ...], Candidate] = {}
    if len(plan.spec.precisions) > 1:
        for c in ordered:
            firsts.setdefault((c.device, c.precision), c)
        return list(firsts.values())[: max(ROWS, len(plan.spec.precisions))]
    for c in ordered:
        firsts.setdefault((c.device, c.policy), c)
    told = {failure.device for failure in plan.failures} if plan.recommended else set()
    return [c for c in firsts.values() if c.device not in told][:ROWS]


def _candidates(plan: Plan, *, everything: bool) -> None:
    rows = _ordered(plan) if everything else _best(plan)
    names = [c.name for c in rows[0].checks]
    heads = ["device", "policy", "seats", *(c.label for c in rows[0].checks), "capacity", "$/h", "verdict"]
    many = len({(c.model, c.precision, c.kv_bits, c.tp, c.replicas, c.budget_tok) for c in plan.candidates}) > 1
    several = any(c.tp * c.replicas > 1 for c in rows)
    if several:
        heads.insert(3, "devices")
    if many:
        heads.insert(1, "how")
    body = []
    for c in rows:
        cells = [c.device, c.policy, fmt(c.seats), *([fmt(c.tp * c.replicas)] if several else [])]
        if many:
            cells.insert(1, _how(c, plan))
        for name in names:
            check = c.check(name)
            cells.append("-" if check is None else _value(check))
        cells += [
            _capacity(c),
            fmt(c.cost.usd_per_hour, 2) if c.cost else "-",
            _verdict(c) + (" (bound)" if c.lower_bound else ""),
        ]
        body.append(cells)
    click.echo()
    table(heads, body, right=range(2 + many, len(heads) - 1), tight=True)


def _verdict(c: Candidate) -> str:
    """The verdict; where it is too close, with the checks in doubt: their values alone stand on the right side, or may."""
    close = [check for check in c.checks if check.verdict == "too close to call"]
    doubtful = [check.name.upper() if check.unit == "s" else check.label for check in close]
    return f"too close: {', '.join(doubtful)}" if c.verdict == "too close to call" else c.verdict


def _capacity(c: Candidate) -> str:
    """The largest load that passes: users in a closed loop, requests per second elsewhere."""
    if c.capacity is None:
        return "-"
    over = ">= " if c.capacity.limited_by == "edge not reached" else ""
    return over + (fmt_count(c.capacity.users, "user") if c.capacity.users else f"{fmt(c.capacity.req_per_s, 2)}/s")


def _how(c: Candidate, plan: Plan) -> str:
    """What tells this candidate apart beside device, policy and seats."""
    all_of = plan.candidates
    parts = [
        c.model if len({o.model for o in all_of}) > 1 else "",
        c.precision if len({o.precision for o in all_of}) > 1 else "",
        f"kv{c.kv_bits}" if len({o.kv_bits for o in all_of}) > 1 else "",
        f"budget {c.budget_tok}" if len({o.budget_tok for o in all_of}) > 1 else "",
        f"tp{c.tp}" if len({o.tp for o in all_of}) > 1 else "",
        f"x{c.replicas}" if len({o.replicas for o in all_of}) > 1 else "",
    ]
    return " ".join(filter(None, parts)) or "-"


def _value(check: Check) -> str:
    """A check's value with its margin: "210 ms +58%"."""
    if check.value is None or check.margin is None:
        return "-"
    if check.name in ("memory", "goodput") and check.unit == "frac":
        return show(check.value, check.unit)
    if check.margin < -1:
        return f"{show(check.value, check.unit)} x{fmt(1 - check.margin, 1 if check.margin > -9 else 0)}"
    sign = "+" if check.margin >= 0 else ""
    return f"{show(check.value, check.unit)} {sign}{fmt_percent(check.margin)}"


def _ranges(plan: Plan, *, everything: bool) -> None:
    passing = [r for r in plan.ranges if r.passing]
    if not passing:
        return
    if everything:
        merged = [[r] for r in passing]
    else:
        first = group_of(plan.candidate(plan.recommended.id)) if plan.recommended else None
        alike: dict[tuple[object, ...], list[SeatRange]] = {}
        for r in [r for r in passing if r.policy != "none" or _group(r) == first]:
            alike.setdefault((_what(r, plan), min(r.passing), max(r.passing), _end(r.low), _end(r.high)), []).append(r)
        merged = sorted(alike.values(), key=lambda rs: not any(_group(r) == first for r in rs))[:ROWS]
    body = [
        [
            _names(rs, plan),
            f"{fmt(min(rs[0].passing))} to {fmt(max(rs[0].passing))}"
            if len(rs[0].passing) > 1
            else fmt(rs[0].passing[0]),
            edge_in_words([r.low for r in rs]),
            edge_in_words([r.high for r in rs]),
        ]
        for rs in merged
    ]
    click.echo()
    table(["passes with", "seats", "fewer seats", "more seats"], body, tight=True)


def _group(r: SeatRange) -> Group:
    return (r.device, r.model, r.precision, r.kv_bits, r.policy, r.budget_tok, r.tp, r.replicas)


def _names(ranges: Sequence[SeatRange], plan: Plan) -> str:
    """Devices and policies whose ranges are told on one row: "l4, rtx-4090 static, chunked"."""
    by_device: dict[str, list[str]] = {}
    for r in ranges:
        by_device.setdefault(r.device, []).append(r.policy)
    by_policies: dict[str, list[str]] = {}
    for device, policies in by_device.items():
        every = [p for p in plan.spec.policies if p != "none"]
        said = "any batching" if policies == every and len(every) > 1 else ", ".join(policies)
        by_policies.setdefault(said, []).append(device)
    told = "; ".join(f"{', '.join(devices)} {policies}" for policies, devices in by_policies.items())
    return f"{told} {_what(ranges[0], plan)}".rstrip()


def _what(r: SeatRange, plan: Plan) -> str:
    """What tells this range apart beside device and policy."""
    extra = [
        r.precision if len({o.precision for o in plan.ranges}) > 1 else "",
        r.model if len({o.model for o in plan.ranges}) > 1 else "",
        f"kv{r.kv_bits}" if len({o.kv_bits for o in plan.ranges}) > 1 else "",
        f"budget {r.budget_tok}" if len({o.budget_tok for o in plan.ranges}) > 1 else "",
        f"tp{r.tp}" if len({o.tp for o in plan.ranges}) > 1 else "",
        f"x{r.replicas}" if len({o.replicas for o in plan.ranges}) > 1 else "",
    ]
    return " ".join(filter(None, extra))


def _end(edge: Edge | None) -> tuple[object, ...]:
    """What two policies must share for their edges to be told together: all but the value there."""
    return () if edge is None else (edge.reached, edge.why_not, edge.check, edge.outside_seats, edge.verdict)


def edge_in_words(edges: Sequence[Edge | None]) -> str:
    """Which target ends the range on that side, and its value there; several edges differ in that value alone."""
    edge = edges[0]
    if edge is None:
        return "-"
    if not edge.reached:
        why = edge.why_not.removeprefix("more change nothing: ")
        return why if why in ("one at a time", "1 is the least") else f"edge not reached: {why}"
    unit = {"ttft": "s", "tpot": "s", "e2e": "s", "memory": "frac", "goodput": "frac"}.get(edge.check or "", "")
    name = (edge.check or "").upper() if unit == "s" else edge.check
    close = edge.verdict == "too close to call"
    values = [v for e in edges if e for v in (e.interval if close and e.interval else [e.value]) if v is not None]
    low, high = (show(pick(values), unit) for pick in (min, max)) if values else ("-", "-")
    if low.partition(" ")[2] == high.partition(" ")[2]:
        low = low if low == high else low.partition(" ")[0]
    span = high if low == high else f"up to {high}" if min(values) == 0 else f"{low} to {high}"
    says = "too close" if close else f"misses {show(edge.target, unit)}"
    return f"{fmt(edge.outside_seats)}: {name} {span} {says}"


def _why_not(plan: Plan, *, everything: bool) -> None:
    """Devices on which nothing passes, and what more seats cost and buy on the recommended one."""
    told = [failure.sentence for failure in plan.failures]
    if not everything:
        told = [sentence.partition("; nor ")[0].rstrip(".") + "." for sentence in told[:FEW]]
        if plan.failures[FEW:]:
            told.append(f"Nor does anything pass on {', '.join(f.device for f in plan.failures[FEW:])}.")
    near = [] if plan.nearest else list(too_close(plan.candidates).values())
    told = [*(near if everything else near[:FEW]), *told]
    if plan.seat_trades:
        told.append(_trade(plan))
    if told:
        click.echo(plain("\n" + "\n".join(told)))


def _trade(plan: Plan) -> str:
    low, high = plan.candidate(plan.seat_trades[0].from_id), plan.candidate(plan.seat_trades[-1].to_id)
    memory = sum(t.memory_bytes for t in plan.seat_trades)
    (where,) = [_names([r], plan) for r in plan.ranges if _group(r) == group_of(low)]
    head = f"{where}, {low.seats} to {fmt_count(high.seats, 'seat')}: {high.seats - low.seats} more cost {fmt_bytes(memory)} of memory"
    if low.capacity is None or high.capacity is None:
        return f"{head}; what they buy was not searched for."
    if low.capacity.users is not None and high.capacity.users is not None:
        users = high.capacity.users - low.capacity.users
        buys = "no more users" if users <= 0 else fmt_count(users, "more user")
    else:
        rate = high.capacity.req_per_s - low.capacity.req_per_s
        buys = "no more capacity" if rate <= 0.005 else f"{fmt(rate, 2)} req/s of capacity"
    return f"{head} and buy {buys}."


def _assumptions(plan: Plan, *, everything: bool) -> None:
    if not plan.assumptions:
        return
    click.echo()
    if everything:
        body = [[a.id, plain(a.text), _bias(a), _breaks(a)] for a in plan.assumptions]
        table(["rests on", "", "if instead", "breaks at"], body, tight=True)
    else:
        body = [[a.id, plain(short(a.text)), _breaks(a)] for a in plan.assumptions[:FEW]]
        table(["rests on", "", "breaks at"], body, tight=True)


def short(text: str) -> str:
    """The first statement of an assumption, without its sources: those stand in plan.json.

    >>> short("rtx-4090 costs $0.34 an hour (runpod: a page (CC BY), 2026-09-25); the next device costs $1.39.")
    'rtx-4090 costs $0.34 an hour'
    """
    out, depth = [], 0
    for letter in text:
        depth += letter == "("
        if not depth:
            out.append(letter)
        depth -= letter == ")" and depth > 0
    said = re.split(r"[;:](?= |$)", "".join(out))[0]
    return re.sub(r"\s+(?=[,.]|$)|\s(?=\s)", "", said).rstrip(".")


def _bias(a: Assumption) -> str:
    moved = [b for b in a.biases if b.direction != "none"]
    if not moved:
        return f"{a.alternative}: nothing changes"
    b = max(moved, key=lambda b: abs((b.ratio or 10.0) - 1))
    times = f"x{fmt(b.ratio, 2)}" if b.ratio is not None else "no longer met"
    return f"{a.alternative}: {b.check} {times}" + (", the decision changes" if a.changes_decision else "")


def _breaks(a: Assumption) -> str:
    if a.breaking is None:
        return "not within what was tried" if a.tried else "-"
    value = (
        fmt_s(a.breaking.value)
        if a.unit == "s"
        else f"${fmt(a.breaking.value, 2)} an hour"
        if a.unit == "usd_per_hour"
        else f"{fmt(a.breaking.value, 0 if a.breaking.value >= 100 else 2)} {a.unit.replace('req_per_s', 'req/s')}"
    )
    return f"{value}: {a.breaking.check}"


def _what_ifs(plan: Plan, *, everything: bool) -> None:
    if not plan.what_ifs:
        return

    def arrow(pair: tuple[float | None, float | None], text: str) -> str:
        before, after = pair
        if before is None or after is None:
            return "-"
        change = fmt_percent(after / before - 1 if before else None)
        return f"{text} ({'' if change in ('0%', '-') or change.startswith('-') else '+'}{change})" if before else text

    rows = plan.what_ifs if everything else sorted(plan.what_ifs, key=_how_much, reverse=True)[:FEW]
    body = [
        [
            plain(w.factor),
            arrow(w.ttft_s, fmt_s(w.ttft_s[1])),
            arrow(w.tpot_s, fmt_s(w.tpot_s[1])),
            arrow(w.output_tok_per_s, f"{fmt(w.output_tok_per_s[1])} tok/s"),
            fmt(w.usd_per_mtok[1], 2),
            w.verdict,
        ]
        for w in rows
    ]
    p = rows[0].p
    heads = ["what if", f"p{p} TTFT", f"p{p} TPOT", "throughput", "$/1M tok", "verdict"]
    if all(w.usd_per_mtok[1] is None for w in rows):
        heads.pop(4)
        body = [[*cells[:4], cells[5]] for cells in body]
    click.echo()
    table(heads, body, right=range(1, len(heads) - 1), tight=True)


def _how_much(w: WhatIf) -> float:
    """How far the latency or throughput that it moves most is moved, either way."""
    pairs = (w.ttft_s, w.tpot_s, w.output_tok_per_s)
    return max((abs(math.log(after / before)) for before, after in pairs if before and after), default=0.0)


def _notes(plan: Plan, *, everything: bool) -> None:
    if not plan.notes:
        return
    firsts = " ".join(note.partition(";")[0].rstrip(".") + "." for note in plan.notes)
    said = [f"note: {note}" for note in plan.notes] if everything else [f"notes: {firsts}"]
    click.echo(plain("\n".join(said)))
