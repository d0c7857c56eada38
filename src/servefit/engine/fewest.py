"""A fleet behind a router that counts, jumping: arrays for `kernel_fleet`, compiled where numba is there and it pays."""

import math
from collections.abc import Sequence as Many
from functools import cache
from types import ModuleType
from typing import Any

from servefit.engine import kernel, kernel_fleet
from servefit.engine.config import EngineConfig
from servefit.engine.jump import (
    arrays,
    can_jump,
    compiled_copy,
    is_faster,
    kernel_compiled,
    lay_out,
    limits_of,
    more_room,
    outcome_of,
    twice,
)  # fmt: skip
from servefit.engine.outcome import Outcome
from servefit.physics.steptime import StepTime
from servefit.workload.columns import Columns
from servefit.workload.requests import Request

ROOM = 64
"""Requests that wait at one replica, to begin with."""


def can_count(requests: Many[Request], config: EngineConfig) -> bool:
    """Whether the router that counts knows these settings: an open loop without sessions, on engines that can jump."""
    alone = isinstance(requests, Columns) or all(r.session is None for r in requests)
    return alone and config.policy in ("continuous", "chunked") and can_jump(requests, config)


def simulate_fewest(
    requests: Many[Request], config: EngineConfig, step: StepTime, *, replicas: int, compiled: bool | None = None
) -> Outcome:
    """What replicas do when each request goes to the one with the fewest not done, the first of equals.

    The same figures as stepping gives, to rounding. `compiled` None means: once it pays, and numba is there.
    """
    faster = compiled if compiled is not None else is_faster(len(requests))
    module = fleet_compiled() if faster else None
    known = kernel_compiled() if module else None
    whole, times, scalars, floats, series = lay_out(requests, config, step, None, numpy=module is not None)
    fill = arrays(numpy=module is not None)[2]
    wide = len(whole[kernel.PREFILL])

    def each(width: int, value: float) -> Any:
        """A row a replica."""
        if module is None:
            return [fill(width, value) for _ in range(replicas)]
        return fill(replicas * width, value).reshape(replicas, width)

    queues = tuple(each(w, 0) for w in (ROOM, ROOM, wide, 2 * wide, config.block_tok, wide, wide, wide))
    moments = (each(ROOM, 0.0), each(wide, 0.0))
    state, clocks = each(len(scalars), 0), each(len(floats), 0.0)
    for row in state:
        for j in (kernel.FREE, kernel.LOW, kernel.PARTIAL, kernel.NEWEST, kernel.GROUPS):
            row[j] = scalars[j]
    for row in clocks:
        row[kernel.STOP] = math.inf
    so_far = fill(3, 0)
    clock, counts = (fill(replicas, 0.0), fill(replicas, math.inf)), (fill(replicas, 0), fill(replicas, 0))
    limits, numbers = limits_of(requests, config, step, 0.0, None)
    code: Any = module or kernel_fleet
    while not code.run_fleet(
        so_far, whole, times, state, clocks, limits, numbers, series, queues, moments, clock, counts
    ):
        if so_far[kernel_fleet.SERIES_SO_FAR] + 2 * limits[kernel.WIDTH] + 8 > len(series[0]):
            so_far[kernel_fleet.SERIES_SO_FAR], series = more_room(known, int(so_far[1]), series)
        else:
            queues = (*(_wider(q) for q in queues[:2]), *queues[2:])
            moments = (_wider(moments[0]), moments[1])
    scalars[kernel.SERIES] = so_far[kernel_fleet.SERIES_SO_FAR]
    scalars[kernel.STEPS] = sum(int(row[kernel.STEPS]) for row in state)
    scalars[kernel.LOW] = min(int(row[kernel.LOW]) for row in state)
    floats[kernel.BUSY_S] = math.fsum(row[kernel.BUSY_S] for row in clocks)
    floats[kernel.END_S] = max(row[kernel.END_S] for row in clocks)
    return outcome_of((whole, times, scalars, floats, series), config, None)


@cache
def fleet_compiled() -> ModuleType | None:
    """A copy of `kernel_fleet` with every function compiled; None where `kernel` cannot be."""
    known = kernel_compiled()
    return None if known is None else compiled_copy(kernel_fleet, known)


def _wider(rows: Any) -> Any:
    if isinstance(rows, list):
        return [twice(row) for row in rows]
    import numpy as np

    return np.concatenate([rows, np.zeros_like(rows)], axis=1)
