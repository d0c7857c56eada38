"""Clients as actors on a Ray cluster (`measure --ray`): their clocks are compared with ours before and after the load."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from servefit import __version__
from servefit.errors import CannotMeasure, ServefitError
from servefit.host.ray_cluster import connected
from servefit.measure.load import Options, Prepared
from servefit.measure.many import Drive, Offset, Part, Share, begin_in, measure_share, portable, shares_of, tell
from servefit.measure.probe import Endpoint
from servefit.records import Run
from servefit.wire.address import is_loopback
from servefit.workload.requests import Request
from servefit.workload.workload import Workload

PINGS = 30
LEAD_S = 1.5
"""From the moment when every client is ready to the first due time: enough to open connections and build prompts."""


def on_ray(address: str, clients: int | None) -> Drive:
    """Has the load sent by actors on the cluster at `address` ("local": one is started here); None: one a node.

    While the load runs, rows are on the clients' nodes: what is cut off is lost. Raises ServefitError, CannotMeasure.
    """
    if clients is not None and clients < 1:
        raise ServefitError(f"--clients is {clients}.", hint="At least 1.")

    def drive(
        known: Prepared, workload: Workload, requests: Sequence[Request], options: Options, zero_ns: int
    ) -> list[Share]:
        here = address == "local"
        with connected(address, purpose="measure --ray", cpus=(clients or 2) if here else None) as ray:
            count = clients or (2 if here else sum(n["Alive"] for n in ray.nodes()))
            tell(options, f"starting {count} clients")
            parts = shares_of(workload, requests, count)
            remote = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(RemoteClient)
            actors = [remote.remote() for _ in parts]
            try:
                places = _ready(ray, actors, known.endpoint)
                before = [_compare_clocks(ray, actor) for actor in actors]
                runs = _drive(
                    ray, actors, parts, portable(known, options), offsets=before, zero_ns=zero_ns,
                    begin_ns=begin_in(LEAD_S, requests, options),
                )  # fmt: skip
                after = [_compare_clocks(ray, actor) for actor in actors]
            finally:
                for actor in actors:
                    ray.kill(actor)
        return [
            Share(run=run, place={k: place[k] for k in ("node", "node_id", "cores")}, before=b, after=a)
            for run, place, b, a in zip(runs, places, before, after, strict=True)
        ]

    return drive


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
            try:
                return measure_share(known, workload, requests, replace(options, out=Path(folder) / "run"))
            except ServefitError as error:
                return error.message


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


def best_offset(trips: Sequence[tuple[int, int, int]]) -> Offset:
    """The clock offset from (asked, theirs, answered) times in ns: that of the fastest round trip, as NTP does.

    Source: RFC 5905, section 8 (offset = theirs - the middle of ours; the error is at most half the round trip).

    >>> best_offset([(0, 1_000_500, 1_000), (0, 1_900_000, 900_000)])
    Offset(offset_s=0.001, sure_s=5e-07)
    """
    asked, theirs, answered = min(trips, key=lambda t: t[2] - t[0])
    return Offset(offset_s=(theirs - (asked + answered) / 2) / 1e9, sure_s=(answered - asked) / 2e9)


def _drive(
    ray: Any,
    actors: Sequence[Any],
    parts: Sequence[Part],
    travels: tuple[Prepared, Options],
    *,
    offsets: Sequence[Offset],
    zero_ns: int,
    begin_ns: int,
) -> list[Run]:
    """Every client's run, all begun at one moment; each counts from our zero on its own clock."""
    known, options = travels
    asked = []
    for actor, (part, own), offset in zip(actors, parts, offsets, strict=True):
        shift = round(offset.offset_s * 1e9)
        at = replace(options, begin_ns=begin_ns + shift, zero_ns=zero_ns + shift)
        asked.append(actor.drive.remote(known, part, own, at))
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
