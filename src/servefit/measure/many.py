"""One load from many clients: actors on a Ray cluster, one schedule, their clocks compared, their rows merged."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servefit import __version__
from servefit.errors import CannotMeasure, ServefitError
from servefit.host.machine import BUSY_FRAC
from servefit.host.ray_cluster import connected
from servefit.measure.health import worst
from servefit.measure.load import Options, Prepared, Progress
from servefit.measure.probe import Endpoint
from servefit.measure.run import measure, prepare
from servefit.measure.window import find_window
from servefit.records import Finding, RequestRecord, Run, RunWriter
from servefit.wire.address import is_loopback, resolve
from servefit.workload.arrivals import schedule
from servefit.workload.requests import Request, schedule_sha256
from servefit.workload.workload import Workload, workload_sha256

PINGS = 30
LEAD_S = 1.5
"""From the moment when every client is ready to the first due time: enough to open connections and build prompts."""
SURE_S = 0.002
"""A clock offset that is less sure than this makes the run suspect: it blurs every latency from a due time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A client's monotonic clock minus ours, in seconds, and how sure: half the fastest round trip."""

    offset_s: float
    sure_s: float


def shares(workload: Workload, requests: Sequence[Request], clients: int) -> list[tuple[Workload, tuple[Request, ...]]]:
    """What each client asks: an open loop's requests in turn, a closed loop's users (and requests) divided evenly.

    The requests of one session stay with one client. Ids and due times stay those of the whole schedule.

    >>> parts = shares(Workload(n=5, concurrency=3), schedule(Workload(n=5, concurrency=3)), 2)
    >>> [(w.concurrency, [r.id for r in own]) for w, own in parts]
    [(2, [0, 2, 3]), (1, [1, 4])]
    """
    sessions = {r.session: i for i, r in enumerate(requests) if r.session is not None}
    order = {s: i for i, s in enumerate(sorted(sessions, key=lambda s: sessions[s]))}
    owned: list[list[Request]] = [[] for _ in range(clients)]
    users = workload.concurrency
    # user u of a closed loop lives on client u % clients; its requests go where the users are
    for i, r in enumerate(requests):
        turn = order[r.session] if r.session is not None else i
        owned[(turn % users if users else turn) % clients].append(r)
    out = []
    for k, own in enumerate(owned):
        if not own:
            continue
        if users:
            part = replace(workload, concurrency=len(range(k, users, clients)), n=len(own))
        else:
            rate = workload.rate_req_per_s
            part = replace(workload, n=len(own), rate_req_per_s=rate and rate * len(own) / len(requests))
        out.append((part, tuple(own)))
    return out


def best_offset(trips: Sequence[tuple[int, int, int]]) -> Offset:
    """The clock offset from (asked, theirs, answered) times in ns: that of the fastest round trip, as NTP does.

    Source: RFC 5905, section 8 (offset = theirs - the middle of ours; the error is at most half the round trip).

    >>> best_offset([(0, 1_000_500, 1_000), (0, 1_900_000, 900_000)])
    Offset(offset_s=0.001, sure_s=5e-07)
    """
    asked, theirs, answered = min(trips, key=lambda t: t[2] - t[0])
    return Offset(offset_s=(theirs - (asked + answered) / 2) / 1e9, sure_s=(answered - asked) / 2e9)


class RemoteClient:
    """What runs on a node: tells its time, says where it is, measures its share."""

    def where(self, key_name: str | None) -> dict[str, Any]:
        """The node, its cores, and whether the API key's variable is set there."""
        import os
        import socket

        import ray

        return {
            "node": socket.gethostname(), "node_id": ray.get_runtime_context().get_node_id()[:12],
            "address": ray.util.get_node_ip_address(), "cores": os.cpu_count(),
            "version": __version__, "has_key": key_name is None or bool(os.environ.get(key_name)),
        }  # fmt: skip

    def now_ns(self) -> int:
        """The monotonic clock of its node."""
        return time.monotonic_ns()

    def drive(self, known: Prepared, workload: Workload, requests: tuple[Request, ...], options: Options) -> Run | str:
        """The run of its share; a sentence where it could not be."""
        with tempfile.TemporaryDirectory(prefix="servefit-client-") as folder:
            endpoint = replace(known.endpoint, address=resolve(known.endpoint.url))
            try:
                return measure(
                    endpoint, workload, replace(options, out=Path(folder) / "run"), requests=requests,
                    known=replace(known, endpoint=endpoint),
                )  # fmt: skip
            except ServefitError as error:
                return error.message


def measure_on_ray(
    endpoint: Endpoint, workload: Workload, options: Options, *, ray_address: str, clients: int | None = None
) -> Run:
    """The run of `workload` from several clients, kept in `options.out`.

    The target is looked at once, from here. Each client's clock is compared with ours before and after; the rows' times
    are on our clock. While the load runs, rows are on the clients' nodes: what is cut off is lost.
    """
    if endpoint.paid:
        raise ServefitError(f"{endpoint.name} is a paid target: a cap cannot be kept across machines.", hint="Measure it without --ray.")  # fmt: skip
    if clients is not None and clients < 1:
        raise ServefitError(f"--clients is {clients}.", hint="At least 1.")
    requests = schedule(workload)
    zero_ns = time.monotonic_ns()
    known = prepare(endpoint, workload, requests, options, zero_ns)
    seats = clients or 2
    with connected(ray_address, purpose="measure --ray", cpus=seats if ray_address == "local" else None) as ray:
        count = clients or (2 if ray_address == "local" else sum(n["Alive"] for n in ray.nodes()))
        _tell(options, f"starting {count} clients")
        parts = shares(workload, requests, count)
        remote = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(RemoteClient)
        actors = [remote.remote() for _ in parts]
        try:
            places = _ready(ray, actors, known.endpoint)
            offsets = [_compare_clocks(ray, actor) for actor in actors]
            begin_ns = time.monotonic_ns() + round(LEAD_S * 1e9)
            runs = _drive(
                ray, actors, parts, known, replace(options, progress=None), offsets=offsets, begin_ns=begin_ns
            )
            after = [_compare_clocks(ray, actor) for actor in actors]
        finally:
            for actor in actors:
                ray.kill(actor)
    run = merge(
        runs, workload, requests, first=tuple(known.rows), shift_s=(begin_ns - zero_ns) / 1e9, places=places, offsets=offsets,
        after=after,
    )  # fmt: skip
    with RunWriter(options.out, run.header) as writer:
        for row in run.rows:
            writer.append(row, flush=False)
        writer.finish(run.header)
    return run


def _tell(options: Options, step: str) -> None:
    if options.progress is not None:
        options.progress(Progress(step=step))


def _ready(ray: Any, actors: Sequence[Any], endpoint: Endpoint, *, wait_s: float = 60.0) -> list[dict[str, Any]]:
    """Where each client is. Raises where the cluster has no room, a key is missing, or a target is out of reach."""
    asked = [actor.where.remote(endpoint.api_key_env) for actor in actors]
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=wait_s)
    if len(done) < len(asked):
        raise CannotMeasure(f"The Ray cluster has room for {len(done)} of {len(asked)} clients.",
                            hint="Each takes one CPU: ask for fewer with --clients, or add nodes.")  # fmt: skip
    places: list[dict[str, Any]] = ray.get(asked)
    here = ray.util.get_node_ip_address()
    for place in places:
        if place["version"] != __version__:
            raise CannotMeasure(f"The node {place['node']} has servefit {place['version']}, this is {__version__}.",
                                hint="Install the same version on every node.")  # fmt: skip
        if not place["has_key"]:
            raise CannotMeasure(f"The node {place['node']} has no environment variable {endpoint.api_key_env}.",
                                hint="Set it there before its Ray starts: keys do not travel.")  # fmt: skip
        if place["address"] != here and is_loopback(endpoint.address):
            raise CannotMeasure(f"{endpoint.name} is this machine's loopback: the client on {place['node']} cannot reach it.",
                                hint="Let the server listen on an address of the network.")  # fmt: skip
    return places


def _compare_clocks(ray: Any, actor: Any) -> Offset:
    trips = []
    for _ in range(PINGS):
        asked = time.monotonic_ns()
        theirs = ray.get(actor.now_ns.remote())
        trips.append((asked, theirs, time.monotonic_ns()))
    return best_offset(trips)


def _drive(
    ray: Any,
    actors: Sequence[Any],
    parts: Sequence[tuple[Workload, tuple[Request, ...]]],
    known: Prepared,
    options: Options,
    *,
    offsets: Sequence[Offset],
    begin_ns: int,
) -> list[Run]:
    """Every client's run, all begun at one moment."""
    plain = replace(known.endpoint, address=replace(known.endpoint.address, tls=None))  # a TLS context does not travel
    kept = replace(known, endpoint=plain, rows=[])
    asked = [
        actor.drive.remote(kept, part, own, replace(options, begin_ns=begin_ns + round(offset.offset_s * 1e9)))
        for actor, (part, own), offset in zip(actors, parts, offsets, strict=True)
    ]
    try:
        found = ray.get(asked)
    except ray.exceptions.RayError as error:
        raise CannotMeasure(
            f"A client was lost: {str(error).splitlines()[0]}", hint="Look at its node, and measure again."
        ) from None
    for value in found:
        if isinstance(value, str):
            raise CannotMeasure(value)
    return list(found)


def merge(
    runs: Sequence[Run],
    workload: Workload,
    requests: Sequence[Request],
    *,
    first: tuple[RequestRecord, ...],
    shift_s: float,
    places: Sequence[dict[str, Any]],
    offsets: Sequence[Offset],
    after: Sequence[Offset],
) -> Run:
    """One run of all clients' rows, on one clock; every client's health is kept, the worst counts.

    A client's zero is the common beginning, which lies `shift_s` after ours.
    """
    rows: list[RequestRecord] = []
    base_user = 0
    for run in runs:
        rows += [_moved(row, shift_s, base_user) for row in run.rows]
        base_user += run.header.load.get("concurrency") or 0
    rows.sort(key=lambda row: (row.done_s or row.due_s, row.id))
    clients = [
        {"node": p["node"], "node_id": p["node_id"], "cores": p["cores"], "requests": len(run.rows),
         "clock_offset_s": o.offset_s, "clock_sure_s": o.sure_s, "clock_drift_s": a.offset_s - o.offset_s, **run.header.client}
        for p, o, a, run in zip(places, offsets, after, runs, strict=True)
    ]  # fmt: skip
    header = runs[0].header
    findings = [*_together(_without_siblings(runs, places)), *_about_clocks(offsets, after)]
    ends = [max(row.done_s or 0.0, row.due_s) for row in rows]
    header = replace(
        header,
        load=header.load | {"n": len(requests), "concurrency": workload.concurrency, "rate_req_per_s": workload.rate_req_per_s,
                            "clients": len(runs)},
        workload_sha256=workload_sha256(workload),
        schedule_sha256=schedule_sha256(tuple(requests)),
        clock="kernel" if all(run.header.clock == "kernel" for run in runs) else "user",
        client=_summed(clients) | {"clients": clients},
        window_s=find_window(rows, workload),
        server={},
        duration_s=max(ends) - min(row.due_s for row in rows) if rows else None,
        finished=True,
        findings=tuple(findings),
        verdict=worst(findings),
    )  # fmt: skip
    return Run(header=header, rows=(*first, *rows))


def _moved(row: RequestRecord, by_s: float, base_user: int) -> RequestRecord:
    def moved(at: float | None) -> float | None:
        return None if at is None else at + by_s

    return replace(
        row, due_s=row.due_s + by_s, sent_s=moved(row.sent_s), headers_s=moved(row.headers_s), done_s=moved(row.done_s),
        chunk_s=tuple(t + by_s for t in row.chunk_s), user=None if row.user is None else row.user + base_user,
    )  # fmt: skip


def _without_siblings(runs: Sequence[Run], places: Sequence[dict[str, Any]]) -> list[Run]:
    """The runs without the finding of a busy machine where the other programs were our own clients on the same node."""
    out = []
    for number, (run, place) in enumerate(zip(runs, places, strict=True)):
        beside = [
            other.header.client
            for i, (other, there) in enumerate(zip(runs, places, strict=True))
            if there["node_id"] == place["node_id"] and i != number
        ]
        others = (run.header.client.get("others_cores") or 0.0) - sum(c.get("cpu_cores") or 0.0 for c in beside)
        ours = bool(beside) and others <= BUSY_FRAC * (place.get("cores") or 1)
        kept = tuple(f for f in run.header.findings if not (ours and f.code == "busy_machine"))
        out.append(replace(run, header=replace(run.header, findings=kept)))
    return out


def _together(runs: Sequence[Run]) -> list[Finding]:
    """The clients' findings, each said once with the clients that have it."""
    seen: dict[str, list[tuple[int, Finding]]] = {}
    for number, run in enumerate(runs, 1):
        for finding in run.header.findings:
            seen.setdefault(finding.code, []).append((number, finding))
    order = ("note", "suspect", "invalid")
    out = []
    for found in seen.values():
        level = max((f.level for _, f in found), key=order.index)
        who = ", ".join(str(number) for number, _ in found)
        out.append(replace(found[0][1], level=level, message=f"Client {who}: {found[0][1].message}"))
    return out


def _about_clocks(offsets: Sequence[Offset], after: Sequence[Offset]) -> list[Finding]:
    sure = max(o.sure_s for o in (*offsets, *after))
    drift = max(abs(a.offset_s - o.offset_s) for o, a in zip(offsets, after, strict=True))
    level = "suspect" if max(sure, drift) > SURE_S else "note"
    message = f"{len(offsets)} clients; their clocks are known to {sure * 1e3:.2f} ms and moved by {drift * 1e3:.2f} ms during the run."
    return [Finding(code="many_clients", level=level, message=message)]  # type: ignore[arg-type]  # one of the two


def _summed(clients: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures that a reader of one client's health expects: sums of counts and cores, the worst of the rest."""

    def values(name: str) -> list[float]:
        return [c[name] for c in clients if isinstance(c.get(name), int | float)]

    sums = {
        n: sum(values(n))
        for n in ("cpu_s", "cpu_cores", "reads", "kernel_stamped_reads", "connects", "busy_max")
        if values(n)
    }
    names = (
        "wall_s",
        "late_send_p99_s",
        "late_send_max_s",
        "read_lag_max_s",
        "steal_frac",
        "tokens_sharing_a_read_frac",
    )
    return sums | {n: max(values(n)) for n in names if values(n)}
