"""Whether a run may be believed: the client's own lag, the load that was asked against what was achieved, the counts."""

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from servefit.measure.client import Counters
from servefit.records import Finding, RequestRecord, Run, RunHeader
from servefit.stats import is_slowest, percentile
from servefit.workload.workload import Workload

_LEVELS = ("note", "suspect", "invalid")


@dataclass(slots=True)
class Health:
    """What was seen of the client and its machine while the load ran."""

    started_ns: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    others_cpu_s: float | None = None
    steal_s: float | None = None
    clock: str = "user"
    counters: Counters = field(default_factory=Counters)
    late_s: list[float] = field(default_factory=list)
    codes: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    tokens: int = 0
    shared: int = 0
    _before: tuple[float, float, float] | None = None

    def start(self) -> None:
        """Take the readings before the first request."""
        self.started_ns = time.monotonic_ns()
        self._before = _machine_cpu_s()
        self.cpu_s = time.process_time()

    def stop(self) -> None:
        """Take the readings after the last."""
        if not self.started_ns:
            return
        self.wall_s = (time.monotonic_ns() - self.started_ns) / 1e9
        self.cpu_s = time.process_time() - self.cpu_s
        after = _machine_cpu_s()
        if self._before is not None and after is not None:
            busy, steal, _ = (b - a for a, b in zip(self._before, after, strict=True))
            self.others_cpu_s, self.steal_s = max(0.0, busy - self.cpu_s), steal

    def saw(self, row: RequestRecord) -> None:
        """Count what the rows say of themselves."""
        self.rows += 1
        self.codes.update(row.findings)
        self.tokens += len(row.chunk_s)
        self.shared += int((row.server or {}).get("shared_reads", 0))

    def take(self, counters: Counters, late_ns: Sequence[int], *, clock: str) -> None:
        """Take over what the client counted."""
        self.counters, self.clock = counters, clock
        self.late_s = [late / 1e9 for late in late_ns]

    def to_json(self) -> dict[str, Any]:
        """The figures for the run's header."""
        seen = self.counters
        cores = os.cpu_count() or 1
        return {
            "wall_s": round(self.wall_s, 6),
            "cpu_s": round(self.cpu_s, 6),
            "cpu_cores": round(self.cpu_s / self.wall_s, 4) if self.wall_s > 0 else None,
            "others_cores": _per_wall(self.others_cpu_s, self.wall_s),
            "steal_frac": _per_wall(self.steal_s, self.wall_s * cores),
            "late_send_p99_s": percentile(self.late_s, 99),
            "late_send_max_s": max(self.late_s, default=None),
            "read_lag_mean_s": seen.lag_ns_sum / seen.stamped / 1e9 if seen.stamped else None,
            "read_lag_max_s": seen.lag_ns_max / 1e9 if seen.stamped else None,
            "reads": seen.reads,
            "kernel_stamped_reads": seen.stamped,
            "wakeups": seen.wakeups,
            "connects": seen.connects,
            "replaced_connections": seen.replaced,
            "clock_steps": seen.clock_steps,
            "busy_max": seen.busy_max,
            "tokens_sharing_a_read_frac": self.shared / (self.tokens + self.shared) if self.tokens else None,
        }


def _per_wall(value: float | None, wall_s: float) -> float | None:
    return round(value / wall_s, 4) if value is not None and wall_s > 0 else None


def _machine_cpu_s() -> tuple[float, float, float] | None:
    """Busy, stolen and idle seconds of all cores since boot, from /proc/stat; None elsewhere."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        ticks = os.sysconf("SC_CLK_TCK")
        user, nice, system, idle, wait, irq, soft, steal = (int(w) / ticks for w in words[:8])
    except (OSError, ValueError, AttributeError):
        return None
    return user + nice + system + irq + soft, steal, idle + wait


# --- the verdict -------------------------------------------------------------------------------------------------------


def judge_run(run: Run, health: Health, workload: Workload, *, interrupted: bool = False) -> RunHeader:
    """The final header: client figures, findings, duration and the verdict, which is the worst finding's level."""
    rows = run.load_rows
    found = [
        *_about_rows(rows),
        *_about_client(health, workload),
        *_about_load(rows, workload),
        *_about_lengths(rows, run.header),
        *_about_sample(rows),
    ]
    if interrupted:
        found.append(Finding(code="interrupted", level="note", message="The run was interrupted; it is complete up to there.",
                             hint="Go on with --resume."))  # fmt: skip
    levels = [_LEVELS.index(f.level) for f in found]
    verdict: Literal["valid", "suspect", "invalid"] = ("valid", "suspect", "invalid")[max(levels, default=0)]
    ends = [max(row.done_s or 0.0, row.due_s) for row in rows]
    return replace(
        run.header,
        clock="kernel" if health.clock == "kernel" else "user",
        client=health.to_json(),
        duration_s=max(ends) - min(row.due_s for row in rows) if rows else None,
        finished=not interrupted,
        verdict=verdict,
        findings=tuple(found),
    )


def _about_rows(rows: Sequence[RequestRecord]) -> list[Finding]:
    out: list[Finding] = []
    failed = [row for row in rows if not row.ok]
    unexpected = [row for row in rows if row.ok and row.expected_failure]
    if unexpected:
        out.append(Finding(code="unexpected_pass", level="note",
                           message=f"{len(unexpected)} requests succeeded on a target that is expected to fail."))  # fmt: skip
    if rows and len(failed) == len(rows):
        level: Literal["note", "invalid"] = "note" if all(r.expected_failure for r in rows) else "invalid"
        out.append(Finding(code="all_failed", level=level, message=f"All {len(rows)} requests failed: {_kinds(failed)}.",
                           hint="No latency was observed."))  # fmt: skip
    elif failed:
        share = len(failed) / len(rows)
        out.append(Finding(code="failures", level="suspect" if share > 0.05 else "note",
                           message=f"{len(failed)} of {len(rows)} requests failed ({_kinds(failed)}).",
                           hint="Latencies are of the successes; the failures count against goodput."))  # fmt: skip
    if limited := sum(row.status == "rate_limited" for row in rows):
        out.append(Finding(code="rate_limited", level="suspect",
                           message=f"{limited} requests were rate limited (429): the service refused them, it was not slow.",
                           hint="Lower the rate, or ask for a higher limit."))  # fmt: skip
    return out


def _kinds(rows: Sequence[RequestRecord]) -> str:
    return ", ".join(f"{count} {status}" for status, count in Counter(r.status for r in rows).most_common())


def _about_client(health: Health, workload: Workload) -> list[Finding]:
    """Whether the client itself stood in the way."""
    out: list[Finding] = []
    busy = health.cpu_s / health.wall_s if health.wall_s > 1 else 0.0
    if busy > 0.85:
        out.append(Finding(code="client_saturated", level="suspect",
                           message=f"This client used {busy:.0%} of a core: it is near what one core can hold.",
                           hint="Use --workers, or fewer streams."))  # fmt: skip
    late = percentile(health.late_s, 99)
    if late is not None and late > 0.010 and workload.concurrency is None:
        out.append(Finding(code="late_sends", level="suspect" if late > 0.05 else "note",
                           message=f"1% of the requests were sent {late * 1e3:.0f} ms or more after they were due.",
                           hint="Latency counts from the due time; beside it stands the time from sending."))  # fmt: skip
    seen = health.counters
    if health.clock != "kernel" and health.rows:
        out.append(Finding(code="user_clock", level="note",
                           message="Arrivals carry this program's clock: the kernel gave no receive times here."))  # fmt: skip
    if seen.lag_ns_max > 200_000_000 and health.clock != "kernel":
        out.append(Finding(code="client_lag", level="suspect", message="The client read late."))
    shared = health.shared / (health.tokens + health.shared) if health.tokens else 0.0
    if shared > 0.1:
        behind = seen.lag_ns_sum / seen.stamped / 1e9 > 0.005 if seen.stamped else False
        out.append(Finding(code="tokens_share_reads", level="suspect",
                           message=f"{shared:.0%} of the tokens arrived in the same read as the one before "
                                   f"({'this client was behind' if behind else 'the server or a proxy sends in bursts'}).",
                           hint="Gaps inside a burst are not known and are spread evenly."))  # fmt: skip
    if (steal := _per_wall(health.steal_s, health.wall_s * (os.cpu_count() or 1))) is not None and steal > 0.05:
        out.append(Finding(code="steal", level="suspect",
                           message=f"The hypervisor took {steal:.0%} of this machine's time."))  # fmt: skip
    if seen.clock_steps:
        out.append(Finding(code="clock_step", level="note", message="The wall clock was set during the run."))
    return out


def _about_load(rows: Sequence[RequestRecord], workload: Workload) -> list[Finding]:
    """Whether the load that was asked is the load that was offered."""
    sent = [row.sent_s for row in rows if row.sent_s is not None]
    if workload.rate_req_per_s is None or len(sent) < 20 or workload.arrivals == "burst":
        return []
    due = [row.due_s for row in rows if row.sent_s is not None]
    wanted, took = max(due) - min(due), max(sent) - min(sent)
    if wanted > 0 and took > 1.05 * wanted + 0.05:
        return [Finding(code="rate_not_achieved", level="invalid" if took > 1.2 * wanted else "suspect",
                        message=f"The requests went out over {took:.2f} s instead of {wanted:.2f} s.",
                        hint="This client could not offer the rate; use --workers or lower it.")]  # fmt: skip
    return []


def _about_lengths(rows: Sequence[RequestRecord], header: RunHeader) -> list[Finding]:
    """Whether as much was read and written as was asked, and by whose count."""
    out: list[Finding] = []
    good = [row for row in rows if row.ok]
    codes: Counter[str] = Counter(code for row in rows for code in row.findings)
    fewer = codes["fewer_tokens_than_asked"]
    if good and fewer:
        out.append(Finding(code="short_outputs", level="suspect" if fewer * 10 > len(good) else "note",
                           message=f"{fewer} of {len(good)} answers are shorter than asked: the model stopped by itself.",
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
    cached = [row.cached_tok / row.isl for row in good if row.cached_tok and row.isl]
    if cached and sum(cached) / len(good) > 0.1:
        out.append(Finding(code="cached_prefix", level="note",
                           message=f"{sum(cached) / len(good):.0%} of the prompt tokens came from the server's cache.",
                           hint="TTFT is that of cached prompts."))  # fmt: skip
    estimated = header.load.get("prompt_source") in {"estimate", "given"}
    asked = [(row.isl_asked, row.isl) for row in good if row.isl_source == "usage" and row.isl_asked and row.isl]
    if estimated and rows:
        if asked:
            ratio = sum(isl for _, isl in asked) / sum(a for a, _ in asked)
            told = f"usage says {ratio:.2f} times that"
        else:
            told = "and the server does not say how many it read"
        out.append(Finding(code="prompt_estimate", level="note",
                           message=f"Prompt lengths were estimated at 4 characters a token; {told}."))  # fmt: skip
    elif asked and (off := sum(abs(isl - a) > max(2, a // 50) for a, isl in asked)) * 10 > len(asked):
        out.append(Finding(code="isl_off", level="note",
                           message=f"{off} of {len(asked)} prompts were not as long as asked; the server's count stands."))  # fmt: skip
    return out


def _about_sample(rows: Sequence[RequestRecord]) -> list[Finding]:
    """Whether there are enough requests for the percentiles that are printed."""
    n = sum(row.ok for row in rows)
    slow = [p for p in (95, 99) if n and is_slowest(p, n)]
    if not slow:
        return []
    names = " and ".join(f"p{p}" for p in slow)
    need = max(math.ceil(100 / (100 - p)) for p in slow)
    return [Finding(code="few_requests", level="note", message=f"{names} of {n} requests: simply the slowest one.",
                    hint=f"Measure {need} or more for a percentile that is not the maximum.")]  # fmt: skip
