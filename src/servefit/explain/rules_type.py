"""Rules about the pace, from a run's rows: prefill stalls, preemption, chunks, buffering, speculation, host, heat."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from servefit.explain.case import Case, Cause
from servefit.explain.features import Features, Gap, spearman, stalls
from servefit.records import RequestRecord
from servefit.stats import percentile
from servefit.units import fmt, fmt_percent, fmt_s


def prefill_stall(case: Case) -> Cause | None:
    """Running answers pause while another's whole prompt is read: the pause ends with that request's first token.

    Compared with what chance would give: the same share among ordinary gaps, scaled to the pauses' length.
    """
    f = case.features
    if f is None or len(f.rows) < 3:
        return None
    everything = f.gaps
    long = stalls(everything)
    if len(long) < 3:
        return None
    usual = percentile((g.s for g in everything), 50) or 0.0
    arrivals = [g.end_s for g in everything]
    long = [g for g in long if not _others_wrote(g, everything, arrivals)]  # those were set back, see preemption
    if len(long) < 3:
        return None
    starters = sorted((r.chunk_s[0], r.due_s) for r in f.run.rows if r.chunk_s)
    firsts = [t for t, _ in starters]
    hit = [g for g in long if _ends_with_a_first(g, starters, firsts, usual)]
    share = len(hit) / len(long)
    if share < 0.5 or len(hit) < 3:
        return None
    worst = max(hit, key=lambda g: g.s)
    lost = sum(g.s - usual for g in hit)
    affected = len({g.row for g in hit})
    writing = sum(r.chunk_s[-1] - r.chunk_s[0] for r in f.rows if len(r.chunk_s) > 1)
    if lost < 0.05 * writing:
        return None  # there, but nobody would notice
    return Cause(
        code="prefill_stall", title="Running answers stop while another prompt is read", half="type",
        saw=f"{len(hit)} of {len(long)} long pauses ({fmt_percent(share)}) end just as another request gets its first token; the "
        f"longest is {fmt_s(worst.s)}, the usual gap (p50) {fmt_s(usual)}; {affected} of {len(f.rows)} answers lost {fmt_s(lost / affected)} each.",
        confirm="Send no new prompt while one answer runs: the pauses go. Or read prompts in slices (chunked prefill).",
        certainty="likely", weight_s=lost / len(f.rows), value=lost / writing if writing else None,
    )  # fmt: skip


def _ends_with_a_first(gap: Gap, starters: list[tuple[float, float]], firsts: list[float], usual: float) -> bool:
    """Whether another request, due before this pause ended, got its first token in the pause's last step."""
    low = bisect_right(firsts, gap.start_s + 0.3 * gap.s)
    high = bisect_right(firsts, gap.end_s + usual)
    return any(due < gap.end_s for _, due in starters[low:high])


def preemption(case: Case) -> Cause | None:
    """One answer stops for long while others go on: it was thrown out of memory and its tokens are computed again."""
    f = case.features
    if f is None:
        return None
    counted = sum(r.preempted or 0 for r in f.run.rows)
    everything = f.gaps
    long = stalls(everything, times=8.0, floor_s=0.1)
    arrivals = [g.end_s for g in everything]
    alone = [g for g in long if _others_wrote(g, everything, arrivals) and not _burst_after(g, f.rows)]
    if not counted and len(alone) < 2:
        return None
    usual = percentile((g.s for g in everything), 50) or 0.0
    worst = max((g.s for g in alone), default=0.0)
    rows = len({g.row for g in alone})
    said = f"the engine counted {counted} preemptions" if counted else ""
    seen = (
        f"{len(alone)} pauses of up to {fmt_s(worst)} (usual gap, p50: {fmt_s(usual)}) in {rows} answers, while the others went on"
        if alone
        else ""
    )
    return Cause(
        code="preemption", title="Preempted: memory for the conversations ran out, and answers were set back", half="type",
        saw="; ".join(filter(None, (said, seen))) + ".",
        confirm="The engine's log or metrics count preemptions. Fewer seats, a larger KV pool, or an 8-bit KV cache end them.",
        certainty="shown" if counted else "likely", weight_s=sum(g.s - usual for g in alone) / max(rows, 1), value=float(counted or len(alone)),
    )  # fmt: skip


def _others_wrote(gap: Gap, everything: Sequence[Gap], arrivals: list[float]) -> bool:
    """Whether at least one other answer got four tokens or more strictly inside this pause."""
    low, high = bisect_right(arrivals, gap.start_s), bisect_left(arrivals, gap.end_s)
    inside: dict[int, int] = {}
    for other in everything[low:high]:
        if other.row != gap.row:
            inside[other.row] = inside.get(other.row, 0) + 1
            if inside[other.row] >= 4:
                return True
    return False


def _burst_after(gap: Gap, rows: tuple[RequestRecord, ...]) -> bool:
    """Whether the pause is followed by tokens all at once: then they were held back, not computed late."""
    times = rows[gap.row].chunk_s
    at = bisect_left(times, gap.end_s)
    following = [b - a for a, b in zip(times[at:], times[at + 1 : at + 5], strict=False)]
    return bool(following) and sum(following) / len(following) < 0.05 * gap.s / max(len(following), 1)


def buffering(case: Case) -> Cause | None:
    """Chunks arrive in bursts: something between the model and us holds them back."""
    f = case.features
    if f is None or not f.rows:
        return None
    if _drafts_counted(f):
        return None  # accepted drafts come together: those are bursts, and nobody holds them back
    if whole := _whole(f):
        return whole
    rows = [r for r in f.rows if len(r.chunk_s) >= 8]
    if len(rows) < max(1, len(f.rows) // 2):
        return None
    groups = [_groups(r) for r in rows]
    per_group = percentile((len(r.chunk_s) / g for r, g in zip(rows, groups, strict=True)), 50) or 1.0
    if per_group < 2.5:
        return None
    shares = sum((r.server or {}).get("shared_reads", 0) for r in rows) / sum(len(r.chunk_s) for r in rows)
    return Cause(
        code="buffering", title="A proxy (or the server) holds the stream back and sends it in bursts", half="measurement",
        saw=f"chunks arrive {fmt(per_group, 1)} at a time, and then nothing for {fmt_s(_pause(rows))} (p50)"
        + (f"; {fmt_percent(shares)} of them shared a read" if shares else "") + ".",
        confirm="Ask the server directly, without the proxy; or switch its buffering off (proxy_buffering off, X-Accel-Buffering: no).",
        certainty="likely", weight_s=_pause(rows), value=per_group,
    )  # fmt: skip


def _whole(features: Features) -> Cause | None:
    """The extreme: the whole answer arrives at once, so TTFT is the end-to-end time."""
    rows = [r for r in features.rows if (r.osl or 0) >= 16 and len(r.chunk_s) >= 1]
    at_once = [r for r in rows if r.chunk_s[-1] - r.chunk_s[0] < 0.02 * (r.e2e_s or 1.0)]
    if len(rows) < 1 or len(at_once) < 0.8 * len(rows):
        return None
    return Cause(
        code="buffering", title="The whole answer arrives at once: nothing is streamed", half="measurement",
        saw=f"in {len(at_once)} of {len(rows)} requests first and last token came within 2% of the whole time.",
        confirm="Ask for a stream (stream: true), and without a proxy between.", certainty="likely",
        weight_s=percentile((r.ttft_s or 0.0 for r in at_once), 50) or 0.0, value=None,
    )  # fmt: skip


def _groups(row: RequestRecord) -> int:
    """Bursts in which a row's chunks came: a new one starts after a pause of a third of the mean gap or more."""
    times = row.chunk_s
    mean = (times[-1] - times[0]) / (len(times) - 1)
    return 1 + sum(b - a >= mean / 3 for a, b in pairwise(times))


def _pause(rows: list[RequestRecord]) -> float:
    pauses = []
    for row in rows:
        mean = (row.chunk_s[-1] - row.chunk_s[0]) / (len(row.chunk_s) - 1)
        pauses += [b - a for a, b in pairwise(row.chunk_s) if b - a >= mean / 3]
    return percentile(pauses, 50) or 0.0


def several_tokens(case: Case) -> Cause | None:
    """A chunk carries several tokens: held back by the server, or drafted and accepted together (speculation).

    Which of the two: a step that accepts k drafted tokens takes about as long as one that accepts 1; k tokens that were
    merely collected took k steps.
    """
    f = case.features
    if f is None:
        return None
    if counted := _drafts_counted(f):
        return counted
    everything = f.gaps
    tokens, chunks = sum(g.tok for g in everything), len(everything)
    if chunks < 10 or tokens < 1.3 * chunks:
        return None
    if 2 * sum("bursty" in r.findings for r in f.rows) > len(f.rows):
        pause = percentile((g.s for g in everything), 50) or 0.0
        return Cause(
            code="buffering", title="A proxy (or the server) holds the stream back and sends it in bursts", half="measurement",
            saw=f"{fmt(tokens / chunks, 1)} events arrive in one write, then nothing for {fmt_s(pause)} (p50): their gaps are spread evenly, "
            "which is a guess.",
            confirm="Ask the server directly, without the proxy; or switch its buffering off (proxy_buffering off, X-Accel-Buffering: no)."
            + (" This machine was busy and may have read late: measure again when it is idle." if _busy(f) else ""),
            certainty="possible" if _busy(f) else "likely", weight_s=pause, value=tokens / chunks,
        )  # fmt: skip
    ones = [g.s for g in everything if g.tok == 1]
    more = [g for g in everything if g.tok > 1]
    per_chunk = tokens / chunks
    speculative = bool(f.run.header.engine.get("speculation") or f.run.header.engine.get("draft_model"))
    grows = None
    if len(ones) >= 5 and len(more) >= 5:
        single = percentile(ones, 50) or 0.0
        mean_tok = sum(g.tok for g in more) / len(more)
        grows = ((percentile((g.s for g in more), 50) or 0.0) / single - 1) / (mean_tok - 1) if single else None
    if speculative or (grows is not None and grows < 0.35):
        return Cause(
            code="speculative", title="Speculative decoding: several tokens are accepted in one step", half="measurement",
            saw=f"{fmt(per_chunk, 2)} tokens a chunk on average, and a chunk of several takes hardly longer than one of one"
            + (" (the engine says so too)" if speculative else "") + ".",
            confirm="The engine's metrics give the acceptance rate; switch it off and measure again: servefit experiment speculation.",
            certainty="shown" if speculative else "likely", value=per_chunk,
        )  # fmt: skip
    return Cause(
        code="several_tokens", title="Several tokens a chunk: gaps are spread over them, and ITL percentiles hide the waiting",
        half="measurement",
        saw=f"{fmt(per_chunk, 2)} tokens a chunk on average, and a chunk of several takes as much longer as it has tokens.",
        confirm="Look for a stream interval of the server, or tokens that end inside a character (emoji, CJK).",
        certainty="likely", value=per_chunk,
    )  # fmt: skip


def _drafts_counted(features: Features) -> Cause | None:
    """Speculation by the server's own counts: one accepted token in ten or more; its chunks may look like bursts."""
    drafted = sum((r.server or {}).get("drafted_tok", 0.0) for r in features.rows)
    accepted = sum((r.server or {}).get("accepted_tok", 0.0) for r in features.rows)
    tokens = sum(r.osl or 0 for r in features.rows)
    if not drafted or accepted < 0.1 * tokens:
        return None
    return Cause(
        code="speculative", title="Speculative decoding: several tokens are accepted in one step", half="measurement",
        saw=f"the server counts {fmt(accepted)} of {fmt(drafted)} drafted tokens as accepted ({fmt_percent(accepted / drafted)}): "
        f"{fmt_percent(accepted / tokens)} of all that was written took no step of its own, so tokens come several at once.",
        confirm="Start the server without it and measure again: servefit experiment speculation OFF ON.",
        certainty="shown", value=tokens / (tokens - accepted) if tokens > accepted else None,
    )  # fmt: skip


def _busy(features: Features) -> bool:
    """Whether other programs took a quarter of the machine that measured: while it did, else by the load before."""
    machine, taken = features.run.header.machine, features.run.header.client.get("others_cores")
    cores = machine.get("cores") or math.inf
    if taken is not None:
        return bool(taken > 0.25 * cores)
    return (machine.get("load_1min") or 0.0) > 1.25 * cores


def host_trouble(case: Case) -> Cause | None:
    """Something on the machine disturbs: CPU taken away, too many threads, a busy neighbour, a late client."""
    f = case.features
    if f is None:
        return None
    client, machine = f.run.header.client, f.run.header.machine
    said = []
    steal = client.get("steal_frac") or 0.0
    if steal >= 0.05:
        said.append(f"{fmt_percent(steal)} of the processor time was taken by other guests of this host")
    codes = {x.code for x in f.run.header.findings}
    if codes & {"client_saturated", "client_lag"}:
        said.append("the client itself was late")
    if "client_near_limit" in codes:
        said.append("the client used nearly all that a core can give")
    cores, load = machine.get("cores") or 0, machine.get("load_1min") or 0.0
    local = any(name in str(f.run.header.endpoint.get("url", "")) for name in ("127.0.0.1", "localhost", "[::1]"))
    busy = local and _busy(f)
    taken = client.get("others_cores")
    if busy and taken is not None:
        said.append(f"other programs used {fmt(taken, 1)} of {cores} cores meanwhile")
    elif busy:
        said.append(f"a load of {fmt(load, 1)} on {cores} cores before the first request")
    uneven = _uneven(f)
    if uneven:
        said.append(uneven)
    crowded = busy and (taken is not None or load >= 2 * cores)  # evenly slow is disturbed too
    if not said or (
        not uneven
        and not crowded
        and not steal >= 0.05
        and not codes & {"client_saturated", "client_lag", "client_near_limit"}
    ):
        return None
    sure = steal >= 0.05 or bool(codes & {"client_saturated", "client_lag"}) or (busy and taken is not None)
    return Cause(
        code="host_trouble", title="The machine is disturbed: load, threads or a neighbour, not the model", half="type",
        saw="; ".join(said) + ".",
        confirm="Close what else runs (top), give the engine as many threads as free cores, and measure again.",
        certainty="shown" if sure else "likely" if busy and uneven else "possible", weight_s=_lost_s(f), value=load or None,
    )  # fmt: skip


def _alone_tpot(features: Features) -> list[float]:
    """TPOT of rows during which no other request was under way."""
    rows = features.rows
    spans = sorted((r.due_s, r.chunk_s[-1]) for r in rows if r.chunk_s)
    out = []
    for row in rows:
        others = sum(1 for a, b in spans if a < row.chunk_s[-1] and b > row.due_s) - 1 if len(spans) <= 2000 else 1
        if others <= 0 and row.tpot_s is not None:
            out.append(row.tpot_s)
    return out


def _uneven(features: Features) -> str:
    """Equal requests, each alone on the server, at clearly unequal paces: nothing in the server explains that."""
    alone = _alone_tpot(features)
    if len(alone) < 5:
        return ""
    fast, slow = percentile(alone, 10) or 0.0, percentile(alone, 90) or 0.0
    if slow < 1.35 * fast:
        return ""
    return f"equal requests, each alone on the server, ran at {fmt_s(fast)} to {fmt_s(slow)} a token"


def _lost_s(features: Features) -> float:
    alone = _alone_tpot(features)
    fast = percentile(alone, 10)
    middle = percentile(alone, 50)
    tokens = percentile((float(r.osl or 0) for r in features.rows), 50) or 0.0
    return (middle - fast) * tokens if fast is not None and middle is not None else 0.0


def slowing_down(case: Case) -> Cause | None:
    """The pace falls over the run though the load does not change: heat or a power limit (or a leak)."""
    f = case.features
    if f is None:
        return None
    known = sorted(
        ((r, n) for r, n in zip(f.rows, f.under_way, strict=True) if r.tpot_s is not None),
        key=lambda pair: pair[0].chunk_s[0],
    )
    rows = [r for r, _ in known]
    if len(rows) < 12 or rows[-1].chunk_s[-1] - rows[0].chunk_s[0] < 20:
        return None
    times, pace = [r.chunk_s[0] for r in rows], [r.tpot_s or 0.0 for r in rows]
    drift = spearman(times, pace)
    third = len(rows) // 3
    before, after = percentile(pace[:third], 50) or 0.0, percentile(pace[-third:], 50) or 0.0
    load = spearman(times, [float(n) for _, n in known])
    length = spearman(times, [float((r.isl or 0) + (r.osl or 0)) for r in rows])
    if drift < 0.6 or after < 1.15 * before or load > 0.4 or length > 0.4:
        return None
    return Cause(
        code="slowing_down", title="It gets slower over time at the same load: heat or a power limit", half="type",
        saw=f"the gap grew from {fmt_s(before)} to {fmt_s(after)} over {fmt_s(times[-1] - times[0])} (rank correlation {fmt(drift, 2)}), "
        "while load and lengths did not.",
        confirm="Watch clock and temperature (nvidia-smi -q -d PERFORMANCE, powermetrics); rest, and measure again.",
        certainty="possible", weight_s=(after - before) * (percentile((float(r.osl or 0) for r in rows), 50) or 0.0), value=after / before if before else None,
    )  # fmt: skip
