"""The wait, divided: waiting in line, reading the prompt, writing the answer, and what cannot be told apart.

From a run (one typical request and one slow one, both real requests) or from numbers that someone typed.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from servefit.errors import ServefitError
from servefit.explain import formulas
from servefit.explain.features import Reading, fit_reading
from servefit.explain.formulas import Work, exact_s
from servefit.explain.told import Counted, counted, is_local, round_trip_s
from servefit.records import STATUSES, RequestRecord, Run
from servefit.stats import percentile, rank
from servefit.units import fmt, fmt_percent, fmt_s

Kind = Literal["slow to start", "slow to type", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of one request's wait. None means not known, never zero."""

    ttft_s: float
    itl_s: float
    isl: int | None = None
    osl: int
    prefill_tok_per_s: float | None = None
    queue_s: float | None = None
    """Waiting in line, by the server's own clock or as estimated; `how_queue` says which."""
    how_queue: str = ""
    prefill_s: float | None = None
    """Reading, by the server's own clock or as estimated."""
    how_prefill: str = ""
    late_s: float = 0.0
    """Due but not yet sent: the client's or the schedule's lateness."""
    connect_s: float = 0.0
    network_s: float | None = None
    """One round trip: the request out and the first token back; None on this machine, or where nobody took it."""
    remote: bool = False
    """Whether there is a network between: then what is not told apart has it inside."""
    decode_s: float | None = None
    """First token to last, as measured; computed from the gap where None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the wait, in seconds, with how it is known."""

    name: Literal["not sent yet", "connecting", "network", "queue", "prefill", "front end and rest", "start", "decode"]
    s: float
    how: str


ONE = "this request"
TYPED = "as typed"
"""The labels of a wait that stands alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A whole wait: its parts in order, and which of them a reader should care about first."""

    label: str
    isl: int | None
    osl: int
    ttft_s: float
    itl_s: float
    writing_s: float
    total_s: float
    writing_frac: float
    kind: Kind
    parts: tuple[Part, ...]
    work: tuple[Work, ...] = field(default=())

    @property
    def sentence(self) -> str:
        """The wait in one sentence, with its token shape, which every latency needs beside it."""
        shape = f"{fmt(self.isl) if self.isl is not None else '?'} tokens in, {fmt(self.osl)} out"
        if self.label not in (
            ONE,
            TYPED,
        ):  # of several: which of them this is, since the run's own p50 may be another's
            shape += f"; {self.label}"
        start, write = exact_s(self.ttft_s), exact_s(self.writing_s)
        whole = f"{exact_s(self.total_s)} in all ({shape}): {start} to the first token, {write} of writing"
        share = fmt_percent(self.writing_frac)
        if self.kind == "slow to type":
            return f"Slow to type: {whole}; {share} is writing. An instant start would save {start} at most."
        if self.kind == "slow to start":
            rest = fmt_percent(1 - self.writing_frac)
            return f"Slow to start: {whole}; {rest} passes before the first token. Faster typing saves {write} at most."
        return f"Both: {whole}; {share} is writing. Neither half alone is the answer."


def kind_of(writing_frac: float) -> Kind:
    """Which half of the wait is the larger; "both" where neither reaches three fifths."""
    if writing_frac >= 0.6:
        return "slow to type"
    return "slow to start" if writing_frac <= 0.4 else "both"


def divide(seen: Observed, *, label: str = ONE) -> Wait:
    """The wait of one request, divided. With no queue and no prefill known, all before the first token is one part.

    >>> wait = divide(Observed(ttft_s=0.775, itl_s=0.022, isl=6200, osl=300, prefill_tok_per_s=8000))
    >>> round(wait.writing_s, 3), round(wait.total_s, 3), wait.kind
    (6.578, 7.353, 'slow to type')
    """
    writing = seen.decode_s if seen.decode_s is not None else formulas.writing_s(seen.osl, seen.itl_s)
    total = seen.ttft_s + writing
    share = writing / total if total else 0.0
    parts = (*_start_parts(seen), Part(name="decode", s=writing, how="first token to last"))
    work: list[Work] = []
    if seen.isl and seen.prefill_tok_per_s:
        work.append(formulas.show_reading(seen.isl, seen.prefill_tok_per_s))
    elif seen.isl and seen.ttft_s:
        work.append(formulas.show_rate(seen.isl, seen.ttft_s))
    work.append(formulas.show_writing(seen.osl, writing / (seen.osl - 1) if seen.osl > 1 else seen.itl_s))
    work.append(formulas.show_total(seen.ttft_s, writing))
    if total:
        work.append(formulas.show_share("writing", writing, total))
    return Wait(
        label=label, isl=seen.isl, osl=seen.osl, ttft_s=seen.ttft_s, itl_s=seen.itl_s, writing_s=writing, total_s=total,
        writing_frac=share, kind=kind_of(share), parts=parts, work=tuple(work),
    )  # fmt: skip


def _start_parts(seen: Observed) -> tuple[Part, ...]:
    """The parts before the first token; what is left over is named as such and never called queue."""
    parts: list[Part] = []
    left = seen.ttft_s
    if seen.late_s > 1e-4:
        parts.append(Part(name="not sent yet", s=min(seen.late_s, left), how="due to sent, by the client's clock"))
        left -= parts[-1].s
    if seen.connect_s > 1e-4:
        parts.append(Part(name="connecting", s=min(seen.connect_s, left), how="the client's clock"))
        left -= parts[-1].s
    if seen.network_s is not None:
        how = "the TCP handshake's round trip, to whatever ends the connection (a proxy, perhaps)"
        parts.append(Part(name="network", s=min(seen.network_s, left), how=how))
        left -= parts[-1].s
    if seen.queue_s is not None:
        parts.append(Part(name="queue", s=min(max(seen.queue_s, 0.0), left), how=seen.how_queue))
        left -= parts[-1].s
    prefill, how = seen.prefill_s, seen.how_prefill
    if prefill is None and seen.isl and seen.prefill_tok_per_s:
        prefill, how = formulas.reading_s(seen.isl, seen.prefill_tok_per_s), "prompt tokens / the prefill rate given"
    if prefill is None:
        name: Literal["start", "front end and rest"] = "start"
        if left > 0:
            parts.append(Part(name=name, s=left, how=_left_over(seen)))
        return tuple(parts)
    parts.append(Part(name="prefill", s=min(prefill, left), how=how))
    left -= parts[-1].s
    if left > 1e-9:
        parts.append(Part(name="front end and rest", s=left, how="what is left of TTFT"))
    return tuple(parts)


def _left_over(seen: Observed) -> str:
    """What is in a start that cannot be divided."""
    inside = ["queue", "front end", "prefill"]
    if seen.queue_s is not None:
        inside.remove("queue")
    if seen.remote and seen.network_s is None:
        inside.insert(0, "network")
    return f"{', '.join(inside[:-1])} and {inside[-1]}, not told apart"


# --- from a run -----------------------------------------------------------------------------------------------------


def divide_run(run: Run) -> tuple[Wait, ...]:
    """The waits of the request with the median end-to-end time and of the one at p95, both real requests of the run.

    Raises ServefitError where no request completed with two tokens or more, with what the failures were.
    """
    rows = sorted(
        (r for r in run.load_rows if r.ok and r.tpot_s is not None and r.e2e_s is not None),
        key=lambda r: r.e2e_s or 0.0,
    )
    if not rows and (whole := sum(r.ok for r in run.load_rows)):
        raise ServefitError(
            f"{whole} requests completed, each in one piece: without a stream, starting and typing cannot be told apart.",
            hint="Ask for a stream (and for 2 tokens or more), and ask the server itself, without a proxy between.",
        )
    if not rows:
        statuses = Counter(r.status for r in run.load_rows)
        what = ", ".join(f"{n} {status} ({STATUSES.get(status, 'unknown')})" for status, n in statuses.most_common(3))
        said = next((r.error for r in run.load_rows if r.error), None)
        raise ServefitError(
            f"No request of this run completed with two tokens or more: {what or 'it has no requests'}.",
            hint=f"The server said: {said[:200]}" if said else "Mend the failures first, and measure again.",
        )
    reading = fit_reading(run)
    about: dict[str, Any] = {"counts": counted(run), "network_s": round_trip_s(run), "remote": not is_local(run)}
    typical = rows[rank(50, len(rows)) - 1]
    slow = rows[rank(95, len(rows)) - 1]
    waits = [divide(observe(typical, reading, **about), label=f"typical (p50 of {len(rows)}, request {typical.id})")]
    if slow is not typical:
        word = "slowest" if rank(95, len(rows)) == len(rows) else "p95"
        waits.append(divide(observe(slow, reading, **about), label=f"slow ({word} of {len(rows)}, request {slow.id})"))
    return tuple(waits)


def observe(
    row: RequestRecord,
    reading: Reading | None,
    *,
    counts: Counted | None = None,
    network_s: float | None = None,
    remote: bool = False,
) -> Observed:
    """What is known of a row: the server's own times first, its counters second, then the run's undisturbed requests."""
    assert row.ttft_s is not None and row.tpot_s is not None, "only rows with two tokens can be divided"
    server = row.server or {}
    queue, how_queue = server.get("queue_s"), "the server's own clock"
    prefill, how_prefill = server.get("prefill_s"), "the server's own clock"
    late = max((row.sent_s or row.due_s) - row.due_s, 0.0)
    connect = row.connect_s or 0.0
    own = row.ttft_s - late - connect - (network_s or 0.0)
    if queue is None and counts is not None and counts.no_queue:
        # nobody waited: then all that is not outside the server is reading, others' steps in between included
        outside = max(counts.outside_s - (network_s or 0.0), 0.0)
        queue, how_queue = counts.queue_s, f"the server's own counters, mean of {counts.n}"
        prefill, how_prefill = (
            max(own - outside - queue, 0.0),
            "TTFT less queue and what the server's own TTFT leaves out",
        )
    elif queue is None and reading is not None and row.isl is not None:
        expected = reading.expected_s(row.isl - (row.cached_tok or 0))
        queue, how_queue = max(own - expected, 0.0), f"TTFT beyond {fmt_s(expected)}, {reading.how}"
        if queue < 0.1 * own:
            queue = 0.0  # within what requests differ by anyway
        if prefill is None and reading.s_per_tok is not None:
            prefill, how_prefill = reading.s_per_tok * (row.isl - (row.cached_tok or 0)), f"slope of {reading.how}"
    tokens = row.osl or len(row.token_s)
    gap = percentile(row.itl_s, 50)
    return Observed(
        ttft_s=row.ttft_s, itl_s=gap if gap is not None else row.tpot_s, isl=row.isl, osl=tokens, queue_s=queue,
        how_queue=how_queue, prefill_s=prefill, how_prefill=how_prefill, late_s=late, connect_s=connect, network_s=network_s, remote=remote,
        decode_s=row.chunk_s[-1] - row.chunk_s[0],
    )  # fmt: skip


# --- from typed numbers ---------------------------------------------------------------------------------------------


def observe_typed(
    *,
    ttft_s: float | None,
    itl_s: float | None,
    e2e_s: float | None,
    isl: int | None,
    osl: int | None,
    prefill_rate: float | None,
) -> Observed:
    """What someone typed, completed by arithmetic where that is possible.

    Raises ServefitError for one latency number alone: it hides two bottlenecks with different fixes.
    """
    if ttft_s is None and isl and prefill_rate:
        ttft_s = formulas.reading_s(isl, prefill_rate)
    if e2e_s is not None and osl and osl > 1:
        if ttft_s is not None and itl_s is None:
            itl_s = (e2e_s - ttft_s) / (osl - 1)
        elif itl_s is not None and ttft_s is None:
            ttft_s = e2e_s - (osl - 1) * itl_s
    if ttft_s is None or itl_s is None:
        given = [(n, v) for n, v in (("TTFT", ttft_s), ("ITL", itl_s), ("the whole time", e2e_s)) if v is not None]
        what = f"One number ({given[0][0]}, {fmt_s(given[0][1])}) does" if given else "No latency was given; that does"
        raise ServefitError(
            f"{what} not say which half is slow: starting and typing have different causes and different fixes.",
            hint="Give both --ttft and --itl (p50 and p95), or measure both: servefit measure URL --isl N --osl N.",
        )
    if osl is None:
        raise ServefitError(
            "The answer's length is missing, so the two halves cannot be weighed against each other.",
            hint="Add --osl N (and --isl N): a latency means nothing without its token shape.",
        )
    for name, value, most in (
        ("time", ttft_s, 1e6),
        ("gap", itl_s, 1e6),
        ("prompt", isl or 0, 1e9),
        ("answer", osl, 1e9),
    ):
        if value > most:
            raise ServefitError(
                f"A {name} of {value:g} is out of all proportion.", hint="Check the unit: a bare number is in ms."
            )
    if osl < 1 or (ttft_s == 0 and itl_s == 0):
        raise ServefitError("Nothing was waited for: these numbers are zero.", hint="Leave out what was not observed.")
    if ttft_s < 0 or itl_s < 0:
        raise ServefitError(
            f"These numbers leave a negative time (TTFT {fmt_s(ttft_s)}, ITL {fmt_s(itl_s)}).",
            hint="The whole time must be at least the first token plus the writing; check the units.",
        )
    return Observed(ttft_s=ttft_s, itl_s=itl_s, isl=isl, osl=osl, prefill_tok_per_s=prefill_rate)
