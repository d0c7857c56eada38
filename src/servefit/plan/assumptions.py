"""What a plan takes for granted: each assumption replaced by its alternative and moved until the decision breaks.

Nothing here is a rule of thumb: every bias and every breaking point is a simulation of the recommended candidate with
one thing changed. The list itself stands in `plan.assumed`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from servefit.physics.steptime import Source
from servefit.plan import checks
from servefit.plan.plan import Assumption, Bias, Breaking, Candidate, Check, StepBasis
from servefit.plan.scenario import STATIC, Scenario, figures_of, goals, run, value_of
from servefit.plan.spec import PlanSpec

SHARP = 1.03
"""A breaking point is known to 3%."""
ENOUGH = 2000
"""Requests of the first schedule that an assumption is tried on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the assumptions of one plan are tried on: the recommended candidate, or the nearest where nothing passes."""

    candidate: Candidate
    scenario: Scenario
    """With one schedule of at most ENOUGH requests."""
    basis: StepBasis
    spec: PlanSpec
    max_context_tok: int
    kv_bytes_per_tok: float
    streamed_bytes: int
    """Weights that one step reads."""
    weight_bytes: int
    """All weights, the input embedding with them."""
    next_usd_per_hour: float | None
    """The price of the cheapest passing candidate on another device."""
    as_of: str | None
    """Date of the price."""


def shortened(scenario: Scenario) -> Scenario:
    """The scenario on the first schedule alone, cut to ENOUGH requests."""
    return replace(scenario, schedules=(scenario.schedules[0][:ENOUGH],))


def look(scenario: Scenario) -> tuple[Check, ...]:
    """The scenario's checks by their values on its first schedule; memory and money included."""
    figures = None
    if scenario.config.kv_blocks is None or scenario.config.kv_blocks >= 1:
        figures = figures_of(run(scenario), scenario)
    wanted = goals(scenario.targets, quality_at_least=scenario.quality_at_least)
    return tuple(
        checks.make_check(name, target, value_of(name, figures, scenario), None, p=scenario.targets.p, unit=unit)
        for name, (target, unit) in wanted.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An assumption before it was tried: how to change it, and how far."""

    id: str
    text: str
    source: Source
    unit: str
    planned: float | None
    alternative: str
    change: Callable[[Scenario, float], Scenario]
    """(scenario, value) -> the scenario with that value in place of the planned one."""
    otherwise: float
    """The alternative's value."""
    limit: float | None
    """How far it is moved in search of the breaking point; None where that makes no sense."""
    scale: Literal["ratio", "difference"] = "ratio"
    """How the way from planned to limit is halved: by ratio, or by difference where the planned value may be 0."""
    factor: Callable[[float], float] | None = None
    """A value as a factor of what it acts on; None: value / planned."""
    known: Breaking | None = None
    """A breaking point that needs no simulation."""
    measured: tuple[float, float] | None = None
    reached: tuple[float, float] | None = None
    range_unit: str = ""
    details: dict[str, float] = field(default_factory=dict)


def tried(draft: Draft, scenario: Scenario, base: Sequence[Check] | None = None) -> Assumption:
    """The assumption with its biases and its breaking point, both by simulating."""
    before = base or look(scenario)
    after = look(draft.change(scenario, draft.otherwise))
    holds = all(c.verdict == "pass" for c in before)
    breaking = _breaking(draft, scenario) if holds and draft.limit is not None and draft.planned is not None else None
    return Assumption(
        id=draft.id,
        text=draft.text,
        source=draft.source,
        unit=draft.unit,
        planned=draft.planned,
        measured=draft.measured,
        reached=draft.reached,
        range_unit=draft.range_unit,
        alternative=draft.alternative,
        biases=tuple(
            _bias(a, b)
            for a, b in zip(before, after, strict=True)
            if a.name not in STATIC or a.name == "memory" or a.value != b.value
        ),
        breaking=draft.known or breaking,
        tried=(draft.planned, draft.limit) if holds and draft.limit is not None and draft.planned is not None else None,
        changes_decision=holds and any(c.verdict != "pass" for c in after),
        details=draft.details,
    )


def _bias(before: Check, after: Check) -> Bias:
    """Which way the plan errs where the alternative is what happens."""
    a, b = before.value, after.value
    if a is None or (b is not None and math.isclose(a, b, rel_tol=1e-3)):
        direction: Literal["optimistic", "pessimistic", "none"] = "none"
    elif b is None:
        direction = "optimistic"
    else:
        direction = "optimistic" if (b > a) == before.at_most else "pessimistic"
    ratio = b / a if a and b is not None else None
    return Bias(check=before.name, as_planned=a, otherwise=b, ratio=ratio, direction=direction)


def _breaking(draft: Draft, scenario: Scenario) -> Breaking | None:
    """The value nearest to the planned one at which a check is missed; None where even the limit passes."""
    assert draft.limit is not None and draft.planned is not None, "there is no way to go"

    def missed(value: float) -> Check | None:
        return checks.worst([c for c in look(draft.change(scenario, value)) if c.verdict != "pass"])

    good, bad = draft.planned, draft.limit
    found = missed(bad)
    if found is None:
        return None
    for _ in range(20):
        if draft.scale == "ratio":
            if max(good, bad) / min(good, bad) <= SHARP:
                break
            middle = math.sqrt(good * bad)
        else:
            if abs(bad - good) <= (SHARP - 1) * abs(bad):
                break
            middle = (good + bad) / 2
        here = missed(middle)
        if here is None:
            good = middle
        else:
            bad, found = middle, here
    factor = draft.factor(bad) if draft.factor else bad / draft.planned
    return Breaking(value=bad, factor=factor, check=found.name)


def in_order(assumptions: Sequence[Assumption]) -> tuple[Assumption, ...]:
    """Those that can change the decision first: by how little they may move, then by how much they bias a check."""

    def key(a: Assumption) -> tuple[int, float, float, str]:
        near = abs(math.log(a.breaking.factor)) if a.breaking and a.breaking.factor > 0 else math.inf
        biases = [abs(math.log(b.ratio)) for b in a.biases if b.ratio and b.ratio > 0]
        return (0 if a.changes_decision else 1, near, -max(biases, default=0.0), a.id)

    return tuple(sorted(assumptions, key=key))
