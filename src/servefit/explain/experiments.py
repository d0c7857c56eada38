"""Experiments: one question each, answered from runs by a function that ends in a sentence and the numbers of a figure.

What to run is decided here (workloads), running it is the caller's; so every conclusion can be tested without a server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from servefit.errors import ServefitError
from servefit.explain.fixes import speculation_speedup
from servefit.records import RequestRecord, Run
from servefit.stats import percentile
from servefit.units import fmt, fmt_percent, fmt_s
from servefit.workload.workload import Lengths, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of an experiment: what it is called and what is asked."""

    label: str
    workload: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What an experiment found: the answer in a sentence, the table behind it, and the points of a figure."""

    question: str
    sentence: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figure: dict[str, Any]
    """title, x, y (axis names with units) and series {name: [[x, y], ...]}."""
    notes: tuple[str, ...] = ()
    values: dict[str, float | int | None] = field(default_factory=dict)
    """The numbers in the sentence, for programs."""


def _good(run: Run) -> tuple[RequestRecord, ...]:
    return tuple(r for r in run.load_rows if r.ok and r.ttft_s is not None)


def _middle(values: Sequence[float | None]) -> float | None:
    return percentile([v for v in values if v is not None], 50)


# --- prefix ---------------------------------------------------------------------------------------------------------


def prefix_trials(*, stable_tok: int, fresh_tok: int, n: int, osl: int, seed: int = 0) -> tuple[Trial, ...]:
    """Stable part first (a cache can use it), and changing part first (no two prompts begin alike): same lengths."""
    asked = Lengths(mean=stable_tok + fresh_tok)
    changing = Workload(n=n, isl=asked, osl=Lengths(mean=osl), concurrency=1, seed=seed + 1)
    # the shared part comes on top of `isl`
    stable = replace(changing, isl=Lengths(mean=fresh_tok), shared_prefix_tok=stable_tok, seed=seed)
    return (Trial(label="changing part first", workload=changing), Trial(label="stable part first", workload=stable))


def conclude_prefix(changing: Run, stable: Run, *, stable_tok: int) -> Conclusion:
    """Does the server reuse a stable beginning, and what is that worth? The first of each run is the cold one."""
    rows, warm = [], {}
    cached_frac: dict[str, float | None] = {}
    cold: dict[str, float | None] = {}
    for label, run in (("changing part first", changing), ("stable part first", stable)):
        good = sorted(_good(run), key=lambda r: r.due_s)
        if len(good) < 3:
            raise ServefitError(
                f"Only {len(good)} requests of '{label}' completed; the experiment needs 3.",
                hint="Look at the failures, or raise -n.",
            )
        first = next((r for r in run.rows if r.phase == "cold" and r.ok and r.ttft_s is not None), None)
        later = good if first else good[1:]
        cold[label], warm[label] = (first or good[0]).ttft_s, _middle([r.ttft_s for r in later])
        total = sum(r.isl or 0 for r in later)
        counted = [r.cached_tok for r in later if r.cached_tok is not None]
        cached_frac[label] = sum(counted) / total if counted and total else None
        rows.append((label, fmt_s(cold[label]), fmt_s(warm[label]), fmt_percent(cached_frac[label]), str(len(good))))
    before, after = warm["changing part first"] or 0.0, warm["stable part first"] or 0.0
    share = cached_frac["stable part first"]
    times = before / after if after else 1.0
    counted_word = f"; {fmt_percent(share)} of the prompt tokens came from its cache" if share else ""
    if times >= 1.3:
        sentence = (
            f"Put the stable part first: with {fmt(stable_tok)} stable tokens at the start the first token comes after {fmt_s(after)} "
            f"instead of {fmt_s(before)}, {fmt(times, 1)} times sooner{counted_word}."
        )
    else:
        sentence = (
            f"The order of the prompt's parts makes no difference here: {fmt_s(after)} against {fmt_s(before)}. This server "
            f"does not reuse {fmt(stable_tok)} stable tokens{counted_word}, or reading them costs next to nothing."
        )
    points = {label: [[float(i), r.ttft_s] for i, r in enumerate(sorted(_good(run), key=lambda r: r.due_s))]
              for label, run in (("changing part first", changing), ("stable part first", stable))}  # fmt: skip
    return Conclusion(
        question="Does it pay to put the part of the prompt that never changes first?", sentence=sentence,
        columns=("prompt", "TTFT cold", "TTFT warm (p50)", "cached tokens", "n"), rows=tuple(rows),
        figure={"title": "TTFT by request", "x": "request", "y": "TTFT (s)", "series": points},
        values={"warm_changing_s": before, "warm_stable_s": after, "times": times, "cached_frac": share},
    )  # fmt: skip


# --- context --------------------------------------------------------------------------------------------------------


def context_trials(*, lengths: Sequence[int], n: int, osl: int, seed: int = 0) -> tuple[Trial, ...]:
    """A ladder of prompt lengths, one user, the shortest first."""
    return tuple(
        Trial(
            label=f"{isl:,}",
            workload=Workload(n=n, isl=Lengths(mean=isl), osl=Lengths(mean=osl), concurrency=1, seed=seed + i),
        )
        for i, isl in enumerate(sorted(lengths))
    )


def conclude_context(
    runs: Sequence[tuple[int, Run | None, str]], *, kv_bytes_per_tok: float | None = None
) -> Conclusion:
    """Where TTFT, the gap and KV memory go as prompts grow, and where the server starts to cut or to refuse.

    `runs` are (tokens asked, run or None where the server refused, what it said).
    """
    rows: list[tuple[str, ...]] = []
    steps: list[tuple[int, float, float]] = []
    cut_at: int | None = None
    refusal = ""
    read_most = 0
    for asked, run, said in runs:
        good = [r for r in _good(run) if r.tpot_s is not None] if run else []
        cut = [r for r in run.load_rows if r.status == "prompt_cut"] if run else []
        counted = int(_middle([float(r.isl) if r.isl is not None else None for r in (good or cut)]) or 0)
        if cut or not good:
            cut_at = cut_at or asked
            if not cut:
                refusal = refusal or said or next((r.error for r in run.load_rows if r.error) if run else iter(()), "")
            what = f"cut to {fmt(counted)}" if cut and counted else "refused"
            rows.append((fmt(asked), fmt(counted) if counted else "-", "-", "-", "-", "-", what))
            read_most = max(read_most, counted)
            continue
        ttft, gap = _middle([r.ttft_s for r in good]) or 0.0, _middle([r.tpot_s for r in good]) or 0.0
        tokens = counted or asked
        steps.append((tokens, ttft, gap))
        read_most = max(read_most, tokens)
        memory = f"{fmt(kv_bytes_per_tok * tokens / 1e6, 1)} MB" if kv_bytes_per_tok else "-"
        rows.append((fmt(asked), fmt(tokens), fmt_s(ttft), f"{fmt(tokens / ttft)} tok/s", fmt_s(gap), memory, ""))
    if len(steps) < 2:
        raise ServefitError(
            "Fewer than two prompt lengths were answered.", hint="Start with shorter prompts: --lengths 128,256,512."
        )
    (t0, ttft0, _), (t1, ttft1, _) = steps[0], steps[-1]
    per_1000, gaps = _growth(steps)
    limit = ""
    if cut_at and refusal:
        limit = f" {fmt(read_most)} tokens are read whole, {fmt(cut_at)} are refused: the context ends between them."
    elif cut_at:
        limit = f" From {fmt(cut_at)} tokens on the server cuts the prompt: it reads {fmt(read_most)} at most."
    return Conclusion(
        question="What does a longer prompt cost, and where is the end of the context?",
        sentence=f"From {fmt(t0)} to {fmt(t1)} prompt tokens the first token goes from {fmt_s(ttft0)} to {fmt_s(ttft1)}{gaps}{limit}",
        columns=("asked", "counted", "TTFT", "prefill", "gap", "KV", ""), rows=tuple(rows),
        figure={"title": "TTFT and gap by prompt length", "x": "prompt tokens", "y": "time (s)",
                "series": {"TTFT": [[t, a] for t, a, _ in steps], "gap": [[t, g] for t, _, g in steps]}},
        notes=(f"the server said: {refusal[:200]}",) if refusal else (),
        values={"per_1000_tok_s": per_1000, "cut_at_tok": cut_at, "read_most_tok": read_most},
    )  # fmt: skip


def _growth(steps: Sequence[tuple[int, float, float]]) -> tuple[float | None, str]:
    """What 1,000 tokens of context add to a gap, and the words for it; None where the gaps follow no order.

    The median of all pairs' slopes (Theil-Sen). A step back by half of the whole growth is disorder: nothing is concluded.
    """
    slopes = [(c - a) / (t - s) for i, (s, _, a) in enumerate(steps) for t, _, c in steps[i + 1 :] if t > s]
    slope = _middle(slopes) or 0.0
    gaps = [gap for _, _, gap in steps]
    back = max((a - b for a, b in pairwise(gaps)), default=0.0)
    if slope <= 0 or back > 0.5 * (gaps[-1] - gaps[0]):
        spread = f"{fmt_s(min(gaps))} to {fmt_s(max(gaps))}"
        return None, (
            f". The gap shows no growth with the context ({spread}, in no order): it is too small for the noise here. Ask "
            "more (-n), longer prompts, or when the machine is idle."
        )
    return slope * 1000, (
        f" and the gap from {fmt_s(gaps[0])} to {fmt_s(gaps[-1])}: each 1,000 tokens of context add {fmt_s(slope * 1000)} to "
        "every token written."
    )


# --- mixture of experts ---------------------------------------------------------------------------------------------


def moe_trials(*, isl: int, osl: int, n: int, users: int, seed: int = 0) -> tuple[Trial, ...]:
    """One user (each token reads its own experts), then several (their experts differ, so a step reads more of them)."""
    one = Workload(n=n, isl=Lengths(mean=isl), osl=Lengths(mean=osl), concurrency=1, seed=seed)
    many = Workload(n=n * users, isl=Lengths(mean=isl), osl=Lengths(mean=osl), concurrency=users, seed=seed + 1)
    return (Trial(label="1 user", workload=one), Trial(label=f"{users} users", workload=many))


def conclude_moe(one: Run, many: Run, *, users: int, bandwidth_bytes_per_s: float, total_bytes: float) -> Conclusion:
    """How much of the model one token reads: bandwidth x gap is the most it can be; 60 to 85% of that is usual."""
    gap = _middle([r.tpot_s for r in _good(one)])
    shared = _middle([r.tpot_s for r in _good(many)])
    if gap is None or shared is None:
        raise ServefitError("No request completed with two tokens or more.", hint="Look at the failures first.")
    most = bandwidth_bytes_per_s * gap
    low, high = 0.60 * most, 0.85 * most
    growth = shared / gap
    share = (min(low / total_bytes, 1.0), min(high / total_bytes, 1.0))
    if most < 0.5 * total_bytes:
        what = f"so only a part of it is active: {fmt_percent(share[0])} to {fmt_percent(share[1])} if 60 to 85% of the bandwidth is reached"
    elif low > total_bytes:
        what = (
            "which is more than the whole model: bandwidth is not the wall here, so this says nothing about its experts"
        )
    else:
        what = "so it reads all of itself, as a dense model does, or bandwidth is not the wall"
    sentence = (
        f"A token every {fmt_s(gap)} leaves time to read {fmt(most / 1e9, 2)} GB at most; the model has {fmt(total_bytes / 1e9, 2)} GB, "
        f"{what}. With {users} users the gap grows {fmt(growth, 2)} times: "
        + ("their tokens touch other experts, or share compute." if growth > 1.5 else "they share what is read.")
    )
    rows = (
        ("1 user", fmt_s(gap), f"{fmt(most / 1e9, 2)} GB"),
        (f"{users} users", fmt_s(shared), f"{fmt(bandwidth_bytes_per_s * shared / 1e9, 2)} GB"),
    )
    return Conclusion(
        question="How much of the model does one token read?", sentence=sentence, columns=("load", "gap (p50)", "bytes at most a step"),
        rows=rows, figure={"title": "Gap by users", "x": "users", "y": "gap (s)", "series": {"gap": [[1, gap], [users, shared]]}},
        values={"most_bytes": most, "active_frac_low": share[0], "active_frac_high": share[1], "growth": growth},
    )  # fmt: skip


# --- ceiling --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One model file's decode rate: bytes read per token and tokens a second."""

    label: str
    bytes_per_tok: float
    tok_per_s: float


def read_llama_bench(value: Any) -> tuple[Pace, ...]:
    """The decode rows of llama-bench's JSON (`llama-bench -o json`): model_size and avg_ts where n_gen > 0.

    Raises ServefitError where it is none.
    """
    rows = value if isinstance(value, list) else []
    out = []
    for row in rows:
        if (
            not isinstance(row, dict)
            or not isinstance(row.get("n_gen"), int)
            or row["n_gen"] <= 0
            or row.get("n_prompt")
        ):
            continue
        size, rate = row.get("model_size"), row.get("avg_ts")
        if isinstance(size, int | float) and isinstance(rate, int | float) and size > 0 and rate > 0:
            label = str(row.get("model_type") or row.get("model_filename") or "?")
            out.append(Pace(label=label, bytes_per_tok=float(size), tok_per_s=float(rate)))
    if not out:
        raise ServefitError(
            "There is no decode row (n_gen above 0) in this file.",
            hint="Run llama-bench -o json with -n 128, at several precisions.",
        )
    return tuple(out)


def conclude_ceiling(paces: Sequence[Pace], *, bandwidth_bytes_per_s: float | None = None) -> Conclusion:
    """Share of the ceiling at each precision, and where overhead or compute takes over: time = fixed + bytes / bandwidth.

    Least squares through two or more sizes; the size at which the fixed part is half of a token's time is fixed x bandwidth.
    """
    rows, points = [], sorted((p.bytes_per_tok, 1 / p.tok_per_s) for p in paces)
    for p in sorted(paces, key=lambda p: p.bytes_per_tok):
        share = p.bytes_per_tok * p.tok_per_s / bandwidth_bytes_per_s if bandwidth_bytes_per_s else None
        rows.append((p.label, f"{fmt(p.bytes_per_tok / 1e9, 3)} GB", f"{fmt(p.tok_per_s, 1)} tok/s",
                     f"{fmt(p.bytes_per_tok * p.tok_per_s / 1e9, 1)} GB/s", fmt_percent(share)))  # fmt: skip
    notes = _beyond(paces, bandwidth_bytes_per_s)
    values: dict[str, float | int | None] = {}
    if len({b for b, _ in points}) < 2:
        sentence = f"One size only: it reads {fmt(points[0][0] / points[0][1] / 1e9, 1)} GB/s; a second precision would tell overhead from bandwidth."
    else:
        n = len(points)
        mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
        slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
        fixed = mean_y - slope * mean_x
        off = max(abs(fixed + slope * x - y) / y for x, y in points)
        values = {"fixed_s": fixed, "bandwidth_bytes_per_s": 1 / slope if slope > 0 else None, "off_frac": off}
        if off > 0.1:
            rough = (
                f"The line through these sizes misses one of them by {fmt_percent(off)}: they differ in more than bytes"
            )
            notes = (*notes, f"{rough} (unpacking, kernels), so its figures are rough.")
        if slope <= 0:
            sentence = "More bytes do not make a token slower here: bandwidth is not the wall at any of these sizes; arithmetic or unpacking is."
        elif fixed <= 0:
            sentence = f"The time of a token grows with its bytes alone, at {fmt(1 / slope / 1e9, 1)} GB/s: bandwidth is the wall at every size."
        else:
            turn = fixed / slope
            values["turn_bytes"] = turn
            sentence = (
                f"A token takes {fmt_s(fixed)} whatever it reads, plus its bytes at {fmt(1 / slope / 1e9, 1)} GB/s: below "
                f"{fmt(turn / 1e9, 2)} GB overhead and arithmetic are the larger half, above it bandwidth is."
            )
    return Conclusion(
        question="How near to the bandwidth ceiling, and what is the wall where it is far?", sentence=sentence,
        columns=("model", "bytes a token", "pace", "reads", "of the ceiling"), rows=tuple(rows),
        figure={"title": "Time of a token by bytes", "x": "GB a token", "y": "time of a token (s)", "series": {"measured": [[b / 1e9, t] for b, t in points]}},
        values=values, notes=notes,
    )  # fmt: skip


def _beyond(paces: Sequence[Pace], bandwidth_bytes_per_s: float | None) -> tuple[str, ...]:
    """What to say of those that read faster than the bandwidth allows; nothing where there is none."""
    over = [p.label for p in paces if bandwidth_bytes_per_s and p.bytes_per_tok * p.tok_per_s > bandwidth_bytes_per_s]
    if not over:
        return ()
    return (
        f"{', '.join(over)}: above the ceiling. The bandwidth given is too low, or part of the model stays in a cache.",
    )


# --- speculation ----------------------------------------------------------------------------------------------------


def acceptance_of(tok_per_step: float, draft_tok: int) -> float:
    """The acceptance rate that yields so many tokens a step on average: 1 + a + ... + a^k = tok_per_step, by bisection.

    >>> round(acceptance_of(1.75, 2), 3)
    0.5
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(draft_tok + 1)) < tok_per_step else (low, middle)
    return low


def conclude_speculation(off: Run, on: Run, *, draft_tok: int, draft_cost: float) -> Conclusion:
    """Speed-up measured (gap without over gap with), tokens a step, the acceptance that implies, and what theory predicts."""
    before, after = _middle([r.tpot_s for r in _good(off)]), _middle([r.tpot_s for r in _good(on)])
    if before is None or after is None or after <= 0:
        raise ServefitError("A run has no request with two tokens or more.", hint="Measure both with --osl 64 or more.")
    told = drafted(_good(on))
    if told is not None:  # the server counts: tokens a step and drafted a step follow, with no guess from the chunks
        share, per_step, draft_tok = told
        accepted = acceptance_of(min(per_step, draft_tok + 1.0), draft_tok)
        how = f"the server counts {fmt_percent(share)} of its drafted tokens as accepted, {fmt(per_step, 2)} tokens a step"
    else:
        chunks = sum(max(len(r.chunk_s) - 1, 0) for r in _good(on))
        tokens = sum((r.osl or 0) - (r.chunk_tok[0] if r.chunk_tok else 1) for r in _good(on))
        per_step = tokens / chunks if chunks else 1.0
        accepted = share = acceptance_of(min(per_step, draft_tok + 1.0), draft_tok)
        how = f"{fmt(per_step, 2)} tokens a step mean that {fmt_percent(accepted)} of {draft_tok} drafted tokens are accepted"
    measured, predicted = before / after, speculation_speedup(accepted, draft_tok, draft_cost)
    verdict = "It pays" if measured > 1.05 else "It costs" if measured < 0.95 else "It makes no difference"
    sentence = (
        f"{verdict} at this load: the gap goes from {fmt_s(before)} to {fmt_s(after)}, {fmt(measured, 2)} times as fast; {how}. "
        f"Theory says {fmt(predicted, 2)} times for that (a draft at {fmt_percent(draft_cost)} of a step)."
    )
    rows = (
        ("off", fmt_s(before), "1.00", "-"),
        ("on", fmt_s(after), fmt(measured, 2), fmt(per_step, 2)),
        ("theory", "-", fmt(predicted, 2), fmt(per_step, 2)),
    )
    curve = [[a / 20, speculation_speedup(a / 20, draft_tok, draft_cost)] for a in range(20)]
    return Conclusion(
        question="Does speculative decoding pay here?", sentence=sentence, columns=("speculation", "gap (p50)", "speed-up", "tokens a step"),
        rows=rows, figure={"title": "Speed-up by acceptance", "x": "acceptance", "y": "speed-up", "series": {"theory": curve, "measured": [[accepted, measured]]}},
        values={"speedup": measured, "tok_per_step": per_step, "acceptance": share, "predicted": predicted},
    )  # fmt: skip


def drafted(rows: Sequence[RequestRecord]) -> tuple[float, float, int] | None:
    """By the server's own counts: share of drafted tokens accepted, tokens a step, tokens drafted a step; None where untold.

    Each accepted token saves a step: steps = tokens - accepted. Steps that draft nothing count as drafting the mean.
    """
    counted = [r for r in rows if r.server and "drafted_tok" in r.server and r.osl]
    offered = sum((r.server or {})["drafted_tok"] for r in counted)
    taken = sum((r.server or {}).get("accepted_tok", 0.0) for r in counted)
    tokens = sum(r.osl or 0 for r in counted)
    if not offered or tokens <= taken:
        return None
    steps = tokens - taken
    return taken / offered, tokens / steps, max(round(offered / steps), 1)


def predict_speculation(*, itl_s: float, draft_tok: int, draft_cost: float) -> Conclusion:
    """What theory says before anything is measured: the speed-up for each acceptance rate, and where it starts to pay."""
    points = [(a / 20, speculation_speedup(a / 20, draft_tok, draft_cost)) for a in range(20)]
    pays = next((a for a, s in points if s > 1.0), None)
    sentence = (
        f"With {draft_tok} drafted tokens at {fmt_percent(draft_cost)} of a step each, speculation pays from an acceptance of "
        f"{fmt_percent(pays)} on; at 70% the gap would go from {fmt_s(itl_s)} to "
        f"{fmt_s(itl_s / speculation_speedup(0.7, draft_tok, draft_cost))}. Few users only: it trades arithmetic for bandwidth."
        if pays is not None
        else f"A draft at {fmt_percent(draft_cost)} of a step never pays, however often it is right."
    )
    rows = tuple((fmt_percent(a), fmt(s, 2), fmt_s(itl_s / s)) for a, s in points if round(a * 20) % 2 == 0)
    return Conclusion(
        question="Would speculative decoding pay here?", sentence=sentence, columns=("acceptance", "speed-up", "gap"), rows=rows,
        figure={"title": "Speed-up by acceptance", "x": "acceptance", "y": "speed-up", "series": {"theory": [[a, s] for a, s in points]}},
        values={"pays_from": pays},
    )  # fmt: skip
