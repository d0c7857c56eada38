"""The jumping engine: a schedule laid out in arrays, run by `kernel`, compiled where numba is there and it pays.

The same source and the same figures either way, to the bit. Loading numba costs as much as some 80,000 requests
uncompiled, so a process begins uncompiled.
"""

import hashlib
import importlib.util
import math
import sys
from array import array
from collections.abc import Sequence as Many
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from servefit.engine import kernel, kernel_time
from servefit.engine.config import EngineConfig
from servefit.engine.kv_cache import UNLIMITED
from servefit.engine.outcome import NOT_DUE, UNFINISHED, Gaps, Outcome
from servefit.physics.steptime import StepTime
from servefit.workload.requests import Request

PAYS_AFTER = 100_000
"""Requests that a process simulates uncompiled before it loads the compiled kernel from numba's cache."""
PAYS_AFTER_COLD = 700_000
"""The same where it would have to be compiled first, which takes some 14 s once."""
_simulated = 0
_KINDS = {
    "none": kernel.NONE,
    "static": kernel.STATIC,
    "dynamic": kernel.DYNAMIC,
    "continuous": kernel.CONTINUOUS,
    "chunked": kernel.CHUNKED,
}


def can_jump(requests: Many[Request], config: EngineConfig) -> bool:
    """Whether the jumping engine knows these settings; prefix caches, speculation and priorities are stepped through."""
    if config.speculation is not None or (config.prefix_cache and config.policy in ("continuous", "chunked")):
        return False
    if config.policy in ("static", "dynamic") and not config.padded:
        return False
    return config.order == "fcfs" or all(r.priority == requests[0].priority for r in requests)


def simulate_jumping(
    requests: Many[Request],
    config: EngineConfig,
    step: StepTime,
    *,
    concurrency: int | None = None,
    think_s: float = 0.0,
    horizon_s: float | None = None,
    compiled: bool | None = None,
) -> Outcome:
    """The same figures as stepping gives, to rounding. `compiled` None means: once it pays, and numba is there."""
    global _simulated  # noqa: PLW0603 - how much this process has done decides what pays, never what comes out
    _simulated += len(requests)
    module = kernel_compiled() if compiled or (compiled is None and _pays(_simulated)) else None
    whole, times, scalars, floats, series = _lay_out(requests, config, step, concurrency, numpy=module is not None)
    limits, coefficients = _limits(requests, config, step, think_s, horizon_s)
    padded = config.policy in ("none", "static", "dynamic")
    code: Any = module or kernel
    run = code.run_padded if padded else code.run_together
    while not run(whole, times, scalars, floats, limits, coefficients, series):
        series = tuple(_twice(column) for column in series)
    state = (whole, times, scalars, floats, series)
    return _outcome(state, config, horizon_s)


def _pays(simulated: int) -> bool:
    """Whether a process that simulated so many requests should load the compiled kernel."""
    return simulated > PAYS_AFTER and (simulated > PAYS_AFTER_COLD or _is_warm())


@cache
def _digest() -> str:
    """Names the compiled code by all of its source: numba itself looks at one file only."""
    text = "".join(Path(str(m.__file__)).read_text("utf-8") for m in (kernel, kernel_time))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def _is_warm() -> bool:
    folder = Path(str(kernel.__file__)).parent / "__pycache__"
    return any(folder.glob(f"kernel.run_together_{_digest()}*.nbi"))


@cache
def kernel_compiled() -> ModuleType | None:
    """A second copy of `kernel` with every function compiled, and cached on disk; None without numba or a place for it."""
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    def compiled(source: ModuleType, known: ModuleType | None) -> ModuleType:
        """A copy of a module whose functions are compiled, those that it imports from `known` taken from there."""
        name = f"{source.__name__}_compiled"
        spec = importlib.util.spec_from_file_location(name, source.__file__)
        assert spec is not None and spec.loader is not None
        copy = importlib.util.module_from_spec(spec)
        sys.modules[name] = copy
        spec.loader.exec_module(copy)
        for key, value in list(vars(copy).items()):
            if getattr(value, "__module__", "") == name and callable(value):
                value.__qualname__ = f"{key}_{_digest()}"
                setattr(copy, key, numba.njit(cache=True, _nrt=False)(value))
            elif callable(value) and known is not None and hasattr(known, key):
                setattr(copy, key, getattr(known, key))
        return copy

    try:
        return compiled(kernel, compiled(kernel_time, None))
    except RuntimeError:  # numba has no folder that it may cache in; compiling in every process would not pay
        return None


def _lay_out(
    requests: Many[Request], config: EngineConfig, step: StepTime, concurrency: int | None, *, numpy: bool
) -> tuple[Any, ...]:
    """The arrays R, X, S, F and the gap series of `kernel`, as lists or as numpy arrays."""
    n = len(requests)
    width = min(config.seats, n)
    follow, heads = [-1] * n, []
    last: dict[int, int] = {}
    for i, request in enumerate(requests):
        if request.session is None:
            heads.append(i)
            continue
        if request.session in last:
            follow[last[request.session]] = i
        else:
            heads.append(i)
        last[request.session] = i
    now = heads if concurrency is None else heads[:concurrency]
    later = heads[len(now) :]
    ready, floats = _front_end(requests, now, step)
    status = [NOT_DUE] * n
    for _, i in ready:
        status[i] = UNFINISHED
    zeros = [0] * n
    wide = [0] * (width + 2)
    whole: list[list[int]] = [
        [r.isl for r in requests], [r.osl for r in requests], zeros, zeros, [-1] * n, zeros, zeros, zeros, status, zeros,
        follow, [*later, *([0] * (n - len(later)))], [i for _, i in ready] + [0] * (n - len(ready)), zeros, wide, wide * 2,
        [0] * config.block_tok, wide, wide, wide,
    ]  # fmt: skip
    nans = [math.nan] * n
    arriving = [at for at, _ in ready] + [0.0] * (n - len(ready))
    times: list[list[float]] = [
        [r.due_s for r in requests], nans, nans, [0.0] * n, [0.0] * n, arriving, [0.0] * (width + 2),
        [float(at) for at, _ in step.bend], [extra for _, extra in step.bend],
    ]  # fmt: skip
    scalars = [0] * kernel.SCALARS
    total = UNLIMITED if config.kv_blocks is None else config.kv_blocks
    scalars[kernel.FREE] = scalars[kernel.LOW] = total
    scalars[kernel.PARTIAL] = scalars[kernel.NEWEST] = -1
    scalars[kernel.GROUPS] = 1
    scalars[kernel.A_TAIL] = len(ready)
    scalars[kernel.L_TAIL] = len(later)
    room = 4 * n + 2 * width + 64
    if numpy:
        import numpy as np

        return (
            tuple(np.array(v, dtype=np.int64) for v in whole),
            tuple(np.array(v, dtype=np.float64) for v in times),
            np.array(scalars, dtype=np.int64),
            np.array(floats),
            (np.zeros(room, np.int64), np.zeros(room, np.int64), np.zeros(room), np.zeros(room)),
        )
    series = ([0] * room, [0] * room, [0.0] * room, [0.0] * room)
    return tuple(list(v) for v in whole), tuple(list(v) for v in times), scalars, floats, series


def _front_end(requests: Many[Request], now: Many[int], step: StepTime) -> tuple[list[tuple[float, int]], list[float]]:
    """(when those known beforehand are ready, in that order; the tuple F of `kernel`)."""
    out: list[tuple[float, int]] = []
    last_due, last_ready = -1.0, -1.0
    for i in now:
        due = requests[i].due_s
        at = due + step.front_end_s + step.front_end_per_tok_s * requests[i].isl
        if due == last_due and step.front_serial_s > 0:
            at = max(at, last_ready + step.front_serial_s)
        last_due, last_ready = due, at
        out.append((at, i))
    return sorted(out), [0.0, 0.0, 0.0, last_due, last_ready]


def _limits(
    requests: Many[Request], config: EngineConfig, step: StepTime, think_s: float, horizon_s: float | None
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The tuples L and C of `kernel`."""
    total = UNLIMITED if config.kv_blocks is None else config.kv_blocks
    seats = 1 if config.policy == "none" else config.seats
    n = max(len(requests), 1)
    limits = (
        seats, config.budget_tok, config.block_tok, total, int(config.reserve_prompt), _KINDS[config.policy], n,
        min(seats, n),
    )  # fmt: skip
    numbers = (
        step.const_s + step.link_s, step.per_seq_s, step.per_prefill_tok_s, step.per_prefill_pos_s, step.per_kv_tok_s,
        step.weight_read_s, step.expert_read_s, step.expert_active_frac, step.compute_per_tok_s, step.p_norm,
        step.link_per_tok_s, step.front_end_s, step.front_end_per_tok_s, think_s, config.timeout_s,
        math.inf if horizon_s is None else horizon_s, step.compute_per_seq_s, step.change_s,
        step.per_prompt_s, step.front_serial_s,
    )  # fmt: skip
    return limits, tuple(map(float, numbers))


def _outcome(state: tuple[Any, ...], config: EngineConfig, horizon_s: float | None) -> Outcome:
    """The columns of what the kernel left in its arrays."""
    whole, times, scalars, floats, series = state
    horizon = math.inf if horizon_s is None else horizon_s
    due = _column("d", times[kernel.DUE])
    status = _column("b", whole[kernel.STATUS])
    if horizon < math.inf:
        for i, at in enumerate(due):
            if at > horizon:
                status[i] = NOT_DUE
    n = int(scalars[kernel.SERIES])
    gaps = Gaps(
        weight=_column("q", series[0][:n]),
        count=_column("q", series[1][:n]),
        first_s=_column("d", series[2][:n]),
        delta_s=_column("d", series[3][:n]),
    )
    cut = status.count(UNFINISHED) > 0 and horizon < math.inf
    return Outcome(
        due_s=due,
        first_s=_column("d", times[kernel.FIRST]),
        last_s=_column("d", times[kernel.LAST]),
        produced_tok=_column("q", whole[kernel.PRODUCED]),
        osl=_column("q", whole[kernel.OSL]),
        isl=_column("q", whole[kernel.ISL]),
        status=status,
        preempted=_column("q", whole[kernel.PREEMPTED]),
        gaps=gaps,
        steps=int(scalars[kernel.STEPS]),
        busy_s=float(floats[kernel.BUSY_S]),
        kv_blocks=config.kv_blocks,
        peak_kv_blocks=(UNLIMITED if config.kv_blocks is None else config.kv_blocks) - int(scalars[kernel.LOW]),
        end_s=horizon if cut else float(floats[kernel.END_S]),
    )


def _twice(values: Any) -> Any:
    """Twice the room, what is written kept."""
    if isinstance(values, list):
        return values + [0] * len(values)
    import numpy as np

    return np.concatenate([values, np.zeros_like(values)])


def _column(code: str, values: Any) -> Any:
    """A compact column from a list or a numpy array."""
    if isinstance(values, list):
        return array(code, values)
    out = array(code)
    out.frombytes(values.astype(code).tobytes())
    return out
