"""A load of any length in the memory of its queue: requests come in pieces, and what is done is counted and forgotten.

The kernels play the requests known so far and stop as they stand before they let the last of them in; then its
successors are written to the places of those that are done. Nothing is cut by that: the same jumps, to the bit.
"""

import math
from collections.abc import Iterable
from typing import Any

from servefit.engine import kernel, kernel_fleet, kernel_padded
from servefit.engine.config import EngineConfig
from servefit.engine.fewest import fleet_compiled
from servefit.engine.fleet import check_fleet
from servefit.engine.front import Piece, as_ready
from servefit.engine.jump import can_jump, kernel_compiled, limits_of, padded_compiled
from servefit.engine.outcome import NOT_DUE, OK, REJECTED, UNFINISHED
from servefit.engine.totals import Bins, Count, Limits, Totals
from servefit.physics.steptime import StepTime
from servefit.workload.columns import Columns

PIECE = 1 << 17
"""Requests drawn at a time: some 60 MB, and the cost of stopping is lost in that of simulating them."""
_PLACES = 1 << 32
_SERIES = 1 << 17
_PER_REQUEST = 10
"""Columns of whole numbers in `kernel`'s R, ISL to PREEMPTED; a request here has no follower."""


def can_flow(config: EngineConfig, router: str = "round-robin") -> bool:
    """Whether these settings are simulated piece by piece: what jumps, where numba is there."""
    known = router == "round-robin" or (router == "least-outstanding" and config.policy in ("continuous", "chunked"))
    return known and can_jump((), config) and kernel_compiled() is not None


def simulate_flow(
    pieces: Iterable[Columns],
    config: EngineConfig,
    step: StepTime,
    *,
    replicas: int = 1,
    router: str = "round-robin",
    limits: Limits | None = None,
    compiled: bool = True,
) -> Totals:
    """What `replicas` engines do with an open loop that is drawn as it is simulated (`workload.columns.pieces`).

    The figures of `simulate_fleet`: counts and maxima the same, times to the bit, percentiles from bins, off by at most 0.003%.
    Memory grows with the requests that wait or run at once, not with those that came. Ask `can_flow` first.
    """
    check_fleet(config, replicas, router)
    assert can_flow(config, router), "these settings are simulated as a whole"
    fleet = _Fleet(config, step, replicas, compiled=compiled)
    count = Count(limits or Limits(), fleet.kernel)
    for piece in as_ready(pieces, step, deal_to=replicas if router == "round-robin" else 1):
        count.came(piece.due_s, fleet.refused(piece))
        fleet.take(piece)
        if router == "round-robin":
            fleet.run_in_turn(piece, count.itl_s)
        else:
            fleet.run_fewest(piece, count.itl_s)
        fleet.give_back(count)
        count.until(min(piece.known_s, fleet.known_s()) if piece.more else math.inf)
    return count.totals(**fleet.totals())


class _Fleet:
    """The arrays of `kernel`, with a place for each request that waits or runs, and a row of queues for each replica."""

    def __init__(self, config: EngineConfig, step: StepTime, replicas: int, *, compiled: bool) -> None:
        import numpy as np

        self.kernel: Any = kernel_compiled() if compiled else kernel
        self._padded: Any = padded_compiled() if compiled else kernel_padded
        self._together: Any = fleet_compiled() if compiled else kernel_fleet
        self._config, self._replicas = config, replicas
        self._limits, self._numbers = limits_of(range(_PLACES), config, step, 0.0, None)
        wide = self._limits[kernel.WIDTH] + 2
        self._whole: list[Any] = [np.zeros(0, np.int64) for _ in range(_PER_REQUEST)]
        self._times = [np.zeros(0) for _ in range(kernel.READY + 1)]
        self._number: Any = np.zeros(0, np.int64)
        self._who: Any = self._number
        self._nobody: Any = self._number
        self._bend = (*(np.array([float(pair[j]) for pair in step.bend]) for j in (0, 1)), np.full(wide, -1.0))
        kinds = (np.int64, np.int64, np.float64, np.float64)
        self._series: Any = tuple(np.zeros(max(_SERIES, 8 * wide), kind) for kind in kinds)
        widths = (1, 1, wide, 2 * wide, config.block_tok, wide, wide, wide)
        self._queues: list[Any] = [np.zeros((replicas, width), np.int64) for width in widths]
        self._moments = [np.zeros((replicas, 1)), np.zeros((replicas, wide))]
        self._scalars: Any = np.zeros((replicas, kernel.SCALARS), np.int64)
        self._scalars[:, (kernel.FREE, kernel.LOW)] = self._limits[kernel.TOTAL]
        self._scalars[:, (kernel.PARTIAL, kernel.NEWEST)] = -1
        self._scalars[:, kernel.GROUPS] = 1
        self._floats = np.zeros((replicas, kernel.STOP + 1))
        self._floats[:, kernel.STOP] = math.inf
        self._clock = (np.zeros(replicas), np.full(replicas, math.inf))
        self._open: Any = (np.zeros(replicas, np.int64), np.zeros(replicas, np.int64))
        self._so_far: Any = np.zeros(3, np.int64)

    def refused(self, piece: Piece) -> Any:
        """Which of them are larger than the whole cache."""
        return -(-(piece.isl + piece.osl - 1) // self._limits[kernel.BLOCK_TOK]) > self._limits[kernel.TOTAL]

    def take(self, piece: Piece) -> None:
        """Give each a place of one that is done, in the order in which they are ready; more places where they are few."""
        import numpy as np

        n, free = len(piece.ready_s), np.nonzero(self._whole[kernel.STATUS] == NOT_DUE)[0]
        if n > len(free):
            had = len(self._number)
            more = max(n - len(free), had // 4)
            free = np.concatenate([free, np.arange(had, had + more)])
            self._whole = [np.concatenate([column, np.zeros(more, np.int64)]) for column in self._whole]
            self._times = [np.concatenate([column, np.zeros(more)]) for column in self._times]
            self._number = np.concatenate([self._number, np.zeros(more, np.int64)])
            self._whole[kernel.STATUS][had:] = NOT_DUE
            self._nobody = np.full(had + more, -1)
        self._who = who = free[:n]
        self._number[who] = piece.number
        starts = {kernel.ISL: piece.isl, kernel.OSL: piece.osl, kernel.FINISH: -1, kernel.STATUS: UNFINISHED}
        for j, column in enumerate(self._whole):
            column[who] = starts.get(j, 0)
        for j, value in enumerate((piece.due_s, math.nan, math.nan, 0.0, 0.0)):
            self._times[j][who] = value

    def run_in_turn(self, piece: Piece, gaps: Bins) -> None:
        """Deal them out, and let each replica come to the last of its own."""
        by_replica = piece.replica.argsort(kind="stable")
        ends = piece.replica[by_replica].searchsorted(range(self._replicas + 1))
        padded = self._config.policy in ("none", "static", "dynamic")
        run = self._padded.run_padded if padded else self.kernel.run_together
        for s in range(self._replicas):
            part = by_replica[ends[s] : ends[s + 1]]
            self._add(s, self._who[part], piece.ready_s[part])
            scalars, floats = self._scalars[s], self._floats[s]
            if scalars[kernel.A_HEAD] == scalars[kernel.A_TAIL] and piece.more:
                continue
            floats[kernel.UNTIL] = math.inf
            floats[kernel.STOP] = self._moments[0][s][scalars[kernel.A_TAIL] - 1] if piece.more else math.inf
            whole = (*self._whole, self._nobody, self._nobody[:0], *(queue[s] for queue in self._queues))
            times = (*self._times, *(moment[s] for moment in self._moments), *self._bend)
            done = False
            while not done:
                scalars[kernel.SERIES] = 0
                done = run(whole, times, scalars, floats, self._limits, self._numbers, self._series)
                gaps.add_series(int(scalars[kernel.SERIES]), self._series)

    def _add(self, s: int, who: Any, ready_s: Any) -> None:
        """More arrivals for one replica; its queues begin at their beginnings again."""
        import numpy as np

        scalars = self._scalars[s]
        heads = ((0, kernel.A_HEAD, kernel.A_TAIL), (1, kernel.W_HEAD, kernel.W_TAIL))
        (a, b), (c, d) = ((int(scalars[head]), int(scalars[tail])) for _, head, tail in heads)
        short = (b - a) + (d - c) + len(who) - self._queues[0].shape[1]
        if short > 0:
            more: Any = np.zeros((self._replicas, short + short // 4), np.int64)
            self._queues[:2] = [np.concatenate([queue, more], axis=1) for queue in self._queues[:2]]
            self._moments[0] = np.concatenate([self._moments[0], more.astype(np.float64)], axis=1)
        arriving, waiting, at = self._queues[0][s], self._queues[1][s], self._moments[0][s]
        coming = b - a
        for row, fresh in ((arriving, who), (at, ready_s)):
            row[:coming] = row[a:b].copy()
            row[coming : coming + len(fresh)] = fresh
        waiting[: d - c] = waiting[c:d].copy()
        scalars[kernel.A_HEAD], scalars[kernel.A_TAIL] = 0, coming + len(who)
        scalars[kernel.W_HEAD], scalars[kernel.W_TAIL] = 0, d - c

    def run_fewest(self, piece: Piece, gaps: Bins) -> None:
        """Each to the replica with the fewest that are not done."""
        import numpy as np

        so_far, series = self._so_far, kernel_fleet.SERIES_SO_FAR
        so_far[:] = 0, 0, piece.more
        whole = (*self._whole, self._nobody, self._nobody[:0], self._who, *(self._nobody[:0] for _ in range(7)))
        times = (*self._times, piece.ready_s, self._moments[1][0], *self._bend)
        while not self._together.run_fleet(
            so_far, whole, times, self._scalars, self._floats, self._limits, self._numbers, self._series,
            tuple(self._queues), tuple(self._moments), self._clock, self._open,
        ):  # fmt: skip
            if so_far[series] + 2 * self._limits[kernel.WIDTH] + 8 > len(self._series[0]):
                gaps.add_series(int(so_far[series]), self._series)
                so_far[series] = 0
            else:
                self._queues[:2] = [np.concatenate([queue, 0 * queue], axis=1) for queue in self._queues[:2]]
                self._moments[0] = np.concatenate([self._moments[0], 0 * self._moments[0]], axis=1)
        gaps.add_series(int(so_far[series]), self._series)

    def give_back(self, count: Count) -> None:
        """Count those that are done and forget them, in the heaps too: their places are free."""
        import numpy as np

        heaps, finish = self._queues[3], self._whole[kernel.FINISH]
        for heap, scalars in zip(heaps, self._scalars, strict=True):
            entries = heap[: scalars[kernel.HEAPED]]
            kept = entries[finish[entries % _PLACES] == entries]
            if len(kept) < len(entries):
                heap[: len(kept)] = np.sort(kept)
                scalars[kernel.HEAPED] = len(kept)
        status = self._whole[kernel.STATUS]
        done = np.nonzero((status == OK) | (status == REJECTED))[0]
        count.went(
            status[done] == OK,
            number=self._number[done],
            due_s=self._times[kernel.DUE][done],
            first_s=self._times[kernel.FIRST][done],
            last_s=self._times[kernel.LAST][done],
            isl=self._whole[kernel.ISL][done],
            osl=self._whole[kernel.OSL][done],
            preempted=self._whole[kernel.PREEMPTED][done],
        )
        status[done] = NOT_DUE

    def known_s(self) -> float:
        """A moment before which no answer ends that has not been counted."""
        scalars = self._scalars
        busy = (scalars[:, kernel.RUNNING] > 0) | (scalars[:, kernel.STACKED] > 0)
        busy |= scalars[:, kernel.W_HEAD] < scalars[:, kernel.W_TAIL]
        busy |= scalars[:, kernel.A_HEAD] < scalars[:, kernel.A_TAIL]
        return float(self._floats[busy, kernel.NOW_S].min(initial=math.inf))

    def totals(self) -> dict[str, Any]:
        """What the engines say at the end."""
        assert not (self._whole[kernel.STATUS] == UNFINISHED).any(), "without a horizon every request ends"
        return {
            "busy_s": math.fsum(self._floats[:, kernel.BUSY_S]),
            "end_s": float(self._floats[:, kernel.END_S].max()),
            "steps": int(self._scalars[:, kernel.STEPS].sum()),
            "kv_blocks": self._config.kv_blocks,
            "peak_kv_blocks": int(self._limits[kernel.TOTAL] - self._scalars[:, kernel.LOW].min()),
        }
