"""Whether a run may be believed: the client's own lag, the load that was asked against what was achieved, the counts."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from servefit.host import others
from servefit.measure.overhead import ALLOWED_EVENT_S, ALLOWED_TTFT_S
from servefit.measure.seen import Seen
from servefit.measure.window import about_trend, find_window
from servefit.records import Finding, RequestRecord, Run, RunHeader
from servefit.stats import in_order, is_slowest, percentile
from servefit.wire.client import Counters
from servefit.workload.workload import Workload

if TYPE_CHECKING:
    from servefit.spill import Ranked

NEAR_CORES, PAST_CORES = 0.7, 0.9
"""Of one core: above the first a client is near its limit and says so, above the second it is past it, and the run suspect."""
_LEVELS = ("note", "suspect", "invalid")


@dataclass(slots=True)
class Health:
    """What was seen of the client and its machine while the load ran."""

    started_ns: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    usage: others.Usage = field(default_factory=others.Usage)
    """What the rest of the machine did meanwhile."""
    loopback: bool = False
    """The server runs on this machine, and so shares its cores with everything else here."""
    server_pids: frozenset[int] = frozenset()
    overhead: dict[str, Any] | None = None
    """What our client adds against a null server, learnt before the load."""
    clock: str = "user"
    counters: Counters = field(default_factory=Counters)
    late_s: "Sequence[float] | Ranked" = ()
    codes: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    tokens: int = 0
    shared: int = 0
    first_shared: int = 0
    """Requests whose first token came in one read with the next: their TTFT is an upper bound."""
    first_shared_s: float = 0.0
    """By how much at most, in the worst of them: the tokens that it waited for, at that request's TPOT."""
    _before: others.Reading | None = None

    def start(self) -> None:
        """Take the readings before the first request."""
        self.started_ns = time.monotonic_ns()
        self._before = others.read(self.server_pids)
        self.cpu_s = time.process_time()

    def stop(self) -> None:
        """Take the readings after the last."""
        if not self.started_ns:
            return
        self.wall_s = (time.monotonic_ns() - self.started_ns) / 1e9
        self.cpu_s = time.process_time() - self.cpu_s
        self.usage = others.between(self._before, others.read(self.server_pids))

    def saw(self, row: RequestRecord) -> None:
        """Count what the rows say of themselves."""
        self.rows += 1
        self.codes.update(row.findings)
        self.tokens += len(row.chunk_s)
        self.shared += int((row.server or {}).get("shared_reads", 0))
        if (together := int((row.server or {}).get("first_read_chunks", 1))) > 1:
            self.first_shared += 1
            self.first_shared_s = max(self.first_shared_s, (together - 1) * (row.tpot_s or 0.0))

    def take(self, counters: Counters, late_s: "Sequence[float] | Ranked", *, clock: str) -> None:
        """Take over what the client counted, and how late each request was sent."""
        self.counters, self.clock = counters, clock
        self.late_s = in_order(late_s)

    def to_json(self) -> dict[str, Any]:
        """The figures for the run's header."""
        seen = self.counters
        return {
            "wall_s": round(self.wall_s, 6),
            "cpu_s": round(self.cpu_s, 6),
            "cpu_cores": round(self.cpu_s / self.wall_s, 4) if self.wall_s > 0 else None,
            **self.usage.to_json(),
            "late_send_p99_s": percentile(self.late_s, 99),
            "late_send_max_s": self.late_s[-1] if len(self.late_s) else None,
            "read_lag_mean_s": seen.lag_ns_sum / seen.stamped / 1e9 if seen.stamped else None,
            "read_lag_max_s": seen.lag_ns_max / 1e9 if seen.stamped else None,
            "reads": seen.reads,
            "kernel_stamped_reads": seen.stamped,
            "wakeups": seen.wakeups,
            "connects": seen.connects,
            "rtt_s": seen.rtt_ns_min / 1e9 if seen.rtt_ns_min is not None else None,
            "replaced_connections": seen.replaced,
            "clock_steps": seen.clock_steps,
            "busy_max": seen.busy_max,
            "tokens_sharing_a_read_frac": self.shared / (self.tokens + self.shared) if self.tokens else None,
            "first_tokens_sharing_a_read": self.first_shared,
            "overhead": self.overhead,
        }


# --- the verdict -------------------------------------------------------------------------------------------------------


CLIENT_CODES = frozenset({
    "client_saturated", "client_near_limit", "late_sends", "user_clock", "client_lag", "tokens_share_reads",
    "first_token_shared", "overhead",
    "clock_step", "steal", "busy_machine", "client_waited",
})  # fmt: skip
"""Findings about a client or its machine; all others are about the rows, whoever sent them."""


def judge_run(run: Run, health: Health, workload: Workload, *, interrupted: bool = False) -> RunHeader:
    """The final header: client figures, findings, duration and the verdict, which is the worst finding's level."""
    own = [*_about_client(health, workload), *_about_machine(health)]
    header = replace(run.header, clock="kernel" if health.clock == "kernel" else "user", client=health.to_json())
    return judge_rows(replace(run, header=header), workload, own, interrupted=interrupted)


def judge_rows(run: Run, workload: Workload, own: Sequence[Finding], *, interrupted: bool = False) -> RunHeader:
    """The header with what the rows say, beside `own`, what their clients say of themselves."""
    rows = run.load_rows
    seen = Seen.of(rows)
    found = [
        *_about_rows(seen),
        *own,
        *_about_load(seen, workload),
        *about_trend(rows, workload),
        *_about_lengths(seen, run.header, workload),
        *_about_sample(seen),
    ]
    if interrupted:
        found.append(Finding(code="interrupted", level="note", message="The run was interrupted; it is complete up to there.",
                             hint="Go on with --resume."))  # fmt: skip
    return replace(
        run.header,
        window_s=find_window(rows, workload),
        duration_s=seen.span.s if seen.n else None,
        finished=not interrupted,
        verdict=worst(found),
        findings=tuple(found),
    )


def worst(findings: Sequence[Finding]) -> Literal["valid", "suspect", "invalid"]:
    """The verdict of the worst of the findings."""
    levels = [_LEVELS.index(f.level) for f in findings]
    return ("valid", "suspect", "invalid")[max(levels, default=0)]


def _about_rows(seen: Seen) -> list[Finding]:
    out: list[Finding] = []
    failed = seen.n - seen.ok
    if seen.passed_unexpectedly:
        out.append(Finding(code="unexpected_pass", level="note",
                           message=f"{seen.passed_unexpectedly} requests succeeded on a target that is expected to fail."))  # fmt: skip
    kinds = ", ".join(f"{count} {status}" for status, count in seen.by_status.most_common() if status != "ok")
    if failed and failed == seen.n:
        level: Literal["note", "invalid"] = "note" if seen.meant_to_fail == seen.n else "invalid"
        out.append(Finding(code="all_failed", level=level, message=f"All {seen.n} requests failed: {kinds}.",
                           hint="No latency was observed."))  # fmt: skip
    elif failed:
        share = failed / seen.n
        out.append(Finding(code="failures", level="suspect" if share > 0.05 else "note",
                           message=f"{failed} of {seen.n} requests failed ({kinds}).",
                           hint="Latencies are of the successes; the failures count against goodput."))  # fmt: skip
    if limited := seen.by_status["rate_limited"]:
        out.append(Finding(code="rate_limited", level="suspect",
                           message=f"{limited} requests were rate limited (429): the service refused them, it was not slow.",
                           hint="Lower the rate, or ask for a higher limit."))  # fmt: skip
    return out


def _about_client(health: Health, workload: Workload) -> list[Finding]:
    """Whether the client itself stood in the way."""
    out: list[Finding] = []
    busy = health.cpu_s / health.wall_s if health.wall_s > 1 else 0.0
    if busy > NEAR_CORES:
        past = busy > PAST_CORES
        message = (
            f"This client used {busy:.0%} of a core, {'all that one can give' if past else 'near what one can give'}: one core holds about "
            f"{(health.tokens + health.shared) / health.cpu_s:,.0f} tokens/s, {health.rows / health.cpu_s:,.0f} requests/s of this load."
        )
        out.append(Finding(code="client_saturated" if past else "client_near_limit", level="suspect" if past else "note",
                           message=message, hint="Use --workers N for N cores, or fewer streams."))  # fmt: skip
    late = percentile(health.late_s, 99)
    if late is not None and late > 0.010 and workload.concurrency is None:
        out.append(Finding(code="late_sends", level="suspect" if late > 0.05 else "note",
                           message=f"1% of the requests were sent {late * 1e3:.0f} ms or more after they were due.",
                           hint="Latency counts from the due time; beside it stands the time from sending."))  # fmt: skip
    seen = health.counters
    if health.clock != "kernel" and seen.reads:
        out.append(Finding(code="user_clock", level="note",
                           message="Arrivals carry this program's clock: the kernel gave no receive times here."))  # fmt: skip
    if seen.lag_ns_max > 200_000_000 and health.clock != "kernel":
        out.append(Finding(code="client_lag", level="suspect", message="The client read late."))
    shared = health.shared / (health.tokens + health.shared) if health.tokens else 0.0
    if shared > 0.1:
        behind = busy > PAST_CORES or (seen.stamped > 0 and seen.lag_ns_sum / seen.stamped / 1e9 > 0.005)
        out.append(Finding(code="tokens_share_reads", level="suspect",
                           message=f"{shared:.0%} of the tokens arrived in the same read as the one before "
                                   f"({'this client was behind' if behind else 'the server or a proxy sends in bursts'}).",
                           hint="Gaps inside a burst are not known and are spread evenly."))  # fmt: skip
    if health.first_shared * 100 > health.rows:
        out.append(Finding(code="first_token_shared", level="suspect" if health.first_shared * 20 > health.rows else "note",
                           message=f"{health.first_shared} of {health.rows} first tokens were read together with the next ones: "
                                   f"their TTFT is an upper bound, too high by up to {health.first_shared_s * 1e3:.0f} ms.",
                           hint="The client or the machine was busy just then (--realtime helps), or the server sends in bursts."))  # fmt: skip
    added = health.overhead or {}
    if added.get("ttft_p50_s", 0.0) > ALLOWED_TTFT_S or added.get("event_p99_s", 0.0) > ALLOWED_EVENT_S:
        out.append(Finding(code="overhead", level="note" if health.clock == "kernel" else "suspect",
                           message=f"Against a null server this client adds {added['ttft_p50_s'] * 1e3:.1f} ms to a first token and "
                                   f"up to {added['event_p99_s'] * 1e3:.1f} ms (p99) to any other.",
                           hint="A busy machine does that; measure again when it is quiet."))  # fmt: skip
    if seen.clock_steps:
        out.append(Finding(code="clock_step", level="note", message="The wall clock was set during the run."))
    return out


def _about_machine(health: Health) -> list[Finding]:
    """Whether other programs took what the server or the client needed."""
    use = health.usage
    out: list[Finding] = []
    if use.steal_frac is not None and use.steal_frac > 0.05:
        out.append(Finding(code="steal", level="suspect",
                           message=f"The hypervisor took {use.steal_frac:.0%} of this machine's time."))  # fmt: skip
    if use.others is None or health.wall_s < 0.5:
        return out
    share = use.others / use.cores
    apart = health.server_pids or not health.loopback
    if share > 0.1 and apart:
        matters = share > 0.25 and (health.loopback or (use.idle_frac or 0.0) < 0.1)
        who = "Programs other than the server and this client" if health.loopback else "Other programs"
        out.append(Finding(code="busy_machine", level="suspect" if matters else "note",
                           message=f"{who} used {use.others:.1f} of this machine's {use.cores} cores meanwhile.",
                           hint="The server had to share with them: measure again when the machine is quiet."
                                if health.loopback else "Arrivals carry the kernel's time, so only sending can be late."))  # fmt: skip
    elif not apart and (use.idle_frac or 0.0) < 0.1:
        out.append(Finding(code="busy_machine", level="note",
                           message=f"This machine's {use.cores} cores were full, and what is the server's share cannot be seen here."))  # fmt: skip
    if use.waited_frac is not None and use.waited_frac > 0.1:
        out.append(Finding(code="client_waited", level="note" if health.clock == "kernel" else "suspect",
                           message=f"This client waited for a core {use.waited_frac:.0%} of the time."))  # fmt: skip
    return out


def _about_load(seen: Seen, workload: Workload) -> list[Finding]:
    """Whether the load that was asked is the load that was offered."""
    if workload.rate_req_per_s is None or seen.sent < 20 or workload.arrivals == "burst":
        return []
    wanted, took = seen.sent_due_span.s, seen.sent_span.s
    if wanted > 0 and took > 1.05 * wanted + 0.05:
        return [Finding(code="rate_not_achieved", level="invalid" if took > 1.2 * wanted else "suspect",
                        message=f"The requests went out over {took:.2f} s instead of {wanted:.2f} s.",
                        hint="This client could not offer the rate: lower it, or use --workers N for N cores.")]  # fmt: skip
    return []


def _about_lengths(seen: Seen, header: RunHeader, workload: Workload) -> list[Finding]:
    """Whether as much was read and written as was asked, and by whose count."""
    out: list[Finding] = []
    codes = seen.codes
    fewer = codes["fewer_tokens_than_asked"]
    if seen.ok and fewer:
        out.append(Finding(code="short_outputs", level="suspect" if fewer * 10 > seen.ok else "note",
                           message=f"{fewer} of {seen.ok} answers are shorter than asked: the model stopped by itself.",
                           hint="The server takes no ignore_eos; compare runs by TPOT, not by E2E."))  # fmt: skip
    sentences = {
        "no_usage": ("suspect", "answers carry no usage: tokens are counted as chunks"),
        "usage_mismatch": ("suspect", "answers have a usage that cannot be right: tokens are counted as chunks"),
        "several_tokens_a_chunk": ("note", "answers carry several tokens in a chunk: gaps are spread over them"),
        "not_streamed": ("suspect", "answers came whole, not streamed: their TTFT is their E2E"),
        "more_tokens_than_asked": ("suspect", "answers are longer than asked"),
        "compressed": ("note", "answers are compressed though none was asked: tokens may wait in the compressor"),
        "comments": ("note", "answers hold keep-alive comments: a proxy stands between; they start no clock"),
        "no_http_end": ("note", "answers ended as a stream and not as HTTP"),
    }
    for code, (level, sentence) in sentences.items():
        if codes[code]:
            out.append(Finding(code=code, level=level, message=f"{codes[code]} {sentence}."))  # type: ignore[arg-type]
    out.extend(_about_cache(seen, header, workload))
    estimated = header.load.get("prompt_source") in {"estimate", "given"}
    if estimated and seen.ok:
        if seen.told_isl:
            told = f"usage says {seen.told_isl_tok / seen.asked_isl_tok:.2f} times that"
        else:
            told = "and the server does not say how many it read"
        out.append(Finding(code="prompt_estimate", level="note",
                           message=f"Prompt lengths were estimated at 4 characters a token; {told}."))  # fmt: skip
    elif seen.isl_off * 10 > seen.told_isl:
        out.append(Finding(code="isl_off", level="note",
                           message=f"{seen.isl_off} of {seen.told_isl} prompts were not as long as asked; the server's count stands."))  # fmt: skip
    return out


def _about_cache(seen: Seen, header: RunHeader, workload: Workload) -> list[Finding]:
    """Whether prompts were served from a cache: by the rows' own count, else by the server's counters."""
    share, whose = 0.0, "of the prompt tokens came from the server's cache"
    if seen.told_cached:
        share = seen.cached_tok / seen.cacheable_tok
    elif queries := header.server.get("cache_queries_tok"):
        share, whose = (
            header.server.get("cache_hits_tok", 0) / queries,
            "of the prompt tokens hit the server's cache, say its counters",
        )
    if share <= 0.1:
        return []
    meant = (
        workload.shared_prefix_tok
        or workload.turns > 1
        or workload.trace
        or header.load.get("prompt_source") == "given"
    )
    return [Finding(code="cached_prefix", level="note" if meant else "suspect", message=f"{share:.0%} {whose}.",
                    hint="TTFT is that of cached prompts." if meant else
                         "No two prompts of this run are alike, so another cache or a counting error stands behind it.")]  # fmt: skip


def _about_sample(seen: Seen) -> list[Finding]:
    """Whether there are enough requests for the percentiles that are printed."""
    n = seen.ok
    slow = [p for p in (95, 99) if n and is_slowest(p, n)]
    if not slow:
        return []
    names = " and ".join(f"p{p}" for p in slow)
    need = max(math.ceil(100 / (100 - p)) for p in slow)
    return [Finding(code="few_requests", level="note", message=f"{names} of {n} requests: simply the slowest one.",
                    hint=f"Measure {need} or more for a percentile that is not the maximum.")]  # fmt: skip
