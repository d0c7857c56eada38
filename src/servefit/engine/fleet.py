"""N replicas behind a router, and prefill and decode on replicas of their own."""

import math
import sys
from array import array
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Any

from servefit.engine.config import EngineConfig, check_config
from servefit.engine.fewest import can_count, simulate_fewest
from servefit.engine.jump import EXACT_SERIES, can_jump, folded, simulate_jumping
from servefit.engine.outcome import NOT_DUE, UNFINISHED, Gaps, Outcome
from servefit.engine.policies import EPSILON_S, Server
from servefit.engine.sequence import Sequence
from servefit.engine.simulate import outcome_of, rows_of, run_of
from servefit.engine.stepping import Arrivals, Route, drive
from servefit.errors import ServefitError
from servefit.physics.steptime import StepTime
from servefit.records import Run
from servefit.workload.arrivals import schedule
from servefit.workload.columns import Columns
from servefit.workload.requests import Request
from servefit.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Prompts are computed on `prefill_replicas` of the fleet; their KV goes over a link to the others, which decode."""

    prefill_replicas: int
    kv_bytes_per_tok: float
    link_bytes_per_s: float
    link_latency_s: float = 0.0

    def transfer_s(self, tok: int) -> float:
        """Seconds until the KV of `tok` tokens has arrived; transfers do not share the link.

        >>> link = Disaggregation(prefill_replicas=1, kv_bytes_per_tok=131072, link_bytes_per_s=12.5e9)
        >>> round(link.transfer_s(1000), 6)
        0.010486
        """
        return self.link_latency_s + tok * self.kv_bytes_per_tok / self.link_bytes_per_s


def outstanding(server: Server, at_s: float) -> int:
    """Requests of a replica that were sent to it and are not done at `at_s`."""
    return server.sent - server.done + (server.done_in_flight if server.free_s > at_s + EPSILON_S else 0)


def round_robin() -> Route:
    """Each in turn."""
    turn = -1

    def route(_: Sequence, servers: Many[Server], _at_s: float) -> Server:
        nonlocal turn
        turn += 1
        return servers[turn % len(servers)]

    return route


def least_outstanding() -> Route:
    """The one with the fewest requests that are not done; the first of equals."""

    def route(_: Sequence, servers: Many[Server], at_s: float) -> Server:
        return min(servers, key=lambda server: outstanding(server, at_s))

    return route


def prefix_aware() -> Route:
    """The one whose cache holds most of the prompt, unless it has 4 requests more than the least busy one."""

    def route(seq: Sequence, servers: Many[Server], at_s: float) -> Server:
        least = min(outstanding(server, at_s) for server in servers)
        near = [server for server in servers if outstanding(server, at_s) <= least + 4]
        return max(near, key=lambda server: (server.kv.found_tok(seq), -outstanding(server, at_s)))

    return route


ROUTERS: dict[str, Callable[[], Route]] = {
    "round-robin": round_robin,
    "least-outstanding": least_outstanding,
    "prefix-aware": prefix_aware,
}


def simulate_fleet(
    requests: Many[Request],
    config: EngineConfig,
    step: StepTime,
    *,
    replicas: int,
    router: str = "round-robin",
    concurrency: int | None = None,
    think_s: float = 0.0,
    horizon_s: float | None = None,
    disaggregation: Disaggregation | None = None,
) -> Outcome:
    """What `replicas` engines of one configuration do behind a router, in one set of columns.

    An open loop in turn falls apart into independent replicas, each of which jumps; sent where the fewest are, it jumps
    too, replicas together; all else is stepped through.
    """
    check_fleet(config, replicas, router, disaggregation)
    alone = router == "round-robin" and disaggregation is None and concurrency is None
    apart = isinstance(requests, Columns) or all(r.session is None for r in requests)
    if alone and apart and can_jump(requests, config):
        return _in_turn(requests, config, step, replicas, horizon_s)
    counts = router == "least-outstanding" and disaggregation is None and concurrency is None and horizon_s is None
    if counts and can_count(requests, config):
        return simulate_fewest(requests, config, step, replicas=replicas)
    arrivals, servers = _drive(
        requests, config, step, replicas=replicas, router=router, concurrency=concurrency, think_s=think_s,
        horizon_s=horizon_s, disaggregation=disaggregation,
    )  # fmt: skip
    return outcome_of(arrivals.sequences, arrivals.issued, servers, horizon_s)


def simulate_fleet_run(
    workload: Workload,
    config: EngineConfig,
    step: StepTime,
    *,
    replicas: int,
    router: str = "round-robin",
    horizon_s: float | None = None,
    disaggregation: Disaggregation | None = None,
    requests: Many[Request] | None = None,
    **header: Any,
) -> Run:
    """The same as a run with every token's time; its rows say which replica served them."""
    check_fleet(config, replicas, router, disaggregation)
    asked = schedule(workload) if requests is None else tuple(requests)
    arrivals, _ = _drive(
        asked, config, step, replicas=replicas, router=router, concurrency=workload.concurrency,
        think_s=workload.think_s, horizon_s=horizon_s, disaggregation=disaggregation,
    )  # fmt: skip
    rows = rows_of(arrivals.issued, horizon_s, replicas=True)
    engine = {"replicas": replicas, "router": router} | header.pop("engine", {})
    if disaggregation:
        engine["prefill_replicas"] = disaggregation.prefill_replicas
    return run_of(rows, asked, workload, config, step, horizon_s=horizon_s, engine=engine, **header)


def check_router(router: str) -> None:
    """Raise ServefitError where there is no such router."""
    if router not in ROUTERS:
        raise ServefitError(f"There is no router '{router}'.", hint=f"One of {', '.join(ROUTERS)}.")


MAX_REPLICAS = 10_000
"""Each is simulated; more are memory without end."""


def check_fleet(config: EngineConfig, replicas: int, router: str, disaggregation: Disaggregation | None = None) -> None:
    """Raise ServefitError, with the value, where there could be no such fleet."""
    check_config(config)
    if not 1 <= replicas <= MAX_REPLICAS:
        raise ServefitError(f"replicas is {replicas:.6g}.", hint=f"From 1 to {MAX_REPLICAS:,}.")
    check_router(router)
    if disaggregation is None:
        return
    if not 1 <= disaggregation.prefill_replicas < replicas:
        raise ServefitError(
            f"{disaggregation.prefill_replicas} of {replicas} replicas prefill: none is left for the rest.",
            hint="Give each side at least one.",
        )
    if config.policy not in ("continuous", "chunked"):
        raise ServefitError(
            f"Prefill and decode on replicas of their own need continuous or chunked batching, not {config.policy}.",
            hint="Choose chunked.",
        )


def _drive(
    requests: Many[Request],
    config: EngineConfig,
    step: StepTime,
    *,
    replicas: int,
    router: str,
    concurrency: int | None,
    think_s: float,
    horizon_s: float | None,
    disaggregation: Disaggregation | None,
) -> tuple[Arrivals, list[Server]]:
    arrivals = Arrivals(requests, step, concurrency=concurrency, think_s=think_s)
    servers = [Server(config, number=number) for number in range(replicas)]
    first = disaggregation.prefill_replicas if disaggregation else replicas
    to_first, to_second = ROUTERS[router](), ROUTERS[router]()

    def route(seq: Sequence, among: Many[Server], at_s: float) -> Server:
        if seq.produced_tok:
            return to_second(seq, among[first:], at_s)
        return to_first(seq, among[:first], at_s)

    def hand_over(seq: Sequence, at_s: float) -> bool:
        assert disaggregation is not None, "only a disaggregated fleet hands sequences over"
        if seq.replica >= first:
            return False
        seq.received_tok = seq.isl
        arrivals.come_back(seq, at_s + disaggregation.transfer_s(seq.isl))
        return True

    drive(
        arrivals, servers, step, route=route, horizon_s=math.inf if horizon_s is None else horizon_s,
        hand_over=hand_over if disaggregation else None,
    )  # fmt: skip
    return arrivals, servers


def _in_turn(
    requests: Many[Request], config: EngineConfig, step: StepTime, replicas: int, horizon_s: float | None
) -> Outcome:
    """Each replica by itself, its part of the schedule put back in place."""
    n = len(requests)
    columns: dict[str, Any] = {name: array(code, bytes(array(code).itemsize * n)) for name, code in _COLUMNS.items()}
    gaps, outcomes = Gaps(), []
    for part, asked in _parts(requests, step, replicas):
        outcome = simulate_jumping(asked, config, step, horizon_s=horizon_s)
        for name, column in columns.items():
            _put(column, part, getattr(outcome, name))
        for name in ("weight", "count", "first_s", "delta_s"):
            getattr(gaps, name).extend(getattr(outcome.gaps, name))
        if len(gaps.weight) > EXACT_SERIES:
            gaps = folded(gaps)
        empty: dict[str, Any] = {name: array(code) for name, code in _COLUMNS.items()}
        outcomes.append(replace(outcome, **empty, gaps=Gaps()))
    unfinished = UNFINISHED in columns["status"]
    assert horizon_s is not None or NOT_DUE not in columns["status"], "without a horizon everyone is due"
    return replace(
        outcomes[0],
        **columns,
        gaps=gaps,
        steps=sum(outcome.steps for outcome in outcomes),
        busy_s=math.fsum(outcome.busy_s for outcome in outcomes),
        peak_kv_blocks=max(outcome.peak_kv_blocks for outcome in outcomes),
        end_s=horizon_s if unfinished and horizon_s is not None else max(outcome.end_s for outcome in outcomes),
    )


_COLUMNS = {
    "due_s": "d", "first_s": "d", "last_s": "d", "produced_tok": "q", "osl": "q", "isl": "q", "status": "b",
    "preempted": "q",
}  # fmt: skip


def _parts(requests: Many[Request], step: StepTime, replicas: int) -> Iterator[tuple[Any, Many[Request]]]:
    """Which requests each replica gets, in turn as they are ready: their places, in order, and they themselves."""
    if isinstance(requests, Columns) and (np := sys.modules.get("numpy")):
        due, isl, osl = (np.frombuffer(c, c.typecode) for c in (requests.due_s, requests.isl, requests.osl))
        by_ready = np.argsort(due + step.front_end_s + step.front_end_per_tok_s * isl, kind="stable")
        for number in range(min(replicas, len(requests))):
            part = np.sort(by_ready[number::replicas])
            few = (array("d", due[part].tobytes()), array("q", isl[part].tobytes()), array("q", osl[part].tobytes()))
            yield part, Columns(due_s=few[0], isl=few[1], osl=few[2])
        return
    front, per_tok = step.front_end_s, step.front_end_per_tok_s
    order = sorted(range(len(requests)), key=lambda i: (requests[i].due_s + front + per_tok * requests[i].isl, i))
    for number in range(min(replicas, len(requests))):
        places = sorted(order[number::replicas])
        yield places, [requests[i] for i in places]


def _put(column: Any, places: Any, values: Any) -> None:
    """Write the values to their places."""
    if not isinstance(places, list):
        np = sys.modules["numpy"]
        np.frombuffer(column, column.typecode)[places] = np.frombuffer(values, values.typecode)
        return
    for place, value in zip(places, values, strict=True):
        column[place] = value
