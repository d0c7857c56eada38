"""Rules about the start, from a run's rows: queue, full seats, cold start, cut or refused prompts, cached prefix, 429."""

from collections.abc import Sequence
from math import inf

from servefit.explain.case import Case, Cause
from servefit.explain.features import Features, fresh, running_at, spearman
from servefit.explain.told import counted
from servefit.records import RequestRecord
from servefit.stats import percentile
from servefit.units import fmt, fmt_percent, fmt_s

TURNS = "until an answer before it had ended"
PROMPT_TURNS = "until the prompt before it had been read"


def waits_s(features: Features) -> tuple[list[float], str]:
    """Each row's wait before its own prompt was read, and how that is known: the server's clock, else an estimate."""
    told = [(r.server or {}).get("queue_s") for r in features.rows]
    if told and all(w is not None for w in told):
        return [w or 0.0 for w in told], "by the server's own clock"
    read = [(r.server or {}).get("prefill_s") for r in features.rows]
    if read and all(p is not None for p in read):
        own = [max((r.ttft_s or 0.0) - (p or 0.0), 0.0) for r, p in zip(features.rows, read, strict=True)]
        return own, "TTFT beyond the server's own reading time"
    seats, prompts = taking_turns(features), reading_in_turn(features)
    if seats and not (prompts and _slow(features.prompt_turn_s) > 1.3 * _slow(features.turn_s)):
        return list(features.turn_s), TURNS
    if prompts:
        return [min(w, s) for w, s in zip(features.prompt_turn_s, features.excess_s, strict=True)], PROMPT_TURNS
    how = features.reading.how if features.reading else "unknown"
    return list(features.excess_s), f"beyond what reading takes, {how}"


def _slow(waits: Sequence[float]) -> float:
    return percentile(waits, 95) or 0.0


def queueing(case: Case) -> Cause | None:
    """Requests wait for others: the wait is a large part of the slow TTFT, and grows with how many were under way."""
    f = case.features
    if f is None or len(f.rows) < 5 or max(f.under_way, default=0) < 1:
        return None
    counts = counted(f.run)
    if counts is not None and counts.no_queue:
        return None  # the server's own clock: nobody waited; TTFT grew because prompts were read together
    waits, how = waits_s(f)
    slow_wait, slow_ttft = percentile(waits, 95), percentile((r.ttft_s or 0.0 for r in f.rows), 95)
    if slow_wait is None or not slow_ttft or slow_wait < 0.35 * slow_ttft or slow_wait < 0.03:
        return None
    if waits == list(f.excess_s) and _waits_like_free(f):
        return None
    told = how.startswith("by the server")
    together = spearman([float(n) for n in f.under_way], waits)
    varied = min(f.under_way) != max(f.under_way)
    ordered = how in {TURNS, PROMPT_TURNS}
    if not told and not ordered and varied and together < 0.3 and slow_wait < 0.6 * slow_ttft:
        return None
    typical = percentile(waits, 50) or 0.0
    behind = how == PROMPT_TURNS or (how != TURNS and _like_prompt_turns(f, waits))
    seats = None if behind else _seats(f, waits, how)
    code = "seats_full" if seats else "prompts_ahead" if behind else "queueing"
    word = f"; never more than {seats} answers were written at once: the seats are full" if seats else ""
    ratio = slow_ttft / case.seen.ttft_s if case.seen.ttft_s else 0.0
    return Cause(
        code=code, title=TITLES[code].format(seats), half="start",
        saw=f"the wait before reading is {fmt_s(typical)} at p50 and {fmt_s(slow_wait)} at p95 ({how}), with up to "
        f"{max(f.under_way)} others under way{word}; p95 of TTFT is {fmt(ratio, 1)} times p50.",
        confirm=f"Measure with one user: the wait goes. {KNOBS[code]}",
        certainty="shown" if told else "likely", weight_s=slow_wait, value=float(seats) if seats else typical,
    )  # fmt: skip


TITLES = {
    "seats_full": "Waiting for a seat: all {} are taken",
    "prompts_ahead": "Waiting for the prompts of others, which are read first",
    "queueing": "Waiting in line: other requests are served first",
}
KNOBS = {
    "seats_full": "Raise the seats (max_num_seqs, if memory allows), add a replica, or send less.",
    "prompts_ahead": "More seats do not help. Send less, shorten the prompts, or add a replica; where prompts are read in slices, "
    "more tokens a step (max_num_batched_tokens) help only if they are few now.",
    "queueing": "Send less or add a replica. Whether seats (max_num_seqs) or the tokens of a step (max_num_batched_tokens) are "
    "short is not seen from outside: the server's own count of running requests tells.",
}
"""What to turn."""


def _seats(features: Features, waits: list[float], how: str) -> int | None:
    """How many seats there are, where they are what is short; None where it is not, or may as well be the reading of prompts."""
    if how == TURNS:
        return features.running_max
    estimated = how.startswith("beyond what reading takes")
    return None if estimated and _slowest_read(features) <= 1.6 else full_seats(features, waits)


def _like_prompt_turns(features: Features, waits: Sequence[float]) -> bool:
    """Whether waits that the server told ended as the prompt before had been read, rather than as an answer before had ended."""
    read, ended = (
        sum(abs(a - b) for a, b in zip(waits, turns, strict=True))
        for turns in (features.prompt_turn_s, features.turn_s)
    )
    return reading_in_turn(features) and read < 0.25 * sum(waits) and read <= ended


def _waits_like_free(features: Features) -> bool:
    """Whether those who had nobody before them exceed what reading takes by as much as the others: noise, and no queue."""
    pairs = list(zip(features.excess_s, features.free, strict=True))
    free = [s for s, alone in pairs if alone]
    if len(free) < 5:
        return False
    return (percentile((s for s, alone in pairs if not alone), 90) or 0.0) < 2 * (percentile(free, 90) or 0.0)


def full_seats(features: Features, waits: list[float]) -> int | None:
    """How many seats there are, where they are what requests wait for; None where it is something else.

    While a request waits and the seats are full, exactly that many answers are being written (or their prompts read).
    """
    most = features.running_max
    busy = _written_beside(features, waits, (0.8,))
    if len(busy) < 3:
        return None
    nearly, full = (sum(n >= least for n in busy) / len(busy) for least in (most - 1, most))
    return most if nearly >= 0.7 and full >= 0.4 else None


def taking_turns(features: Features) -> bool:
    """Whether requests took each other's seats, by the order of what was seen alone: noise moves times, and no order.

    Half of all requests or more began only after one before them had ended, though never as many answers were written as
    requests were under way; meanwhile, a quarter of the time or more, all seats were writing (where reading takes longer, who
    reads and who waits is not seen from outside); and from there to the first token was time to read the prompt, which was
    otherwise read while others wrote.
    """
    parts = (0.1, 0.3, 0.5, 0.7, 0.9)
    busy = _written_beside(features, features.turn_s, parts)
    if len(busy) < len(parts) * max(3, len(features.rows) / 2):
        return False
    if sum(n == features.running_max for n in busy) < 0.25 * len(busy):
        return False
    return features.reading is None or _time_to_read(features, features.turn_s) >= 0.9


def _time_to_read(features: Features, waits: Sequence[float]) -> float:
    """From the end of each wait to the first token, as a multiple of the least that reading that prompt takes: the median."""
    least = features.reading.least_s_per_tok if features.reading else 0.0
    left = [
        ((r.ttft_s or 0.0) - w) / (least * max(fresh(r), 1) or 1.0)
        for r, w in zip(features.rows, waits, strict=True)
        if w > 0
    ]
    return percentile(left, 50) or 0.0


def reading_in_turn(features: Features) -> bool:
    """Whether prompts were read one after another, by the order of what was seen: three requests or more saw the first token of
    another before their own, and from there on took what reading takes, or half as much again while seats were left.
    """
    behind = _behind(features)
    longest = _slowest_read(features)
    if len(behind) < 3 or longest > 1.6:
        return False
    moments = [r.due_s + w + part * ((r.ttft_s or 0.0) - w) for r, w in behind for part in (0.3, 0.5, 0.7)]
    full = sum(n == features.running_max for n in running_at(features.run.rows, moments)) / len(moments)
    return longest <= 1.3 or full < 0.3


def _behind(features: Features) -> list[tuple[RequestRecord, float]]:
    """The requests that saw another's first token before their own, with how long each waited for it, where it is worth the name."""
    pairs = zip(features.rows, features.prompt_turn_s, strict=True)
    return [(r, w) for r, w in pairs if w > 0.1 * (r.ttft_s or 1.0) and w > 0.02]


def _slowest_read(features: Features) -> float:
    """What those took from then on, as a multiple of what reading takes: the upper quartile; infinite where nobody knows."""
    if features.reading is None:
        return inf
    own = (((r.ttft_s or 0.0) - w) / max(features.reading.expected_s(fresh(r)), 1e-9) for r, w in _behind(features))
    return percentile(own, 75) or inf


def _written_beside(features: Features, waits: Sequence[float], parts: Sequence[float]) -> list[int]:
    """How many answers were being written at these parts of each wait worth the name; empty where no seat can have lacked."""
    if features.running_max < 1 or max(features.under_way, default=0) + 1 <= features.running_max:
        return []
    waited = [(r, w) for r, w in zip(features.rows, waits, strict=True) if w > 0.1 * (r.ttft_s or 1.0) and w > 0.02]
    return running_at(features.run.rows, [r.due_s + part * w for r, w in waited for part in parts])


def cold_start(case: Case) -> Cause | None:
    """The first request to a fresh (or sleeping) server is far slower than the same request later."""
    f = case.features
    if f is None or not f.rows:
        return None
    usual = percentile((r.ttft_s or 0.0 for r in f.rows), 50) or 0.0
    cold = next((r for r in f.run.rows if r.phase == "cold" and r.ok and r.ttft_s is not None), None)
    rate = fresh_tok_per_s(f)
    just_reading = bool(cold and rate and cold.isl and cold.isl / rate > 0.5 * (cold.ttft_s or 0.0))
    found = cold if cold and not just_reading and _is_cold(cold, f, usual) else _after_a_pause(f, usual)
    if found is None or found.ttft_s is None:
        return None
    extra = found.ttft_s - usual
    load = (found.server or {}).get("load_s")
    word = f"; the server itself names {fmt_s(load)} of loading" if load else ""
    counted = "" if found.phase == "cold" else " It is in the figures."
    return Cause(
        code="cold_start", title="A cold start: the first request pays for loading and warming up", half="start",
        saw=f"the first request took {fmt_s(found.ttft_s)} to its first token, the usual one (p50) {fmt_s(usual)}{word}.{counted}",
        confirm="Wait as long as the server takes to fall asleep, and send two requests: only the first is slow. Keep one "
        "replica awake, or send a warm-up request.",
        certainty="shown" if load else "likely",
        weight_s=0.0 if found.phase == "cold" else extra,  # what is not in the figures explains none of their seconds
        value=found.ttft_s / usual if usual else None,
    )  # fmt: skip


def _is_cold(row: RequestRecord, features: Features, usual: float) -> bool:
    lengths = [r.isl for r in features.rows if r.isl is not None]
    alike = row.isl is None or not lengths or row.isl <= 2 * (percentile(lengths, 50) or 0)
    return alike and row.ttft_s is not None and row.ttft_s > max(2.5 * usual, usual + 0.2)


def _after_a_pause(features: Features, usual: float) -> RequestRecord | None:
    """A load row that is slow though nobody else was there: the first one, or one after a pause of 20 s or more."""
    quiet_until = 0.0
    for index, row in enumerate(features.rows):
        idle = row.due_s - quiet_until
        alone = features.under_way[index] == 0
        first = index == 0 and not any(r.phase != "load" for r in features.run.rows)
        if alone and (first or idle >= 20.0) and (row.ttft_s or 0.0) > max(3 * usual, usual + 0.3):
            return row
        quiet_until = max(quiet_until, row.chunk_s[-1] if row.chunk_s else row.due_s)
    return None


def prompt_cut_counts(case: Case) -> Cause | None:
    """The server read fewer prompt tokens than were sent, by its own count."""
    f = case.features
    if f is None:
        return None
    rows = [r for r in f.run.load_rows if r.isl is not None and r.isl_asked]
    cut = [
        r
        for r in rows
        if r.status == "prompt_cut" or (r.isl_source == "usage" and (r.isl or 0) < 0.8 * (r.isl_asked or 1))
    ]
    if not cut:
        return None
    read = percentile((r.isl or 0 for r in cut), 50)
    asked = percentile((r.isl_asked or 0 for r in cut), 50)
    return Cause(
        code="prompt_cut", title="The prompt was cut to the server's context setting", half="measurement",
        saw=f"the server counted {fmt(read)} prompt tokens where {fmt(asked)} were sent, in {len(cut)} of {len(rows)} requests.",
        confirm="Raise the context setting (num_ctx, --ctx-size, --max-model-len) until the count is what was sent.",
        certainty="shown", weight_s=case.seen.ttft_s, value=float(read) if read is not None else None,
    )  # fmt: skip


_TOO_LONG = ("context", "too long", "maximum length", "n_ctx", "max_model_len", "exceed")


def context_refused(case: Case) -> Cause | None:
    """Prompts that do not fit the context setting are refused: failures, not slowness."""
    f = case.features
    if f is None:
        return None
    return refused(f.run.load_rows)


def refused(rows: Sequence[RequestRecord]) -> Cause | None:
    """The same from rows alone: a run in which nothing completed has no features."""
    said = [
        r
        for r in rows
        if r.status in {"unprocessable", "http_error"} and any(w in (r.error or "").lower() for w in _TOO_LONG)
    ]
    if not said:
        return None
    return Cause(
        code="context_refused", title="The prompt does not fit the server's context setting, and the server says so",
        half="measurement",
        saw=f"{len(said)} of {len(rows)} requests were refused with HTTP {said[0].http_status}: \"{(said[0].error or '')[:120]}\".",
        confirm="Raise the context setting (num_ctx, --ctx-size, --context-tok, --max-model-len), or send less.",
        certainty="shown", value=float(said[0].isl_asked) if said[0].isl_asked else None,
    )  # fmt: skip


def memory_full(case: Case) -> Cause | None:
    """Answers that had begun were broken off by the server: all conversations together outgrew its KV cache.

    So llama.cpp where its slots share one cache: it sets nobody back, it ends every request that is running.
    """
    f = case.features
    if f is None:
        return None
    rows = f.run.load_rows
    broken = [r for r in rows if r.status == "stream_error" and r.chunk_s and _about_memory(r.error)]
    if not broken:
        return None
    first = min(broken, key=lambda r: r.chunk_s[-1])
    end = first.chunk_s[-1]
    together = sum(bool(r.chunk_s) and r.due_s <= end <= (r.done_s or r.chunk_s[-1]) for r in rows)
    held = max((r.isl or 0) + (r.osl or len(r.chunk_s)) for r in broken)
    return Cause(
        code="memory_full", title="Memory for the conversations ran out, and the server broke answers off", half="measurement",
        saw=f"{len(broken)} of {len(rows)} answers were broken off after they had begun, with {fmt(together)} under way and none longer than "
        f"{fmt(held)} tokens, prompt and all: \"{(first.error or '')[:120]}\".",
        confirm="Ask with one user: the same request is answered whole. Then fewer seats, or a larger context setting for all of them "
        "together (llama.cpp: --ctx-size; ours: --kv-tok).",
        certainty="shown", value=float(held),
    )  # fmt: skip


def _about_memory(said: str | None) -> bool:
    return any(word in (said or "").lower() for word in (*_TOO_LONG, "kv cache", "out of memory"))


def cached_prefix(case: Case) -> Cause | None:
    """Part of the prompts came from the server's cache, by its own count: TTFT is not that of a fresh prompt."""
    f = case.features
    if f is None:
        return None
    counted = [r for r in f.rows if r.cached_tok is not None and r.isl]
    cached = sum(r.cached_tok or 0 for r in counted)
    total = sum(r.isl or 0 for r in counted)
    if not total or cached < 0.1 * total:
        return _cached_untold(f)
    fresh = [
        r.ttft_s for r in f.run.rows if r.ok and r.ttft_s is not None and r.isl and (r.cached_tok or 0) < 0.1 * r.isl
    ]
    usual = percentile((r.ttft_s or 0.0 for r in counted), 50) or 0.0
    before = percentile(fresh, 50)
    word = f"; fresh prompts took {fmt_s(before)}, these {fmt_s(usual)} (both p50)" if before else ""
    return Cause(
        code="cached_prefix", title="The prompt's beginning was cached: this is not the TTFT of a new prompt", half="measurement",
        saw=f"{fmt_percent(cached / total)} of the prompt tokens came from the server's cache by its own count{word}.",
        confirm="Send prompts that differ from their first word on, or switch the cache off (cache_prompt: false).",
        certainty="shown", weight_s=max((before or usual) - usual, 0.0), value=cached / total,
    )  # fmt: skip


def _cached_untold(features: Features) -> Cause | None:
    """The same where the server counts nothing: the prompts were read several times faster than any fresh one."""
    load = features.run.header.load
    if load.get("prompt_source") in {"usage", "tokenizer", "estimate"} and not load.get("shared_prefix_tok"):
        return None  # our own prompts: no two begin alike, and a slow warm-up proves nothing
    rate = fresh_tok_per_s(features)
    rows = [r for r in features.rows if r.isl and r.isl >= 128 and r.ttft_s]
    if rate is None or not rows:
        return None
    seen = percentile(((r.isl or 0) / (r.ttft_s or 1.0) for r in rows), 50) or 0.0
    if seen < 4 * rate:
        return None
    return Cause(
        code="cached_prefix", title="The prompts were not read afresh: a prefix cache, or the same prompt again", half="measurement",
        saw=f"{fmt(seen)} prompt tokens a second, where this server read new prompts at {fmt(rate)}; it counts no cached tokens.",
        confirm="Send prompts that differ from their first word on: TTFT should rise to that of a new prompt.",
        certainty="likely", weight_s=percentile(((r.isl or 0) / rate - (r.ttft_s or 0.0) for r in rows), 50) or 0.0, value=None,
    )  # fmt: skip


def fresh_tok_per_s(features: Features) -> float | None:
    """The fastest that this server read a prompt it cannot have known: a warm-up's, of 64 tokens or more.

    Where the same text was sent every time, only the very first request was new.
    """
    phase = "cold" if features.run.header.load.get("prompt_source") == "given" else "warmup"
    rows = [r for r in features.run.rows if r.phase == phase and r.ok and (r.isl or 0) >= 64 and r.ttft_from_send_s]
    return max(((r.isl or 0) / (r.ttft_from_send_s or 1.0) for r in rows), default=None)


def rate_limited(case: Case) -> Cause | None:
    """429: the provider slows us down; that is no latency of the model."""
    f = case.features
    if f is None:
        return None
    rows = f.run.load_rows
    limited = [r for r in rows if r.status == "rate_limited"]
    if not limited:
        return None
    wait = max(((r.server or {}).get("retry_after_s", 0.0) for r in limited), default=0.0)
    word = f"; it asks to wait {fmt_s(wait)}" if wait else ""
    return Cause(
        code="rate_limited", title="Rate limited, not slow", half="measurement",
        saw=f"{len(limited)} of {len(rows)} requests were answered with 429{word}.",
        confirm="Send fewer at once, or ask for a higher limit; the figures are those of the requests that got through.",
        certainty="shown", weight_s=wait, value=len(limited) / len(rows),
    )  # fmt: skip
