"""What if one thing were different, everything else as recommended: by simulating, one factor at a time."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from servefit.engine.config import Speculation
from servefit.physics.steptime import step_s
from servefit.plan import checks
from servefit.plan.bases import Base
from servefit.plan.plan import Check, Figures, Memory, StepBasis, WhatIf
from servefit.plan.scenario import Scenario, Schedule, hold

MOVED = 0.02
"""A figure that changes by less has not moved."""
ACCEPT_FRAC, DRAFT_TOK, DRAFT_COST = 0.7, 3, 0.1
"""Speculative decoding with a small draft model: acceptance of chat text (arXiv:2211.17192 reports 0.5 to 0.9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """The recommended candidate as it stands: what a what-if changes."""

    scenario: Scenario
    memory: Memory
    base: Base
    rebuild: Callable[..., tuple[Scenario, Memory, StepBasis] | None]
    """(precision=..., kv_bits=..., seats=...) -> the scenario with that and what it rests on; None where it does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One factor."""

    id: str
    factor: str
    scenario: Scenario
    memory: Memory
    basis: StepBasis
    """Its step time's: how far that may be off decides the verdict with the value, as a candidate's."""
    note: str


def what_ifs(stand: Stand) -> tuple[WhatIf, ...]:
    """Every factor that applies, each alone."""
    figures, _ = _held(stand.scenario, stand.base.basis)
    before = _seen(figures, stand.scenario, stand.memory)
    made = [change for make in MAKERS for change in make(stand)]
    return tuple(_what_if(change, before) for change in made)


Seen = tuple[float | None, float | None, float | None, float | None, int]


def _held(scenario: Scenario, basis: StepBasis) -> tuple[Figures | None, tuple[Check, ...]]:
    """As a candidate is held against its targets: all seeds, and the error of its step time."""
    return hold(scenario, error_frac=basis.error_frac, one_sided=basis.lower_bound)


def _seen(figures: Figures | None, scenario: Scenario, memory: Memory) -> Seen:
    """TTFT and TPOT at the targets' percentile, output tok/s, dollars per million output tokens, memory."""
    if figures is None:
        return None, None, None, None, memory.needed_bytes
    rate = figures.output_tok_per_s
    usd = None if scenario.usd_per_hour is None or not rate else scenario.usd_per_hour / 3600 / rate * 1e6
    p = scenario.targets.p
    return figures.ttft_s.at(p), figures.tpot_s.at(p), rate, usd, memory.needed_bytes


def _what_if(change: Change, before: Seen) -> WhatIf:
    figures, its_checks = _held(change.scenario, change.basis)
    after = _seen(figures, change.scenario, change.memory)
    names = ("ttft", "tpot", "throughput", "cost", "memory")
    moved = tuple(
        name for name, a, b in zip(names, before, after, strict=True) if a and b is not None and abs(b - a) > MOVED * a
    )
    return WhatIf(
        id=change.id,
        factor=change.factor,
        changes=moved,  # type: ignore[arg-type]  # names are the literal's members
        p=change.scenario.targets.p,
        ttft_s=(before[0], after[0]),
        tpot_s=(before[1], after[1]),
        output_tok_per_s=(before[2], after[2]),
        usd_per_mtok=(before[3], after[3]),
        memory_bytes=(before[4], after[4]),
        verdict=checks.overall(its_checks),
        note=change.note,
    )


def _rebuilt(s: Stand, name: str, factor: str, note: str, **asked: str | int) -> list[Change]:
    """The scenario with what is asked for, where it fits."""
    built = s.rebuild(**asked)
    if built is None:
        return []
    scenario, memory, basis = built
    return [Change(id=name, factor=factor, scenario=scenario, memory=memory, basis=basis, note=note)]


def _precision(s: Stand) -> list[Change]:
    """Fewer bits per weight."""
    if s.base.basis.source == "measured":
        return []  # a measured step time says nothing about other weights
    bits = s.base.row.precision.weight_bits if s.base.row.precision else 16.0
    out = []
    for name, its in (("fp8", 8.0), ("awq", 4.25)):
        if its < bits:
            note = "Check its quality first: --quality FILE of lm-evaluation-harness."
            out += _rebuilt(s, f"precision-{name}", f"weights in {name}", note, precision=name)
    return out


def _kv_bits(s: Stand) -> list[Change]:
    """A cache of half the bits."""
    bits = s.base.row.kv_bits
    if bits <= 4 or s.base.basis.source == "measured":
        return []
    note = "More seats fit, and long contexts are read faster; engines differ in what it costs in quality."
    return _rebuilt(s, f"kv-{bits // 2}bit", f"KV cache in {bits // 2} bit", note, kv_bits=bits // 2)


def _prefix_cache(s: Stand) -> list[Change]:
    """A prefix cache: on where prompts share something, else as if half of each prompt were shared."""
    if s.scenario.config.policy not in ("continuous", "chunked") or s.scenario.config.prefix_cache:
        return []
    shares = any(r.prefix for r in s.scenario.schedules[0])
    block = s.scenario.config.block_tok

    def half(requests: Schedule) -> Schedule:
        return tuple(
            replace(r, prefix=tuple(range(1, r.isl // 2 // block + 1)), prefix_block_tok=block) for r in requests
        )

    changed = replace(
        s.scenario,
        config=replace(s.scenario.config, prefix_cache=True),
        schedules=s.scenario.schedules if shares else tuple(half(q) for q in s.scenario.schedules),
    )
    factor = "prefix cache on" if shares else "prefix cache on, half of every prompt the same"
    note = "Changes the wait for the first token, not the pace after it."
    return [Change(id="prefix-cache", factor=factor, scenario=changed, memory=s.memory, basis=s.base.basis, note=note)]


def _speculation(s: Stand) -> list[Change]:
    """Speculative decoding."""
    if s.scenario.config.policy not in ("continuous", "chunked", "none") or s.scenario.config.speculation:
        return []
    draft_s = DRAFT_COST * step_s(s.scenario.step, seqs=1, kv_tok=0)
    config = replace(
        s.scenario.config, speculation=Speculation(draft_tok=DRAFT_TOK, accept_frac=ACCEPT_FRAC, draft_s=draft_s)
    )
    note = "Pays while steps are bound by memory; at full batches the checking costs more than it brings."
    factor = f"speculation, {DRAFT_TOK} drafts, each right {ACCEPT_FRAC:.0%} of the time"
    return [
        Change(
            id="speculation",
            factor=factor,
            scenario=replace(s.scenario, config=config),
            memory=s.memory,
            basis=s.base.basis,
            note=note,
        )
    ]


def _bandwidth(s: Stand) -> list[Change]:
    """Memory twice as fast."""
    if s.base.basis.source == "measured":
        return []
    old = s.scenario.step
    step = replace(
        old, weight_read_s=old.weight_read_s / 2, expert_read_s=old.expert_read_s / 2, per_kv_tok_s=old.per_kv_tok_s / 2
    )
    note = "What a device with twice the bandwidth and the same arithmetic would do."
    return [
        Change(
            id="bandwidth-x2",
            factor="twice the memory bandwidth",
            scenario=replace(s.scenario, step=step),
            memory=s.memory,
            basis=s.base.basis,
            note=note,
        )
    ]


def _prompts(s: Stand) -> list[Change]:
    """Prompts of half the length."""

    def halved(requests: Schedule) -> Schedule:
        return tuple(replace(r, isl=max(1, r.isl // 2), prefix=r.prefix[: len(r.prefix) // 2]) for r in requests)

    changed = replace(s.scenario, schedules=tuple(halved(q) for q in s.scenario.schedules))
    note = "Shorter prompts start sooner and leave more of each step to those who are typing."
    return [
        Change(
            id="prompt-half",
            factor="prompts of half the length",
            scenario=changed,
            memory=s.memory,
            basis=s.base.basis,
            note=note,
        )
    ]


def _seats(s: Stand) -> list[Change]:
    """Twice the seats."""
    config = s.scenario.config
    if config.policy == "none" or (config.policy == "chunked" and 2 * config.seats > config.budget_tok):
        return []
    note = "More seats carry more requests at once; they never make one user's tokens come faster."
    return _rebuilt(s, "seats-x2", f"{2 * config.seats} seats", note, seats=2 * config.seats)


MAKERS: tuple[Callable[[Stand], list[Change]], ...] = (
    _precision,
    _kv_bits,
    _prefix_cache,
    _speculation,
    _bandwidth,
    _prompts,
    _seats,
)
