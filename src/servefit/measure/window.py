"""The steady window of a run: after the cold wave of the start, before the drain of the end."""

import math
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappush, heappushpop

from servefit.packed import Packed, chosen
from servefit.records import Finding, RequestRecord, Run
from servefit.spill import Column, Ranked
from servefit.units import fmt_s
from servefit.workload.workload import Workload

LEAST = 10
"""Requests below which a window says nothing that the whole run does not."""


def find_window(rows: Sequence[RequestRecord], workload: Workload) -> tuple[float, float] | None:
    """From when to when the load was steady, in seconds since the run's start; None where no such window can be told.

    Closed loop: from the moment when every user has had the first token of its first answer (all at once at the start,
    their prompts stood in each other's way) to the last sending (after it, users find nothing left to ask). Open loop:
    from the first answer's end to the last due time. A request belongs to the window by its due time. None for a burst,
    for stages whose rate changes by intent, and where fewer than ten requests are left.
    """
    if workload.stages or (workload.concurrency is None and workload.arrivals == "burst"):
        return None
    users = workload.concurrency
    wave: list[tuple[float, int, float]] = []
    """Of a closed loop's first requests: minus when each was due, minus its place, when it was begun; the last on top."""
    last: list[float] = []
    """The latest due times."""
    start = math.inf if users is None else -math.inf
    for place, row in enumerate(rows):
        begun = row.chunk_s[0] if users is not None and row.chunk_s else row.done_s or row.due_s
        if users is None:
            start = min(start, begun)
        else:
            (heappush if place < users else heappushpop)(wave, (-row.due_s, -place, begun))
        (heappush if place < LEAST else heappushpop)(last, row.due_s)
    start = max((begun for _, _, begun in wave), default=start)
    return (start, max(last)) if len(last) == LEAST and max(last) > start <= min(last) else None


def in_window(run: Run) -> Run | None:
    """The run with only the load rows that were due in its window; None where it has none."""
    if run.header.window_s is None:
        return None
    start, end = run.header.window_s
    return replace(run, rows=chosen(run.load_rows, lambda row: start <= row.due_s <= end), gaps=None)


def window_tok_per_s(run: Run) -> float | None:
    """Output tokens that arrived in the window, of whatever request, over its length; None where there is no window."""
    if run.header.window_s is None:
        return None
    start, end = run.header.window_s
    tokens = 0
    for row in run.load_rows:
        if row.ok and row.chunk_s and row.chunk_s[-1] >= start and row.chunk_s[0] <= end:
            sizes = row.chunk_tok or (1,) * len(row.chunk_s)
            if run.gaps is not None and len(sizes) == 2:  # what came between first and last, as if evenly
                first, last = row.chunk_s
                inside = min(last, end) - max(first, start)
                tokens += round(sum(sizes) * inside / (last - first)) if last > first else sum(sizes)
                continue
            tokens += sum(k for at, k in zip(row.chunk_s, sizes, strict=True) if start <= at <= end)
    return tokens / (end - start)


def about_trend(rows: Sequence[RequestRecord], workload: Workload) -> list[Finding]:
    """Whether an open loop's queue grew: the later half waits for its first token half as long again as the earlier."""
    if workload.concurrency is not None or workload.stages or workload.arrivals == "burst":
        return []
    folder = rows.folder if isinstance(rows, Packed) else None
    due, ttft, dues = Column[float]("d", folder), Column[float]("d", folder), Ranked(folder)
    for row in rows:
        if row.ok and row.ttft_s is not None:
            due.append(row.due_s)
            ttft.append(row.ttft_s)
            dues.append(row.due_s)
    if len(due) < 2 * LEAST:
        return []
    half = dues[len(due) // 2]
    first = len(due) // 2 - dues.below(half)
    """Of those due at that very moment, so many belong to the earlier half."""
    parts = Ranked(folder), Ranked(folder)
    for at, waited in zip(due, ttft, strict=True):
        late_part = at >= half
        if at == half and first:
            late_part, first = False, first - 1
        parts[late_part].append(waited)
    early, late = (part.middle() for part in parts)
    if late < 1.5 * early + 0.05:
        return []
    return [Finding(code="queue_grows", level="suspect",
                    message=f"TTFT grew from {fmt_s(early)} to {fmt_s(late)} (medians of the two halves): the queue was still growing.",
                    hint="The rate is above what this server carries; its percentiles depend on when you stop.")]  # fmt: skip
