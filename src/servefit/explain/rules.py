"""The diagnosis: the wait divided, the causes that rules found, the fixes that follow; for a run or typed numbers."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from servefit.explain import formulas
from servefit.explain import rules_numbers as numbers
from servefit.explain import rules_start as start
from servefit.explain import rules_type as pace
from servefit.explain.case import Case, Cause, Wall
from servefit.explain.decompose import TYPED, Observed, Wait, divide, divide_run, observe
from servefit.explain.features import Features, look
from servefit.explain.fixes import Fix, Wish, propose
from servefit.explain.formulas import Work
from servefit.explain.told import counted, round_trip_s
from servefit.records import Run
from servefit.stats import percentile, rank

RULES: dict[str, Callable[[Case], Cause | None]] = {
    "prompt_cut": numbers.prompt_cut,
    "long_prompt": numbers.long_prompt,
    "queueing": start.queueing,
    "tail": numbers.tail,
    "prompt_cut_counts": start.prompt_cut_counts,
    "context_refused": start.context_refused,
    "memory_full": start.memory_full,
    "cached_prefix": start.cached_prefix,
    "rate_limited": start.rate_limited,
    "prefill_stall": pace.prefill_stall,
    "preemption": pace.preemption,
    "buffering": pace.buffering,
    "several_tokens": pace.several_tokens,
    "host_trouble": pace.host_trouble,
    "slowing_down": pace.slowing_down,
    "above_ceiling": numbers.above_ceiling,
    "below_ceiling": numbers.below_ceiling,
    "too_large": numbers.too_large,
    "cold_start": start.cold_start,  # last: outside the figures it weighs nothing, and stands behind its equals
}
"""Every rule. One that finds nothing returns None; a cause always says what it saw and what would confirm it."""


_UNANSWERED = {"context_refused", "memory_full", "rate_limited"}
"""Requests that got no answer: no seconds of anybody's wait, and more than slowness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What explain has to say: waits, causes by the seconds they account for, fixes by the seconds they save, the working."""

    case: Case
    waits: tuple[Wait, ...]
    causes: tuple[Cause, ...]
    fixes: tuple[Fix, ...]
    work: tuple[Work, ...]
    ceiling_frac: float | None
    """Share of the bandwidth ceiling that the typical pace reaches; None where the ceiling is not known."""

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        return self.waits[0].sentence


def diagnose_typed(
    seen: Observed,
    *,
    short: Observed | None = None,
    ttft_p95_s: float | None = None,
    itl_p95_s: float | None = None,
    wall: Wall | None = None,
    wish: Wish | None = None,
) -> Diagnosis:
    """The diagnosis of numbers that someone typed."""
    case = Case(seen=seen, short=short, ttft_p95_s=ttft_p95_s, itl_p95_s=itl_p95_s, wall=wall or Wall())
    return _diagnose(case, (divide(seen, label=TYPED),), wish)


def diagnose_run(
    run: Run, *, other: Run | None = None, wall: Wall | None = None, wish: Wish | None = None
) -> Diagnosis:
    """The diagnosis of a run, with another one to compare with (a short prompt, one user, an empty server)."""
    waits = divide_run(run)
    features = look(run)
    case = Case(
        seen=typical(features), short=typical(look(other)) if other else None, features=features, n=len(features.rows),
        ttft_p95_s=percentile((r.ttft_s for r in features.rows if r.ttft_s is not None), 95),
        itl_p95_s=percentile((g for r in features.rows for g in r.itl_s), 95), wall=wall or Wall(),
    )  # fmt: skip
    return _diagnose(case, waits, wish)


def typical(features: Features) -> Observed:
    """The request with the median TTFT among those with two tokens or more, as observed."""
    rows = sorted((r for r in features.rows if r.tpot_s is not None), key=lambda r: r.ttft_s or 0.0)
    row = rows[rank(50, len(rows)) - 1]
    return observe(row, features.reading, counts=counted(features.run), network_s=round_trip_s(features.run))


def _diagnose(case: Case, waits: tuple[Wait, ...], wish: Wish | None) -> Diagnosis:
    causes = find_causes(case)
    floor = case.wall.floor_itl_s(numbers.context_read(case))
    return Diagnosis(
        case=case, waits=waits, causes=causes, fixes=propose(case, causes, wish), work=(*waits[0].work, *_wall_work(case)),
        ceiling_frac=floor / case.seen.itl_s if floor and case.seen.itl_s > 0 else None,
    )  # fmt: skip


def find_causes(case: Case) -> tuple[Cause, ...]:
    """Every cause that a rule found, each code once: refused requests, then those that account for most seconds first."""
    found: dict[str, Cause] = {}
    for rule in RULES.values():
        cause = rule(case)
        if cause is None:
            continue
        before = found.get(cause.code)
        if before is None:
            found[cause.code] = cause
        else:  # two kinds of evidence for one thing: keep both
            value = cause.value if cause.certainty == "shown" else before.value
            found[cause.code] = replace(cause, saw=f"{before.saw} {cause.saw}", certainty="shown", value=value)
    return tuple(sorted(found.values(), key=lambda c: (c.code not in _UNANSWERED, -c.weight_s)))


def _wall_work(case: Case) -> tuple[Work, ...]:
    """The lines of working that need the machine's walls or a comparison."""
    wall, seen, short = case.wall, case.seen, case.short
    lines: list[Work] = []
    kv = wall.kv_bytes_per_tok or 0.0
    if wall.weight_bytes and wall.bandwidth_bytes_per_s:
        lines.append(
            formulas.show_ceiling(wall.weight_bytes, kv, numbers.context_read(case), wall.bandwidth_bytes_per_s)
        )
    if wall.active_params and seen.isl and seen.ttft_s > 0:
        lines.append(formulas.show_flop(seen.isl, seen.ttft_s, wall.active_params))
    if short and short.isl is not None and seen.isl and wall.weight_bytes and kv and seen.isl > short.isl:
        lines.append(formulas.show_growth(wall.weight_bytes, kv, short.isl, seen.isl))
        lines.append(formulas.show_context(short.itl_s, seen.itl_s, wall.weight_bytes, kv, short.isl))
    if case.ttft_p95_s is not None and seen.ttft_s > 0:
        lines.append(formulas.show_tail(seen.ttft_s, case.ttft_p95_s))
    return tuple(lines)
