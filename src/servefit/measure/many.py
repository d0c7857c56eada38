"""One load from many clients: one schedule divided, every share begun at one moment, the rows merged into one run.

How clients are started is another matter: `workers` has processes of this machine, `on_ray` actors on a Ray cluster.
"""

import shutil
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servefit.errors import ServefitError
from servefit.host.machine import BUSY_FRAC
from servefit.measure.health import CLIENT_CODES, judge_rows
from servefit.measure.kept import Kept
from servefit.measure.load import Options, Prepared, Progress
from servefit.measure.probe import Endpoint
from servefit.measure.run import (
    already,
    header_of,
    measure,
    moved,
    parts_folder,
    physics_of,
    prepare,
    refuse_second,
    said_before,
    with_findings,
)
from servefit.records import Finding, RequestRecord, Run, RunHeader, RunWriter, iter_rows, load_run
from servefit.wire.address import resolve
from servefit.workload.arrivals import schedule
from servefit.workload.drawn import Ids
from servefit.workload.requests import Request
from servefit.workload.workload import Workload

SURE_S = 0.002
"""A clock offset that is less sure than this makes the run suspect: it blurs every latency from a due time."""

Part = tuple[Workload, tuple[Request, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """A client's monotonic clock minus ours, in seconds, and how sure: half the fastest round trip."""

    offset_s: float
    sure_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one client measured, and where. Its rows' times are on our clock."""

    run: Run
    place: dict[str, Any]
    """node, node_id, cores."""
    before: Offset | None = None
    """Its clock against ours at the start; None where it is the same clock."""
    after: Offset | None = None


Drive = Callable[[Prepared, Workload, Sequence[Request], Options, int], list[Share]]
"""Has the requests asked by clients and gives back their shares; the last argument is the rows' zero on our clock.

Where Ctrl-C ends it early it still gives back what there is, the headers of whose runs are not `finished`.
"""


def measure_from_many(endpoint: Endpoint, workload: Workload, options: Options, drive: Drive) -> Run:
    """The run of `workload` from several clients, kept in `options.out`.

    The target is looked at once, from here. Raises ServefitError; KeyboardInterrupt is passed on once what was measured is
    on disk.
    """
    if endpoint.paid:
        raise ServefitError(f"{endpoint.name} is a paid target: a cap cannot be kept by several clients.", hint="Measure it from one.")  # fmt: skip
    refuse_second(options)
    requests = schedule(workload)
    zero_ns = time.monotonic_ns()
    known = prepare(endpoint, workload, requests, options, zero_ns)
    header = header_of(known, workload, requests)
    with RunWriter(options.out, header, resume=options.resume) as writer:
        done = Ids()
        base_s = 0.0
        if options.resume:
            for row in _left_behind(options.out):
                writer.append(row)
            shutil.rmtree(parts_folder(options.out), ignore_errors=True)
            done, base_s = already(options.out, header)
        for row in known.rows:
            writer.append(moved(row, base_s))
        left = [r for r in requests if not done.has(r.id)]
        shares = drive(known, workload, left, options, zero_ns - round(base_s * 1e9)) if left else []
        for row in _merged(shares):
            writer.append(row)
        shutil.rmtree(parts_folder(options.out), ignore_errors=True)
        finished = all(share.run.header.finished for share in shares)
        kept = Kept(iter_rows(options.out), folder=options.out)
        final = judge(kept.run(header), shares, workload, interrupted=not finished)
        final = with_findings(final, physics_of(kept.run(final), known.endpoint, options))
        final = with_findings(final, said_before(options, final))
        writer.finish(final, finished=finished)
    if not finished:
        raise KeyboardInterrupt
    return kept.run(final)


def _left_behind(out: Path) -> Iterator[RequestRecord]:
    """The rows of clients whose run was killed before they were merged, but for those that a killed merge had taken over."""
    folders = sorted(parts_folder(out).glob("*/run.json"))
    there = {(row.id, row.phase) for row in iter_rows(out)}
    shares = [Share(run=load_run(path.parent, packed=True), place={}) for path in folders]
    return (row for row in _merged(shares) if (row.id, row.phase) not in there)


def tell(options: Options, step: str) -> None:
    """Say what is being done, to whoever watches."""
    if options.progress is not None:
        options.progress(Progress(step=step))


def begin_in(lead_s: float, requests: Sequence[Request], options: Options) -> int:
    """When the schedule begins, on our monotonic clock; that of a resumed open loop begins with its first request."""
    first_s = requests[0].due_s if options.resume else 0.0
    return time.monotonic_ns() + round((lead_s - first_s) * 1e9)


def measure_share(known: Prepared, workload: Workload, requests: tuple[Request, ...], options: Options) -> Run:
    """A client's part of the load; the target's name is looked up from where it is."""
    was = known.endpoint.address
    endpoint = replace(known.endpoint, address=resolve(known.endpoint.url, ca_file=was.ca_file))
    return measure(endpoint, workload, options, requests=requests, known=replace(known, endpoint=endpoint))


def portable(known: Prepared, options: Options) -> tuple[Prepared, Options]:
    """Both without what cannot travel to another process: a TLS context, functions, and what is judged here anyway."""
    plain = replace(known.endpoint, address=replace(known.endpoint.address, tls=None))
    return replace(known, endpoint=plain, rows=[]), replace(
        options, progress=None, may_send=None, settled=None, until=None, device=None, resume=False
    )


# --- dividing ---------------------------------------------------------------------------------------------------------


def shares_of(workload: Workload, requests: Sequence[Request], clients: int) -> list[Part]:
    """What each client asks: an open loop's requests in turn, a closed loop's users (and requests) divided evenly.

    The requests of one session stay with one client. Ids and due times stay those of the whole schedule.

    >>> parts = shares_of(Workload(n=5, concurrency=3), schedule(Workload(n=5, concurrency=3)), 2)
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


# --- merging ----------------------------------------------------------------------------------------------------------


def _merged(shares: Sequence[Share]) -> Iterator[RequestRecord]:
    """All rows in the order in which they ended, the users of each client with numbers of their own."""
    ended = array("d")
    owners: list[tuple[int, int, Sequence[RequestRecord]]] = []
    """From which place on the rows are whose, the number of its first user, the rows."""
    base_user = 0
    for share in shares:
        owners.append((len(ended), base_user, share.run.rows))
        ended.extend(row.done_s or row.due_s for row in share.run.rows)
        base_user += share.run.header.load.get("concurrency") or 0
    firsts = [first for first, _, _ in owners]
    for place in sorted(range(len(ended)), key=ended.__getitem__):
        first, user, rows = owners[bisect_right(firsts, place) - 1]
        row = rows[place - first]
        yield row if row.user is None else replace(row, user=row.user + user)


def judge(run: Run, shares: Sequence[Share], workload: Workload, *, interrupted: bool = False) -> RunHeader:
    """The header of the merged run: the rows judged as one client's are; of the clients' health the worst counts."""
    clients = [
        {**share.place, "requests": len(share.run.rows), **_clock(share), **share.run.header.client} for share in shares
    ]
    header = replace(
        run.header,
        load=run.header.load | {"clients": len(shares)},
        clock="kernel" if shares and all(share.run.header.clock == "kernel" for share in shares) else "user",
        client=_summed(clients) | {"clients": clients},
    )
    own = [*_together(_without_siblings(shares)), *_about_clocks(shares)]
    return judge_rows(replace(run, header=header), workload, own, interrupted=interrupted)


def _clock(share: Share) -> dict[str, float]:
    if share.before is None or share.after is None:
        return {}
    return {
        "clock_offset_s": share.before.offset_s,
        "clock_sure_s": share.before.sure_s,
        "clock_drift_s": share.after.offset_s - share.before.offset_s,
    }


def _without_siblings(shares: Sequence[Share]) -> list[list[Finding]]:
    """Each client's findings about itself, without that of a busy machine where the other programs were our own clients."""
    out = []
    for share in shares:
        beside = [
            other.run.header.client
            for other in shares
            if other is not share and other.place["node_id"] == share.place["node_id"]
        ]
        client = share.run.header.client
        others = (client.get("others_cores") or 0.0) - sum(c.get("cpu_cores") or 0.0 for c in beside)
        ours = bool(beside) and others <= BUSY_FRAC * (share.place.get("cores") or 1)
        found = [f for f in share.run.header.findings if f.code in CLIENT_CODES]
        out.append([f for f in found if not (ours and f.code == "busy_machine")])
    return out


def _together(findings: Sequence[Sequence[Finding]]) -> list[Finding]:
    """The clients' findings, each said once with the clients that have it."""
    seen: dict[str, list[tuple[int, Finding]]] = {}
    for number, own in enumerate(findings, 1):
        for finding in own:
            seen.setdefault(finding.code, []).append((number, finding))
    order = ("note", "suspect", "invalid")
    out = []
    for found in seen.values():
        _, worst = max(found, key=lambda pair: order.index(pair[1].level))
        who = ", ".join(str(number) for number, _ in found)
        out.append(replace(worst, message=f"Client {who}: {worst.message}"))
    return out


def _about_clocks(shares: Sequence[Share]) -> list[Finding]:
    compared = [(s.before, s.after) for s in shares if s.before is not None and s.after is not None]
    if not shares:  # all of it was there already
        return []
    if not compared:
        return [
            Finding(code="many_clients", level="note", message=f"{len(shares)} clients on this machine, by one clock.")
        ]
    sure = max(o.sure_s for pair in compared for o in pair)
    drift = max(abs(a.offset_s - b.offset_s) for b, a in compared)
    message = f"{len(shares)} clients; their clocks are known to {sure * 1e3:.2f} ms and moved by {drift * 1e3:.2f} ms during the run."
    return [Finding(code="many_clients", level="suspect" if max(sure, drift) > SURE_S else "note", message=message)]


def _summed(clients: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures that a reader of one client's health expects: sums of counts and cores, the worst of the rest."""

    def values(name: str) -> list[float]:
        return [c[name] for c in clients if isinstance(c.get(name), int | float)]

    counts = ("cpu_s", "cpu_cores", "reads", "kernel_stamped_reads", "connects", "busy_max")
    worst = ("wall_s", "late_send_p99_s", "late_send_max_s", "read_lag_max_s", "steal_frac", "tokens_sharing_a_read_frac",
             "waited_for_core_frac")  # fmt: skip
    return {n: sum(values(n)) for n in counts if values(n)} | {n: max(values(n)) for n in worst if values(n)}
