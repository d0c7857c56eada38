"""What very many simulated requests come to, counted as they end and then forgotten: bins, sums and the most at once."""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from servefit.engine import kernel_time
from servefit.stats import Spread, rank

BLOCK = 1024
"""Requests in the order they are due whose waits are summed together, to compare the later half with the earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What makes an answer good; None asks for nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """One configuration under a load too long to keep: what `Outcome` says of it, without a column a request.

    Percentiles are the middle of a bin, within 0.003% of an observation; counts, maxima and times are exact.
    """

    n: int
    finished: int
    rejected: int
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    itl_s: Spread
    good: int
    """Finished requests that met every limit."""
    output_tok: int
    input_tok: int
    """Tokens of the finished requests."""
    failures_as_inf: dict[str, dict[int, float | None]]
    """Figure -> percentile -> seconds, every refused request as +inf; None where there is none."""
    duration_s: float
    busy_s: float
    """Time in steps, all replicas together."""
    end_s: float
    steps: int
    preemptions: int
    in_flight_peak: int
    early_wait_s: float
    """Mean wait for the first token of those of the earlier half, by when they were due."""
    late_wait_s: float
    late: int
    """How many got their first token after the last request was due."""
    peak_kv_blocks: int
    kv_blocks: int | None


class Bins:
    """How many values fell into each bin of `kernel_time.fold`; their sum and the largest, exactly as they were."""

    def __init__(self, code: Any) -> None:
        import numpy as np

        self._code = code
        self.counts: Any = np.zeros(kernel_time.PER_OCTAVE * kernel_time.OCTAVES, np.int64)
        self.total, self.most = 0.0, 0.0

    def add(self, values: Any) -> None:
        """Count single values."""
        import numpy as np

        one: Any = np.ones(len(values), np.int64)
        self.add_series(len(values), (one, one, values, np.zeros(len(values))))

    def add_series(self, n: int, series: tuple[Any, ...]) -> None:
        """Count the first n arithmetic series (see `outcome.Gaps`)."""
        if not n:
            return
        self._code.fold(n, series, self.counts)
        weight, k, first, delta = (column[:n] for column in series)
        self.total += float((weight * (k * first + delta * (k * (k - 1) // 2))).sum())
        self.most = max(self.most, float(first.max()), float((first + delta * (k - 1)).max()))

    def spread(self) -> Spread:
        """Percentiles, mean and maximum."""
        n = int(self.counts.sum())
        if not n:
            return Spread(n=0)
        found = self.percentiles((50, 90, 95, 99))
        return Spread(n=n, **{f"p{p}": at for p, at in found.items()}, mean=self.total / n, max=self.most)

    def percentiles(self, wanted: tuple[int, ...], *, failed: int = 0) -> dict[int, float | None]:
        """Percentiles of the values and of so many failures more, each +inf; None where there are none."""
        import numpy as np

        upto = np.cumsum(self.counts)
        n = int(upto[-1]) + failed
        ranks = {p: rank(p, n) if n else None for p in wanted}
        return {
            p: None if r is None else math.inf if r > upto[-1] else _middle_s(int(np.searchsorted(upto, r)))
            for p, r in ranks.items()
        }


def _middle_s(place: int) -> float:
    power, step = divmod(place, kernel_time.PER_OCTAVE)
    return math.ldexp(0.5 + (step + 0.5) / (2 * kernel_time.PER_OCTAVE), power + kernel_time.LEAST_E)


class Count:
    """The running totals of requests that came and went."""

    def __init__(self, limits: Limits, code: Any) -> None:
        import numpy as np

        self._limits = limits
        self.ttft_s, self.tpot_s, self.e2e_s, self.itl_s = (Bins(code) for _ in range(4))
        self._n = self._finished = self._rejected = self._good = self._output_tok = self._input_tok = (
            self._preemptions
        ) = 0
        self._first_due_s, self._last_due_s = math.inf, -math.inf
        none = np.zeros(0)
        self._late_s, self._begun_s, self._ended_s = none, none, none
        self._begun = self._ended = self._peak = 0
        self._waits: dict[int, list[float]] = {}

    def came(self, due_s: Any, refused: Any) -> None:
        """These are due; those who are refused are never in flight."""
        import numpy as np

        self._n += len(due_s)
        if len(due_s):
            self._first_due_s = min(self._first_due_s, float(due_s.min()))
            self._last_due_s = max(self._last_due_s, float(due_s.max()))
        self._begun_s = np.concatenate([self._begun_s, due_s[~refused]])

    def went(
        self, ok: Any, *, number: Any, due_s: Any, first_s: Any, last_s: Any, isl: Any, osl: Any, preempted: Any
    ) -> None:
        """These were answered (`ok`) or refused; `number` counts requests in the order in which they were due."""
        import numpy as np

        self._preemptions += int(preempted.sum())
        self._rejected += int((~ok).sum())
        number, due_s, first_s, last_s, osl = (column[ok] for column in (number, due_s, first_s, last_s, osl))
        ttft, e2e, some = first_s - due_s, last_s - due_s, osl > 1
        tpot = (last_s - first_s) / np.maximum(osl - 1, 1)
        self._finished += len(due_s)
        self._input_tok += int(isl[ok].sum())
        self._output_tok += int(osl.sum())
        limits = self._limits
        good: Any = np.ones(len(due_s), bool)
        if limits.ttft_s is not None:
            good &= ttft <= limits.ttft_s
        if limits.tpot_s is not None:
            good &= ~some | (tpot <= limits.tpot_s)
        if limits.e2e_s is not None:
            good &= e2e <= limits.e2e_s
        self._good += int(good.sum())
        self.ttft_s.add(ttft)
        self.e2e_s.add(e2e)
        self.tpot_s.add(tpot[some])
        self._ended_s = np.concatenate([self._ended_s, last_s])
        self._late_s = np.concatenate([self._late_s, first_s])
        self._late_s = self._late_s[self._late_s > self._last_due_s]
        blocks, where = np.unique(number // BLOCK, return_inverse=True)
        sums, counts = np.bincount(where, ttft, len(blocks)), np.bincount(where, minlength=len(blocks))
        for block, total, count in zip(blocks.tolist(), sums.tolist(), counts.tolist(), strict=True):
            so_far = self._waits.setdefault(block, [0.0, 0])
            so_far[0] += total
            so_far[1] += count

    def until(self, known_s: float) -> None:
        """Everyone who is due, and every answer that ends, before `known_s` has been told: count who was there at once."""
        import numpy as np

        begun, ended = np.sort(self._begun_s), np.sort(self._ended_s)
        n, gone = np.searchsorted(begun, known_s), np.searchsorted(ended, known_s)
        inside = self._begun + np.arange(1, n + 1) - self._ended - np.searchsorted(ended, begun[:n], side="right")
        self._peak = int(inside.max(initial=self._peak))
        self._begun, self._ended = self._begun + int(n), self._ended + int(gone)
        self._begun_s, self._ended_s = begun[n:], ended[gone:]

    def totals(self, **engine: Any) -> Totals:
        """All of it, with what the engine says: busy_s, end_s, steps, peak_kv_blocks, kv_blocks."""
        early, late = self._halves()
        return Totals(
            n=self._n,
            finished=self._finished,
            rejected=self._rejected,
            ttft_s=self.ttft_s.spread(),
            tpot_s=self.tpot_s.spread(),
            e2e_s=self.e2e_s.spread(),
            itl_s=self.itl_s.spread(),
            good=self._good,
            output_tok=self._output_tok,
            input_tok=self._input_tok,
            failures_as_inf={
                name: bins.percentiles((50, 95, 99), failed=self._rejected)
                for name, bins in (("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s), ("e2e_s", self.e2e_s))
            },
            duration_s=engine["end_s"] - self._first_due_s if self._n else 0.0,
            preemptions=self._preemptions,
            in_flight_peak=self._peak,
            early_wait_s=early,
            late_wait_s=late,
            late=int((self._late_s > self._last_due_s).sum()),
            **engine,
        )

    def _halves(self) -> tuple[float, float]:
        """Mean waits of the earlier and the later half; the block in the middle counts to both, by its share."""
        blocks = [self._waits[block] for block in sorted(self._waits)]
        half = self._finished // 2
        early = 0.0
        for (total, count), upto in zip(blocks, accumulate(int(count) for _, count in blocks), strict=True):
            early += total * min(max((half - (upto - count)) / count, 0.0), 1.0)
        rest = self._finished - half
        return early / half if half else 0.0, (self.ttft_s.total - early) / rest if rest else 0.0
