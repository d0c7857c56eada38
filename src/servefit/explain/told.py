"""What stands beside the rows in a run's header: the server's own counters over the load, and the network's round trip."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from servefit.records import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Means of the server's own counters over the load, in seconds: `n` first tokens by its count, as many as by ours."""

    n: int
    queue_s: float
    ttft_s: float
    """Its TTFT: from its front end on, so without the network."""
    outside_s: float
    """Our mean TTFT from sending on, less its own: network, sockets, HTTP. Never below zero."""

    @property
    def no_queue(self) -> bool:
        """Whether waiting in line was less than 5% of the server's TTFT: the run as a whole had none."""
        return self.queue_s < 0.05 * self.ttft_s


def counted(run: Run) -> Counted | None:
    """The counters' means; None where the server told none, or served others than us meanwhile (their count is then not ours)."""
    told = run.header.server
    first, queue, total = (told.get(name) for name in ("ttft_n", "queue_s", "ttft_s"))
    ours = [r.ttft_from_send_s for r in run.load_rows if r.ok and r.ttft_from_send_s is not None]
    if not first or queue is None or not total or not ours or abs(first - len(ours)) > 0.05 * len(ours):
        return None
    mean = float(total) / float(first)
    outside = max(sum(ours) / len(ours) - mean, 0.0)
    return Counted(n=len(ours), queue_s=float(queue) / float(first), ttft_s=mean, outside_s=outside)


def is_local(run: Run) -> bool:
    """Whether the server was on the machine that measured; simulated and imported runs have no network either."""
    host = urlsplit(str(run.header.endpoint.get("url") or "")).hostname
    return host is None or host in {"localhost", "::1"} or host.startswith("127.")


def round_trip_s(run: Run) -> float | None:
    """The shortest round trip to the server's address, in seconds; None where it is local or nobody took it."""
    taken = run.header.client.get("rtt_s")
    return float(taken) if taken is not None and not is_local(run) else None
