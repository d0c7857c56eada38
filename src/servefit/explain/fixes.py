"""Fixes: which of TTFT, TPOT, throughput and cost each one changes, by how much for this wait, and what it leaves alone.

Computed from this case's own numbers. Where a number is not known, the fix is given per unit ("each 1,000 tokens ..."),
never guessed. Batching is no fix for one user's pace and is never offered as one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from servefit.explain import formulas
from servefit.explain.case import Case, Cause
from servefit.units import fmt, fmt_percent, fmt_s

Figure = Literal["TTFT", "TPOT", "throughput", "cost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure before and after, in its unit (seconds; throughput and cost as a factor, before = 1)."""

    figure: Figure
    before: float
    after: float
    bound: Literal["about", "at best"] = "about"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What could be done: what it changes, what it does not, and how that was computed."""

    code: str
    title: str
    half: Literal["start", "type", "capacity"]
    changes: tuple[Change, ...]
    saves_s: float | None
    """Seconds off this request's whole wait; None where it depends on a number that is not known."""
    saves_frac: float | None
    unchanged: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the reader told about a fix: how much of the prompt repeats, what caching was promised to give, and so on."""

    stable_tok: int | None = None
    """Tokens at the start of every prompt that never change."""
    cached_ttft_s: float | None = None
    """TTFT with caching, as measured or as promised by someone."""
    acceptance: float = 0.7
    """Speculative decoding: the chance that a drafted token is accepted (published values run from 0.6 to 0.8)."""
    draft_tok: int = 4
    draft_cost: float = 0.1
    """A draft token's time as a share of the large model's step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What a fix is computed from: the case, the codes of the causes found, what the reader told."""

    case: Case
    codes: frozenset[str]
    wish: Wish


def speculation_speedup(acceptance: float, draft_tok: int, draft_cost: float) -> float:
    """How many times faster one sequence is written: (1 - a^(k+1)) / ((1 - a)(k c + 1)).

    Source: Leviathan et al. 2023 (arXiv:2211.17192), theorem 3.8. Assumes that checking k + 1 tokens takes one step's
    time, which holds while memory is the wall (few sequences), and acceptances that do not depend on each other.

    >>> round(speculation_speedup(0.7, 4, 0.1), 2), speculation_speedup(0.0, 4, 0.0)
    (1.98, 1.0)
    """
    if acceptance >= 1:
        return (draft_tok + 1) / (draft_tok * draft_cost + 1)
    return float((1 - acceptance ** (draft_tok + 1)) / ((1 - acceptance) * (draft_tok * draft_cost + 1)))


def propose(case: Case, causes: tuple[Cause, ...] = (), wish: Wish | None = None) -> tuple[Fix, ...]:
    """The fixes for this case, the most seconds saved first; those that cannot be priced follow."""
    brief = Brief(case=case, codes=frozenset(c.code for c in causes), wish=wish or Wish())
    made = [make(brief) for make in FIXES.values()]
    fixes = [fix for fix in made if fix is not None]
    return tuple(sorted(fixes, key=lambda f: (f.saves_s is None, -(f.saves_s or 0.0))))


def _total_s(case: Case) -> float:
    return case.seen.ttft_s + formulas.writing_s(case.seen.osl, case.seen.itl_s)


def _fix(case: Case, saves: float | None, *, code: str, title: str, half: Literal["start", "type", "capacity"],
         changes: tuple[Change, ...], unchanged: str, how: str) -> Fix:  # fmt: skip
    total = _total_s(case)
    share = saves / total if saves is not None and total else None
    return Fix(
        code=code,
        title=title,
        half=half,
        changes=changes,
        saves_s=saves,
        saves_frac=share,
        unchanged=unchanged,
        how=how,
    )


def _rate(case: Case) -> float | None:
    """Prompt tokens read a second: given, from the reading part, or None."""
    seen = case.seen
    if seen.prefill_tok_per_s:
        return seen.prefill_tok_per_s
    if seen.prefill_s and seen.isl:
        return seen.isl / seen.prefill_s
    reading = case.features.reading if case.features else None
    return 1 / reading.s_per_tok if reading and reading.s_per_tok else None


def prompt_caching(on: Brief) -> Fix | None:
    """The stable part of the prompt is read once: TTFT falls by stable tokens / prefill rate; the fresh part remains."""
    seen, rate = on.case.seen, _rate(on.case)
    if not seen.isl or seen.isl < 32 or "cached_prefix" in on.codes:
        return None
    unchanged = "TPOT and the writing time stay as they are."
    if rate is None:
        how = f"at most the reading part of {fmt_s(seen.ttft_s)}; give --prefill-rate, or a run with two prompt lengths"
        return _fix(
            on.case,
            None,
            code="prompt_caching",
            title="Prompt caching",
            half="start",
            changes=(),
            unchanged=unchanged,
            how=how,
        )
    if on.wish.stable_tok is None:
        how = f"each 1,000 tokens that stand the same at the start of every prompt save {fmt_s(1000 / rate)}; say how many with --stable-tok"
        return _fix(
            on.case,
            None,
            code="prompt_caching",
            title="Prompt caching",
            half="start",
            changes=(),
            unchanged=unchanged,
            how=how,
        )
    stable = min(on.wish.stable_tok, seen.isl)
    fresh = seen.isl - stable
    model = max(seen.ttft_s - stable / rate, 0.0)
    after = on.wish.cached_ttft_s if on.wish.cached_ttft_s is not None else model
    how = f"{fmt(fresh)} fresh tokens / {fmt(rate)} tok/s = {formulas.exact_s(fresh / rate)}"
    if on.wish.cached_ttft_s is not None:
        rest = on.wish.cached_ttft_s - model
        how += f"; the {fmt_s(on.wish.cached_ttft_s)} given leaves {fmt_s(abs(rest))} {'unexplained' if rest > 0 else 'less than that'}"
    return _fix(
        on.case, seen.ttft_s - after, code="prompt_caching", title=f"Prompt caching of the {fmt(stable)} stable tokens", half="start",
        changes=(Change(figure="TTFT", before=seen.ttft_s, after=after),), unchanged=unchanged + " Fresh tokens cost as before.", how=how,
    )  # fmt: skip


def shorter_prompt(on: Brief) -> Fix | None:
    """Half the prompt: half the reading, and fewer KV bytes read at each step."""
    seen, rate, wall = on.case.seen, _rate(on.case), on.case.wall
    if not seen.isl or rate is None or seen.isl < 256:
        return None
    half = seen.isl // 2
    ttft = max(seen.ttft_s - half / rate, 0.0)
    itl = seen.itl_s
    if wall.kv_bytes_per_tok and wall.bandwidth_bytes_per_s:
        itl = max(itl - half * wall.kv_bytes_per_tok / wall.bandwidth_bytes_per_s, 0.0)
    saves = seen.ttft_s - ttft + formulas.writing_s(seen.osl, seen.itl_s - itl)
    return _fix(
        on.case, saves, code="shorter_prompt", title="A prompt of half the length", half="start",
        changes=(Change(figure="TTFT", before=seen.ttft_s, after=ttft), Change(figure="TPOT", before=seen.itl_s, after=itl),
                 Change(figure="cost", before=1.0, after=0.5, bound="at best")),
        unchanged="The time of each token that is written, but for its KV reads; the output's cost.",
        how=f"{fmt(half)} tokens fewer / {fmt(rate)} tok/s = {formulas.exact_s(half / rate)}; cost is that of the input",
    )  # fmt: skip


def quantise(on: Brief) -> Fix | None:
    """Half the bytes per weight: between the bytes' own time at full bandwidth and the whole gap in proportion."""
    seen, wall = on.case.seen, on.case.wall
    if wall.weight_bytes is None or wall.bandwidth_bytes_per_s is None:
        lacking = [
            flag
            for flag, known in (("--model", wall.weight_bytes), ("--device", wall.bandwidth_bytes_per_s))
            if known is None
        ]
        how = f"up to {fmt_s(seen.itl_s / 10)} off each gap for each 10% fewer bytes read; give {' and '.join(lacking)} for a figure"
        return _fix(on.case, None, code="quantise", title="A more quantised model", half="type", changes=(),
                    unchanged="TTFT hardly changes: reading is arithmetic.", how=how)  # fmt: skip
    context = (seen.isl or 0) + seen.osl // 2
    everything = wall.weight_bytes + (wall.kv_bytes_per_tok or 0.0) * context
    best = seen.itl_s * (everything - wall.weight_bytes / 2) / everything
    sure = max(seen.itl_s - wall.weight_bytes / 2 / wall.bandwidth_bytes_per_s, best)
    bound: Literal["about", "at best"] = "at best" if "below_ceiling" in on.codes else "about"
    saves = formulas.writing_s(seen.osl, seen.itl_s - sure)
    return _fix(
        on.case, saves, code="quantise", title="Half the bytes per weight (8 bit to 4, or 16 to 8)", half="type",
        changes=(Change(figure="TPOT", before=seen.itl_s, after=sure, bound=bound),
                 Change(figure="throughput", before=1.0, after=seen.itl_s / sure, bound="at best")),
        unchanged="TTFT hardly changes: reading is arithmetic. Answers may get worse: check them.",
        how=f"{fmt(wall.weight_bytes / 2e9, 2)} GB fewer per token = {fmt_s(wall.weight_bytes / 2 / wall.bandwidth_bytes_per_s)} at full bandwidth; "
        f"{fmt_s(best)} if the whole gap shrinks with the bytes",
    )  # fmt: skip


def quantise_kv(on: Brief) -> Fix | None:
    """Half the bytes per KV value: worth it where KV is a real share of what a step reads."""
    seen, wall = on.case.seen, on.case.wall
    if not wall.kv_bytes_per_tok or not wall.bandwidth_bytes_per_s or not wall.weight_bytes or not seen.isl:
        return None
    kv = wall.kv_bytes_per_tok * (seen.isl + seen.osl // 2)
    if kv < 0.05 * wall.weight_bytes:
        return None
    itl = seen.itl_s - kv / 2 / wall.bandwidth_bytes_per_s
    saves = formulas.writing_s(seen.osl, seen.itl_s - itl)
    return _fix(
        on.case, saves, code="quantise_kv", title="8-bit KV cache", half="type",
        changes=(Change(figure="TPOT", before=seen.itl_s, after=itl),), unchanged="TTFT. It doubles the seats that fit in memory.",
        how=f"{fmt(kv / 1e9, 2)} GB of KV read per token, {fmt_percent(kv / (kv + wall.weight_bytes))} of all bytes; half of it goes",
    )  # fmt: skip


def speculate(on: Brief) -> Fix | None:
    """A small model drafts, the large one checks: only the pace of few sequences gains."""
    seen = on.case.seen
    if "speculative" in on.codes or seen.osl < 8 or (on.case.features and on.case.features.running_mean > 8):
        return None
    gain = speculation_speedup(on.wish.acceptance, on.wish.draft_tok, on.wish.draft_cost)
    saves = formulas.writing_s(seen.osl, seen.itl_s - seen.itl_s / gain)
    return _fix(
        on.case, saves, code="speculate", title="Speculative decoding", half="type",
        changes=(Change(figure="TPOT", before=seen.itl_s, after=seen.itl_s / gain, bound="at best"),),
        unchanged="TTFT. At many sequences at once throughput falls instead.",
        how=f"{fmt(gain, 2)} times faster if {fmt_percent(on.wish.acceptance)} of {on.wish.draft_tok} drafted tokens are accepted and a draft "
        f"costs {fmt_percent(on.wish.draft_cost)} of a step (assumed: measure yours with servefit experiment speculation)",
    )  # fmt: skip


def faster_memory(on: Brief) -> Fix | None:
    """Twice the bandwidth: the bytes' share of the gap halves, the rest stays."""
    seen = on.case.seen
    floor = on.case.wall.floor_itl_s((seen.isl or 0) + seen.osl // 2)
    if floor is None:
        return None
    itl = seen.itl_s - min(floor, seen.itl_s) / 2
    saves = formulas.writing_s(seen.osl, seen.itl_s - itl)
    return _fix(
        on.case, saves, code="faster_memory", title="A device with twice the memory bandwidth", half="type",
        changes=(Change(figure="TPOT", before=seen.itl_s, after=itl), Change(figure="throughput", before=1.0, after=seen.itl_s / itl, bound="at best")),
        unchanged="TTFT follows the device's arithmetic, not its bandwidth.",
        how=f"of the gap of {fmt_s(seen.itl_s)}, {fmt_s(min(floor, seen.itl_s))} is reading bytes: that part halves",
    )  # fmt: skip


def more_seats(on: Brief) -> Fix | None:
    """Removes the wait for a seat; slows each user a little. Never offered for one user's pace."""
    if "seats_full" not in on.codes or not on.case.seen.queue_s:
        return None
    return _fix(
        on.case, on.case.seen.queue_s, code="more_seats", title="More seats (a larger batch limit)", half="start",
        changes=(Change(figure="TTFT", before=on.case.seen.ttft_s, after=on.case.seen.ttft_s - on.case.seen.queue_s, bound="at best"),),
        unchanged="Each user's pace gets no better, and a little worse: every step serves more sequences.",
        how="the wait for a seat goes where memory holds more KV; servefit simulate shows what the pace loses",
    )  # fmt: skip


def fewer_seats(on: Brief) -> Fix | None:
    """Gives each user a faster pace and makes others wait."""
    if on.case.features is None or on.case.features.running_mean < 2:
        return None
    return _fix(
        on.case, None, code="fewer_seats", title="Fewer seats (a smaller batch limit)", half="type", changes=(),
        unchanged="Whoever finds no seat waits longer to start, and throughput falls.",
        how=f"on average {fmt(on.case.features.running_mean, 1)} answers share each step; servefit simulate gives the pace at fewer",
    )  # fmt: skip


def chunked_prefill(on: Brief) -> Fix | None:
    """Prompts are read in slices, so no running answer waits for a whole one."""
    rate = _rate(on.case)
    if "prefill_stall" not in on.codes or not on.case.seen.isl:
        return None
    budget = 256
    how = "the longest pause becomes the time of one slice"
    if rate:
        how = f"a pause of {fmt_s(on.case.seen.isl / rate)} (a whole prompt of {fmt(on.case.seen.isl)}) becomes {fmt_s(budget / rate)} (a slice of {budget})"
    return _fix(
        on.case, None, code="chunked_prefill", title=f"Chunked prefill (a token budget of about {budget} a step)", half="type", changes=(),
        unchanged="The typical gap; TTFT of the arriving prompt gets a little longer.", how=how,
    )  # fmt: skip


def more_replicas(on: Brief) -> Fix | None:
    """A second server: half the load on each."""
    if not on.codes & {"queueing", "seats_full", "prompts_ahead", "tail"} or not on.case.seen.queue_s:
        return None
    return _fix(
        on.case, on.case.seen.queue_s, code="more_replicas", title="A second replica", half="capacity",
        changes=(Change(figure="TTFT", before=on.case.seen.ttft_s, after=on.case.seen.ttft_s - on.case.seen.queue_s, bound="at best"),
                 Change(figure="throughput", before=1.0, after=2.0, bound="at best"), Change(figure="cost", before=1.0, after=2.0)),
        unchanged="Reading and each user's pace on an empty server.", how="the queue goes at best; servefit plan computes what is left of it",
    )  # fmt: skip


FIXES: dict[str, Callable[[Brief], Fix | None]] = {
    "prompt_caching": prompt_caching,
    "shorter_prompt": shorter_prompt,
    "quantise": quantise,
    "quantise_kv": quantise_kv,
    "speculate": speculate,
    "faster_memory": faster_memory,
    "more_seats": more_seats,
    "fewer_seats": fewer_seats,
    "chunked_prefill": chunked_prefill,
    "more_replicas": more_replicas,
}
"""Every fix that may be offered. Batching for one user's pace is left out on purpose: it makes that pace worse."""
