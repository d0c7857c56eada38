"""The search: device x policy x seats x budget x replicas x precision, over the same requests for every candidate.

question -> inputs by hash -> schedules -> step times -> candidates -> edges, capacity, the pick -> assumptions, what-ifs
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from servefit import __version__
from servefit.engine.config import EngineConfig, check_config
from servefit.errors import ServefitError
from servefit.facts.precisions import find_precision
from servefit.objectives import Targets
from servefit.physics.memory import streamed_weight_bytes
from servefit.plan import nothing, pick
from servefit.plan.assumed import MAKERS, assume
from servefit.plan.assumptions import ENOUGH, Ground, in_order, shortened
from servefit.plan.bases import Base, Inputs, base_of, find_bases, find_inputs
from servefit.plan.capacity import capacity
from servefit.plan.checks import overall
from servefit.plan.edges import device_failures, groups, seat_range
from servefit.plan.memory import memory_of
from servefit.plan.money import check_prices, hourly_price, quality_scores, with_cost
from servefit.plan.plan import Assumption, Candidate, Capacity, Check, Memory, Plan, Recommended, StepBasis, WhatIf
from servefit.plan.scenario import Scenario, Schedule, hold, offered_req_per_s
from servefit.plan.seats import MOST_SEATS, search_seats
from servefit.plan.spec import PlanSpec, check_spec
from servefit.plan.whatif import Stand, what_ifs
from servefit.plan.workers import OnDone, run_all
from servefit.stats import is_slowest, rank
from servefit.units import fmt
from servefit.workload.arrivals import schedule
from servefit.workload.requests import schedule_sha256
from servefit.workload.workload import workload_sha256

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What every part of the search looks at."""

    spec: PlanSpec
    inputs: Inputs
    schedules: tuple[Schedule, ...]
    contexts_tok: tuple[int, ...]
    """Prompt and answer of each request of the first schedule."""
    scores: dict[str, float]
    """Quality by precision, where a result file was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Candidates that differ in seats alone."""

    base: Base
    policy: str
    budget_tok: int
    replicas: int


def make_plan(spec: PlanSpec, *, jobs: int = 1, ray_address: str | None = None, on_done: OnDone | None = None) -> Plan:
    """The answer to the question; the same to the byte whatever `jobs` and `ray_address` are.

    `on_done(done, all)` is called as groups of candidates, capacities and assumptions get ready. Raises ServefitError
    for a question that names what is not there; a question whose answer is no gives a plan that says so.
    """
    check_spec(spec)
    inputs = find_inputs(spec)
    check_prices(spec.given_prices, [device.name for device in inputs.devices])
    schedules = make_schedules(spec)
    contexts = tuple(r.isl + r.osl for r in schedules[0])
    scores = quality_scores(spec.quality) if spec.quality else {}
    shared = Shared(spec=spec, inputs=inputs, schedules=schedules, contexts_tok=contexts, scores=scores)
    bases = find_bases(spec, inputs, context_tok=_typical(contexts))
    work = [
        Group(base=base, policy=policy, budget_tok=budget, replicas=replicas)
        for base, policy, budget, replicas in product(bases, spec.policies, spec.budgets_tok, spec.replicas)
    ]
    many = _Runner(jobs=jobs, ray_address=ray_address, on_done=on_done)
    candidates = [c for found in many.run(_search_group, work, shared) for c in found]
    by_basis = {base.basis.id: base for base in bases}
    candidates = _with_capacity(candidates, by_basis, shared, many)
    best = pick.recommend(
        candidates,
        spec.pick,
        {base.basis.id: base.basis.source for base in bases},
        {base.basis.id: base.basis.domain["seqs"][1] for base in bases if "seqs" in base.basis.domain},
    )
    near = None if best else pick.nearest(candidates)
    assumptions, changes = _tried(best or near, candidates, by_basis, shared, many)
    no = None
    if best is None:
        no = nothing.why(candidates, near, bases, spec, requests=schedules[0], again=_again(by_basis, shared))
    return Plan(
        spec=spec,
        tool_version=__version__,
        inputs=inputs.files,
        workload_sha256=workload_sha256(spec.workload),
        schedule_sha256=tuple(schedule_sha256(requests) for requests in schedules),
        max_context_tok=max(contexts),
        bases=tuple(base.basis for base in bases),
        candidates=tuple(candidates),
        ranges=tuple(seat_range(members) for members in groups(candidates).values()),
        failures=device_failures(candidates),
        assumptions=assumptions,
        what_ifs=changes,
        seat_trades=pick.seat_trades(candidates, best.id if best else None, p=spec.targets.p),
        pareto=pick.pareto(candidates),
        recommended=best,
        nearest=near,
        answer=no.sentence if no else pick.answer(candidates, best, near),
        nearest_fix=no.fix if no else "",
        notes=_notes(candidates, bases, spec),
    )


def simulate_again(candidate: Candidate, spec: PlanSpec) -> tuple[Candidate, tuple[str, ...]]:
    """The candidate made again from the question alone, and the hashes of its schedules: the same seeds, the same bytes.

    `spec` is the plan's own, its paths pointing to where its inputs lie now. Capacity is left out: it is a search.
    """
    inputs = find_inputs(spec)
    schedules = make_schedules(spec)
    contexts = tuple(r.isl + r.osl for r in schedules[0])
    scores = quality_scores(spec.quality) if spec.quality else {}
    shared = Shared(spec=spec, inputs=inputs, schedules=schedules, contexts_tok=contexts, scores=scores)
    bases = find_bases(spec, inputs, context_tok=_typical(contexts))
    group = _group_of(candidate, {base.basis.id: base for base in bases})
    made = replace(make_candidate(shared, group, candidate.seats), capacity=candidate.capacity)
    return made, tuple(schedule_sha256(requests) for requests in schedules)


def make_schedules(spec: PlanSpec) -> tuple[Schedule, ...]:
    """One schedule per seed, equal ones once. Raises ServefitError where there is no request in it."""
    out: dict[str, Schedule] = {}
    for k in range(spec.seeds):
        requests = schedule(replace(spec.workload, seed=spec.workload.seed + k))
        if not requests:
            name = spec.workload.trace or "The workload"
            raise ServefitError(f"{name} holds no request.", hint="Name another trace, or set n to 1 or more.")
        out.setdefault(schedule_sha256(requests), requests)
    return tuple(out.values())


def _typical(contexts_tok: Sequence[int]) -> int:
    """The median length: cache reads of layers with a window are linear around it."""
    ordered = sorted(contexts_tok)
    return ordered[rank(50, len(ordered)) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    """Where the work runs."""

    jobs: int
    ray_address: str | None
    on_done: OnDone | None

    def run(self, work: Callable[[Shared, Item], Result], items: Sequence[Item], shared: Shared) -> list[Result]:
        """`work(shared, item)` for all items, in their order."""
        return run_all(work, items, shared, jobs=self.jobs, ray_address=self.ray_address, on_done=self.on_done)


# --- candidates -------------------------------------------------------------------------------------------------------


def _search_group(shared: Shared, group: Group) -> list[Candidate]:
    """All candidates of a group: the seats that were asked for, or those that find both edges."""
    spec = shared.spec

    def attempt(seats: int) -> Candidate:
        return make_candidate(shared, group, seats)

    if group.policy == "none":
        return [attempt(1)]
    limit = min(MOST_SEATS, group.budget_tok) if group.policy == "chunked" else MOST_SEATS
    if spec.seats:
        return [attempt(s) for s in sorted(set(spec.seats)) if s <= limit or group.policy != "chunked"]
    return search_seats(attempt, limit=limit)


def make_candidate(shared: Shared, group: Group, seats: int) -> Candidate:
    """One candidate: its memory, its simulations, its checks, its cost."""
    basis = group.base.basis
    scenario, memory = make_scenario(shared, group, seats)
    figures, checks = hold(scenario, error_frac=basis.error_frac, one_sided=basis.lower_bound)
    row = group.base.row
    return Candidate(
        id=f"{row.device.name}/{row.model.name}/{row.label}/kv{row.kv_bits}/{group.policy}/seats{seats}"
        f"/b{group.budget_tok}/tp{row.tp}/x{group.replicas}",
        device=row.device.name,
        model=row.model.name,
        precision=row.label,
        kv_bits=row.kv_bits,
        policy=group.policy,
        seats=seats,
        budget_tok=group.budget_tok,
        tp=row.tp,
        replicas=group.replicas,
        basis=basis.id,
        lower_bound=basis.lower_bound,
        memory=memory if figures is None else replace(memory, kv_peak_blocks=figures.kv_peak_blocks),
        figures=figures,
        checks=checks,
        verdict=overall(checks),
        cost=with_cost(row.device.name, row.tp * group.replicas, figures, shared.spec.given_prices),
    )


def make_scenario(shared: Shared, group: Group, seats: int) -> tuple[Scenario, Memory]:
    """The scenario of one candidate, and where its memory goes."""
    spec, row = shared.spec, group.base.row
    padded = group.policy in ("static", "dynamic") and (
        group.base.basis.source != "measured" if spec.padded is None else spec.padded
    )
    memory = memory_of(
        row,
        seats=seats,
        budget_tok=group.budget_tok,
        block_tok=group.base.block_tok,
        contexts_tok=shared.contexts_tok,
        padded=padded,
        logged_blocks=group.base.logged_blocks,
    )
    config = EngineConfig(
        policy=group.policy,
        seats=seats,
        budget_tok=group.budget_tok,
        kv_blocks=memory.kv_pool_blocks,
        block_tok=group.base.block_tok,
        timeout_s=spec.timeout_s,
        prefix_cache=spec.prefix_cache,
        padded=padded,
    )
    check_config(replace(config, kv_blocks=max(1, memory.kv_pool_blocks)))
    price = hourly_price(row.device.name, spec.given_prices)
    scenario = Scenario(
        schedules=shared.schedules,
        concurrency=spec.workload.concurrency,
        think_s=spec.workload.think_s,
        offered_req_per_s=_offered(shared),
        config=config,
        step=group.base.basis.step,
        replicas=group.replicas,
        targets=spec.targets,
        memory_frac=memory.needed_bytes / max(1, memory.usable_bytes),
        usd_per_hour=None if price is None else price.usd_per_hour * row.tp * group.replicas,
        quality=shared.scores.get(row.label),
        quality_at_least=spec.quality_at_least,
    )
    return scenario, memory


def _offered(shared: Shared) -> float | None:
    """The rate that was asked for; a trace's own; None in a closed loop and for a burst."""
    w = shared.spec.workload
    if w.concurrency is not None:
        return None
    return w.rate_req_per_s or offered_req_per_s(shared.schedules[0])


def _again(by_basis: dict[str, Base], shared: Shared) -> nothing.Again:
    """A candidate under other targets, everything else the same."""

    def again(candidate: Candidate, targets: Targets) -> Sequence[Check]:
        other = replace(shared, spec=replace(shared.spec, targets=targets))
        return make_candidate(other, _group_of(candidate, by_basis), candidate.seats).checks

    return again


def _group_of(candidate: Candidate, by_basis: dict[str, Base]) -> Group:
    return Group(
        base=by_basis[candidate.basis],
        policy=candidate.policy,
        budget_tok=candidate.budget_tok,
        replicas=candidate.replicas,
    )


# --- capacity ---------------------------------------------------------------------------------------------------------


def _with_capacity(
    candidates: list[Candidate], by_basis: dict[str, Base], shared: Shared, many: _Runner
) -> list[Candidate]:
    """The candidates, those that pass with their capacity; where none passes, the nearest one with its own."""
    chosen = [c for c in candidates if c.verdict == "pass"]
    if not chosen:
        near = pick.nearest(candidates)
        chosen = [c for c in candidates if near and c.id == near.id]
    items = [(_group_of(c, by_basis), c.seats) for c in chosen]
    found = dict(zip([c.id for c in chosen], many.run(_capacity_of, items, shared), strict=True))
    return [replace(c, capacity=found[c.id]) if c.id in found else c for c in candidates]


def _capacity_of(shared: Shared, item: tuple[Group, int]) -> Capacity | None:
    group, seats = item
    scenario, _ = make_scenario(shared, group, seats)
    peak = shared.spec.peak_req_per_s
    if peak is None and scenario.concurrency is None:
        peak = scenario.offered_req_per_s
    return capacity(scenario, peak_req_per_s=peak, headroom_frac=shared.spec.headroom_frac)


# --- assumptions and what-ifs -----------------------------------------------------------------------------------------


def _tried(
    chosen: Recommended | None,
    candidates: list[Candidate],
    by_basis: dict[str, Base],
    shared: Shared,
    many: _Runner,
) -> tuple[tuple[Assumption, ...], tuple[WhatIf, ...]]:
    """What the recommended candidate (or the nearest) rests on, and what one change would do to it."""
    if chosen is None:
        return (), ()
    candidate = next(c for c in candidates if c.id == chosen.id)
    item: Chosen = (_group_of(candidate, by_basis), candidate, _next_price(candidate, candidates))
    found = many.run(_assume_one, [(*item, index) for index in range(len(MAKERS))], shared)
    changed = many.run(_all_what_ifs, [item], shared)
    return in_order([a for one in found for a in one]), changed[0]


Chosen = tuple[Group, Candidate, float | None]


def _assume_one(shared: Shared, item: tuple[Group, Candidate, float | None, int]) -> list[Assumption]:
    group, candidate, next_usd, index = item
    return assume(_ground(shared, group, candidate, next_usd), index)


def _ground(shared: Shared, group: Group, candidate: Candidate, next_usd: float | None) -> Ground:
    scenario, memory = make_scenario(shared, group, candidate.seats)
    return Ground(
        candidate=candidate,
        scenario=shortened(scenario),
        basis=group.base.basis,
        spec=shared.spec,
        max_context_tok=max(shared.contexts_tok),
        kv_bytes_per_tok=memory.kv_bytes_per_tok,
        streamed_bytes=round(streamed_weight_bytes(group.base.row.model, group.base.row.precision) / group.base.row.tp),
        weight_bytes=memory.weight_bytes,
        next_usd_per_hour=next_usd,
        as_of=candidate.cost.as_of if candidate.cost else None,
    )


def _all_what_ifs(shared: Shared, item: Chosen) -> tuple[WhatIf, ...]:
    group, candidate, _ = item
    scenario, memory = make_scenario(shared, group, candidate.seats)
    schedules = tuple(requests[:ENOUGH] for requests in scenario.schedules)

    def rebuild(
        *, precision: str | None = None, kv_bits: int | None = None, seats: int | None = None
    ) -> tuple[Scenario, Memory, StepBasis] | None:
        row = group.base.row
        if precision or kv_bits:
            row = replace(
                row, precision=find_precision(precision) if precision else row.precision, kv_bits=kv_bits or row.kv_bits
            )
        base = group.base if row == group.base.row else base_of(
            row, (), shared.spec, context_tok=_typical(shared.contexts_tok)
        )  # fmt: skip
        made, its_memory = make_scenario(shared, replace(group, base=base), seats or candidate.seats)
        if made.config.kv_blocks is not None and made.config.kv_blocks < 1:
            return None
        return replace(made, schedules=schedules), its_memory, base.basis

    return what_ifs(
        Stand(scenario=replace(scenario, schedules=schedules), memory=memory, base=group.base, rebuild=rebuild)
    )


def _next_price(candidate: Candidate, candidates: Sequence[Candidate]) -> float | None:
    """The price of the cheapest passing candidate on another device."""
    prices = [
        c.cost.usd_per_hour for c in candidates if c.verdict == "pass" and c.cost and c.device != candidate.device
    ]
    return min(prices, default=None)


# --- notes ------------------------------------------------------------------------------------------------------------


def _notes(candidates: Sequence[Candidate], bases: Sequence[Base], spec: PlanSpec) -> tuple[str, ...]:
    """What the reader must know about how far this goes."""
    out = []
    bound = sorted({base.basis.device for base in bases if base.basis.lower_bound})
    if bound:
        out.append(
            f"{', '.join(bound)}: datasheet only, so every time is a lower bound; a pass there leaves room for steps "
            "1.67 times as long."
        )
    published = sorted({base.basis.device for base in bases if base.basis.source == "published"})
    if published:
        out.append(f"{', '.join(published)}: published engine constants, not measured on your machine.")
    precisions = sorted({c.precision for c in candidates})
    if len(precisions) > 1 and spec.quality is None:
        out.append(
            f"{' and '.join(precisions)} are compared on speed and cost alone: --quality FILE says how good their answers are."
        )
    unpriced = sorted({c.device for c in candidates if c.cost is None})
    if unpriced:
        out.append(f"{', '.join(unpriced)}: no hourly price is known; they stand behind every priced device.")
    cut = [s for s in spec.seats if "chunked" in spec.policies and s > max(spec.budgets_tok)]
    if cut:
        out.append(f"chunked: {fmt(cut[0])} seats and more were not tried, because a step has fewer tokens than that.")
    p, n = spec.targets.p, spec.workload.n
    if is_slowest(p, n):
        enough = 10 * 100 // (100 - p)
        out.append(
            f"p{p} of {fmt(n)} requests is the slowest of them (-n {enough} puts ten beyond it); one request can turn a check "
            "that is near its target."
        )
    if any(c.verdict == "pass" for c in candidates) and spec.seats:
        out.append("Only the seats that were named were tried; an edge at the end of them is not reached.")
    return tuple(out)
