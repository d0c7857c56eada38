"""Rules that need a few numbers and no rows: they work on typed numbers and on runs alike. All plain arithmetic."""

from servefit.explain import formulas
from servefit.explain.case import Case, Cause
from servefit.units import fmt, fmt_percent, fmt_s

BAND_LOW = 0.60
"""Real runs reach 60 to 85% of the bandwidth ceiling on large models (public Apple and GPU tables); below it, something
other than bandwidth sets the pace. Small quantised models on few cores sit below it without any fault."""


def prompt_cut(case: Case) -> Cause | None:
    """Three signals that a long prompt was cut: the gap's growth, a prefill rate above the peak, the server's count.

    The count is the rows' business (rules_rows); here the first two, either of which is enough to ask.
    """
    seen, short, wall = case.seen, case.short, case.wall
    if not seen.isl:
        return None
    signals: list[str] = []
    implied: int | None = None
    if short and short.isl is not None and wall.weight_bytes and wall.kv_bytes_per_tok and seen.isl >= 4 * short.isl:
        predicted = formulas.itl_ratio(wall.weight_bytes, wall.kv_bytes_per_tok, short.isl, seen.isl)
        measured = seen.itl_s / short.itl_s
        implied = formulas.context_tok(short.itl_s, seen.itl_s, wall.weight_bytes, wall.kv_bytes_per_tok, short.isl)
        if predicted > 1.05 and implied < 0.6 * seen.isl:
            signals.append(
                f"the gap grew {fmt((measured - 1) * 100, 1)}% where the bytes of {fmt(seen.isl)} tokens say "
                f"{fmt((predicted - 1) * 100, 1)}%: that is the growth of about {fmt(max(implied, 0))} tokens"
            )
        else:
            implied = None
    if wall.flop_per_s and wall.active_params and seen.ttft_s > 0:
        needed = formulas.prefill_flop_per_s(seen.isl, seen.ttft_s, wall.active_params)
        if needed > wall.flop_per_s:
            most = formulas.tok_computable(seen.ttft_s, wall.flop_per_s, wall.active_params)
            signals.append(
                f"reading {fmt(seen.isl)} tokens in {fmt_s(seen.ttft_s)} takes {fmt(needed / 1e12, 1)} TFLOP/s, and this "
                f"device peaks at {fmt(wall.flop_per_s / 1e12, 1)}: at most {fmt(most)} tokens were computed"
            )
    if not signals:
        return None
    return Cause(
        code="prompt_cut", title="The prompt was cut to the server's context setting, or part of it was cached",
        half="measurement", saw="; ".join(signals) + ".",
        confirm="Compare the server's prompt count (usage.prompt_tokens, Ollama's prompt_eval_count) with the tokens sent, "
        "raise the context setting (num_ctx, --ctx-size, --max-model-len) and measure again: servefit experiment context.",
        certainty="shown" if len(signals) > 1 else "likely", weight_s=seen.ttft_s,
        value=float(implied) if implied is not None else None,
    )  # fmt: skip


def long_prompt(case: Case) -> Cause | None:
    """Reading takes most of the start: by a known prefill rate, or against a short prompt on the same server."""
    seen, short = case.seen, case.short
    if not seen.isl:
        return None
    if short and short.isl is not None and seen.isl >= 4 * max(short.isl, 1) and seen.ttft_s > 2 * short.ttft_s:
        rate = (seen.isl - short.isl) / (seen.ttft_s - short.ttft_s)
        saw = (
            f"{fmt(seen.isl)} tokens in take {fmt_s(seen.ttft_s)} to the first token, {fmt(short.isl)} take "
            f"{fmt_s(short.ttft_s)}: {fmt(seen.ttft_s / short.ttft_s, 1)} times as long, {fmt(rate)} tokens read a second{case.whose}"
        )
        weight = seen.ttft_s - short.ttft_s
    else:
        prefill = seen.prefill_s
        if prefill is None and seen.prefill_tok_per_s:
            prefill = formulas.reading_s(seen.isl, seen.prefill_tok_per_s)
        if prefill is None and case.features is not None and seen.queue_s is not None and seen.ttft_s > 8 * seen.itl_s:
            prefill = seen.ttft_s - seen.queue_s - seen.late_s - seen.connect_s  # what waiting does not explain
        if prefill is None or prefill < 0.5 * seen.ttft_s or prefill < 5 * seen.itl_s or seen.isl < 256:
            return None
        saw = f"reading {fmt(seen.isl)} tokens takes {fmt_s(prefill)} of {fmt_s(seen.ttft_s)} to the first token{case.whose}"
        weight = prefill
    return Cause(
        code="long_prompt", title="A long prompt: reading it is most of the start", half="start", saw=saw + ".",
        confirm="Halve the prompt and measure again: TTFT should fall by half of the reading part.",
        certainty="likely", weight_s=weight, value=weight,
    )  # fmt: skip


def tail(case: Case) -> Cause | None:
    """A fine p50 with an ugly p95 is a queue or a cold start, not the model: the rows tell which, numbers alone cannot."""
    if case.ttft_p95_s is None or case.features is not None:
        return None
    ratio = formulas.tail_ratio(case.seen.ttft_s, case.ttft_p95_s)
    if ratio < 2:
        return None
    return Cause(
        code="tail", title="Waiting in line, or a server waking up", half="start",
        saw=f"p95 of TTFT is {fmt(ratio, 1)} times p50 ({fmt_s(case.ttft_p95_s)} against {fmt_s(case.seen.ttft_s)}): the "
        "model reads the same prompt equally fast each time, so the slow ones waited.",
        confirm="Measure one request at a time: if the tail goes, it was a queue. If only the first after a pause is slow, it "
        "was a cold start.", certainty="likely", weight_s=case.ttft_p95_s - case.seen.ttft_s, value=ratio,
    )  # fmt: skip


def context_read(case: Case) -> int:
    """Tokens that a middle step reads: the prompt, or what was left of it where it was cut, and half the answer."""
    cut = prompt_cut(case)
    read = int(cut.value) if cut is not None and cut.value is not None else case.seen.isl or 0
    return read + case.seen.osl // 2


def above_ceiling(case: Case) -> Cause | None:
    """Faster than the bytes can come: never a record, always a finding."""
    floor = case.wall.floor_itl_s(context_read(case))
    if floor is None or case.seen.itl_s >= 0.98 * floor or case.seen.itl_s <= 0:
        return None
    return Cause(
        code="above_ceiling", title="Faster than memory allows: not a record but a finding", half="measurement",
        saw=f"a gap of {fmt_s(case.seen.itl_s)}{case.whose}, where reading the model once takes {fmt_s(floor)} at full bandwidth "
        f"({fmt(floor / case.seen.itl_s, 2)} times too fast).",
        confirm="Look for several tokens a chunk, speculative decoding, a smaller or more quantised model than named, "
        "a model that fits the processor's cache, or a wrong token count.",
        certainty="shown", weight_s=0.0, value=floor / case.seen.itl_s,
    )  # fmt: skip


def below_ceiling(case: Case) -> Cause | None:
    """Below 60% of the ceiling for one sequence: overhead or compute sets the pace, not bandwidth."""
    floor = case.wall.floor_itl_s(context_read(case))
    running = case.features.running_mean if case.features else 1.0
    if floor is None or running > 1.5:
        return None
    share = floor / case.seen.itl_s if case.seen.itl_s > 0 else 1.0
    if share >= BAND_LOW:
        return None
    return Cause(
        code="below_ceiling", title="Below 60% of the ceiling: overhead or compute sets the pace, not bandwidth", half="type",
        saw=f"a gap of {fmt_s(case.seen.itl_s)}{case.whose}, of which reading the bytes explains {fmt_s(floor)} ({fmt_percent(share)} of "
        "the ceiling reached).",
        confirm="Run a higher precision of the same model: if its pace falls by less than its bytes grow, arithmetic or "
        "overhead was the wall. Try more threads, a release build, a larger model. servefit experiment ceiling does this.",
        certainty="likely", weight_s=(case.seen.itl_s - floor / BAND_LOW) * max(case.seen.osl - 1, 0), value=share,
    )  # fmt: skip


def too_large(case: Case) -> Cause | None:
    """At 60% of the ceiling or more the model's bytes are the wall: only fewer bytes or faster memory help."""
    floor = case.wall.floor_itl_s(context_read(case))
    running = case.features.running_mean if case.features else 1.0
    if floor is None or case.seen.itl_s <= 0 or running > 1.5:
        return None
    share = floor / case.seen.itl_s
    if not BAND_LOW <= share <= 1.02:
        return None
    writing = formulas.writing_s(case.seen.osl, case.seen.itl_s)
    if writing < 0.4 * (writing + case.seen.ttft_s):
        return None
    return Cause(
        code="too_large", title="Bandwidth is the wall: the model is large for this memory", half="type",
        saw=f"{fmt_percent(share)} of the ceiling is reached ({fmt(1 / case.seen.itl_s, 1)} of {fmt(1 / floor, 1)} tokens a "
        f"second){case.whose}, and writing is most of the wait.",
        confirm="A model with half the bytes should write nearly twice as fast.", certainty="likely", weight_s=writing, value=share,
    )  # fmt: skip
