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
from collections.abc import Sized
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from servefit.engine import kernel, kernel_fleet, kernel_padded, kernel_time
from servefit.engine.config import EngineConfig
from servefit.engine.kv_cache import UNLIMITED
from servefit.engine.outcome import NOT_DUE, UNFINISHED, Gaps, Outcome
from servefit.physics.steptime import StepTime
from servefit.workload.columns import Columns
from servefit.workload.requests import Request

PAYS_AFTER = 100_000
"""Requests that a process simulates uncompiled before it loads the compiled kernel from numba's cache."""
PAYS_AFTER_COLD = 700_000
"""The same where it would have to be compiled first, which takes some 14 s once."""
EXACT_SERIES = 1 << 21
"""Series of gaps (some 600,000 requests) that are kept as they are; beyond, each gap moves by up to 0.003%, and memory stays."""
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
    faster = compiled if compiled is not None else is_faster(len(requests))
    module = kernel_compiled() if faster else None
    whole, times, scalars, floats, series = lay_out(requests, config, step, concurrency, numpy=module is not None)
    limits, coefficients = limits_of(requests, config, step, think_s, horizon_s)
    padded = config.policy in ("none", "static", "dynamic")
    code: Any = module or kernel
    padded_code: Any = padded_compiled() if module else kernel_padded
    run = padded_code.run_padded if padded else code.run_together
    while not run(whole, times, scalars, floats, limits, coefficients, series):
        scalars[kernel.SERIES], series = more_room(module, int(scalars[kernel.SERIES]), series)
    state = (whole, times, scalars, floats, series)
    return outcome_of(state, config, horizon_s)


def more_room(module: ModuleType | None, n: int, series: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]]:
    """The first n series of gaps with room for more: folded where they are very many, else in arrays of twice the length."""
    if len(series[0]) >= EXACT_SERIES:
        bins = _bins(module or kernel, n, series)
        if len(bins) < len(series[0]) // 2:
            for j, (weight, gap_s) in enumerate(bins):
                series[0][j], series[1][j], series[2][j], series[3][j] = weight, 1, gap_s, 0.0
            return len(bins), series
    return n, tuple(twice(column) for column in series)


def folded(gaps: Gaps) -> Gaps:
    """The same gaps, each moved by at most 0.003% to the middle of a bin: as many series as bins, however many gaps."""
    module = kernel_compiled() if "numpy" in sys.modules else None
    columns: tuple[Any, ...] = (gaps.weight, gaps.count, gaps.first_s, gaps.delta_s)
    if module is not None:
        import numpy as np

        columns = tuple(np.frombuffer(column, column.typecode) for column in columns)
    out = Gaps()
    for weight, gap_s in _bins(module or kernel, len(gaps.weight), columns):
        out.add(weight, gap_s)
    return out


def _bins(code: Any, n: int, series: tuple[Any, ...]) -> list[tuple[int, float]]:
    """(how many, middle in seconds) of every bin that a gap of the first n series falls into."""
    per, least = kernel_time.PER_OCTAVE, kernel_time.LEAST_E
    size = per * kernel_time.OCTAVES
    if isinstance(series[0], list | array):
        counts: Any = [0] * size
        code.fold(n, series, counts)
        places = [j for j in range(size) if counts[j]]
    else:
        import numpy as np

        counts = np.zeros(size, np.int64)
        code.fold(n, series, counts)
        places = np.nonzero(counts)[0].tolist()
    half = 1 / (2 * per)
    return [(int(counts[j]), math.ldexp(0.5 + (j % per + 0.5) * half, j // per + least)) for j in places]


def is_faster(n: int) -> bool:
    """Whether a process that is about to simulate n requests more should load the compiled kernel."""
    global _simulated  # noqa: PLW0603 - how much this process has done decides what pays, never what comes out
    _simulated += n
    return _simulated > PAYS_AFTER and (_simulated > PAYS_AFTER_COLD or _is_warm())


@cache
def _digest() -> str:
    """Names the compiled code by all of its source: numba itself looks at one file only."""
    text = "".join(Path(str(m.__file__)).read_text("utf-8") for m in (kernel, kernel_fleet, kernel_padded, kernel_time))
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
    try:
        return compiled_copy(kernel, compiled_copy(kernel_time, None))
    except RuntimeError:  # numba has no folder that it may cache in; compiling in every process would not pay
        return None


@cache
def padded_compiled() -> ModuleType | None:
    """The same of `kernel_padded`."""
    known = kernel_compiled()
    return None if known is None else compiled_copy(kernel_padded, known)


def compiled_copy(source: ModuleType, known: ModuleType | None) -> ModuleType:
    """A copy of a module whose functions are compiled, those that it imports from `known` taken from there."""
    import numba

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


def lay_out(
    requests: Many[Request], config: EngineConfig, step: StepTime, concurrency: int | None, *, numpy: bool
) -> tuple[Any, ...]:
    """The arrays R, X, S, F and the gap series of `kernel`, as lists or as numpy arrays."""
    whole, times, fill = arrays(numpy=numpy)
    n = len(requests)
    width = min(config.seats, n)
    due, isl, osl = _asked(requests)
    follow, heads = _sessions(requests)
    now = heads if concurrency is None else heads[:concurrency]
    later = heads[len(now) :]
    ready, who, last = _front_end(due, isl, now, step, numpy=numpy)
    status = fill(n, UNFINISHED if len(now) == n else NOT_DUE)
    for i in who if len(now) < n else ():
        status[i] = UNFINISHED
    spare = fill(n - len(now), 0)
    numbers = (
        whole(isl), whole(osl), fill(n, 0), fill(n, 0), fill(n, -1), fill(n, 0), fill(n, 0), fill(n, 0), status, fill(n, 0),
        whole(follow) if follow else fill(n, -1), _joined(whole(later), fill(n - len(later), 0)), _joined(whole(who), spare),
        fill(n, 0), fill(n, 0), fill(2 * width + 4, 0), fill(config.block_tok, 0), *(fill(width + 2, 0) for _ in range(3)),
    )  # fmt: skip
    moments = (
        times(due), fill(n, math.nan), fill(n, math.nan), fill(n, 0.0), fill(n, 0.0),
        _joined(times(ready), fill(n - len(now), 0.0)), fill(width + 2, 0.0),
        times([float(at) for at, _ in step.bend]), times([float(extra) for _, extra in step.bend]),
        fill(width + 2, -1.0),
    )  # fmt: skip
    scalars = fill(kernel.SCALARS, 0)
    total = UNLIMITED if config.kv_blocks is None else config.kv_blocks
    scalars[kernel.FREE] = scalars[kernel.LOW] = total
    scalars[kernel.PARTIAL] = scalars[kernel.NEWEST] = -1
    scalars[kernel.GROUPS] = 1
    scalars[kernel.A_TAIL] = len(now)
    scalars[kernel.L_TAIL] = len(later)
    room = min(4 * n, EXACT_SERIES) + 2 * width + 64
    series = (fill(room, 0), fill(room, 0), fill(room, 0.0), fill(room, 0.0))
    return numbers, moments, scalars, times([0.0, 0.0, 0.0, *last, math.inf, math.inf]), series


def arrays(*, numpy: bool) -> tuple[Any, Any, Any]:
    """Makers of lists or of numpy arrays: of whole numbers, of times, of one value."""
    if not numpy:
        return list, list, lambda n, value: [value] * n
    import numpy as np

    def times(values: Any) -> Any:
        return np.array(values, dtype=np.float64)

    def fill(n: int, value: float) -> Any:
        return np.full(n, value, dtype=np.int64 if isinstance(value, int) else np.float64)

    return lambda values: np.array(values, dtype=np.int64), times, fill


def _joined(first: Any, rest: Any) -> Any:
    if isinstance(first, list):
        return first + rest
    import numpy as np

    return np.concatenate([first, rest]) if len(rest) else first


def _asked(requests: Many[Request]) -> tuple[Many[float], Many[int], Many[int]]:
    """When each is due, its prompt and its answer."""
    if isinstance(requests, Columns):
        return requests.due_s, requests.isl, requests.osl
    return [r.due_s for r in requests], [r.isl for r in requests], [r.osl for r in requests]


def _sessions(requests: Many[Request]) -> tuple[list[int], Many[int]]:
    """(who comes when that request is answered, or -1, empty without sessions; who comes by themselves)."""
    n = len(requests)
    if isinstance(requests, Columns) or all(r.session is None for r in requests):
        return [], range(n)
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
    return follow, heads


def _front_end(
    due: Many[float], isl: Many[int], now: Many[int], step: StepTime, *, numpy: bool
) -> tuple[Any, Any, tuple[float, float]]:
    """When those known beforehand are ready, in that order; who they are; when the last was due, and ready."""
    if not now:
        return [], [], (-1.0, -1.0)
    if numpy and step.front_serial_s <= 0 and isinstance(now, range):
        import numpy as np

        at = np.array(due) + step.front_end_s + step.front_end_per_tok_s * np.array(isl)
        at = at[: len(now)]
        who = np.argsort(at, kind="stable")
        return at[who], who, (due[now[-1]], float(at[-1]))
    out: list[tuple[float, int]] = []
    last_due, last_ready = -1.0, -1.0
    for i in now:
        ready = due[i] + step.front_end_s + step.front_end_per_tok_s * isl[i]
        if due[i] == last_due and step.front_serial_s > 0:
            ready = max(ready, last_ready + step.front_serial_s)
        last_due, last_ready = due[i], ready
        out.append((ready, i))
    out.sort()
    return [at for at, _ in out], [i for _, i in out], (last_due, last_ready)


def limits_of(
    requests: Sized, config: EngineConfig, step: StepTime, think_s: float, horizon_s: float | None
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
        step.per_prompt_s, step.front_serial_s, step.ragged_tok_s,
    )  # fmt: skip
    return limits, tuple(map(float, numbers))


def outcome_of(state: tuple[Any, ...], config: EngineConfig, horizon_s: float | None) -> Outcome:
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


def twice(values: Any) -> Any:
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
