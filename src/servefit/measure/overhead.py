"""What our own client adds to a time, measured against a server that thinks of nothing, before the load."""

import subprocess
import sys
import time
from pathlib import Path
from time import monotonic_ns
from typing import Any

from servefit.stats import percentile
from servefit.wire.address import read_url, resolve
from servefit.wire.client import Client, Exchange, Limits

STREAMS, EVENTS, GAP_US = 8, 40, 2000
"""8 streams of 40 events, one every 2 ms: 80 ms, and fast enough to show a client that lags."""
ALLOWED_TTFT_S = 0.002
ALLOWED_EVENT_S = 0.002


def own_overhead(*, kernel_clock: bool = True) -> dict[str, Any] | None:
    """Seconds that we add to a first token and to any event, CPU seconds an event; None where it could not be learnt.

    `ttft_s`: from sending to the first event's arrival, less what the server took from having read the request to writing
    it, so both ways through the loopback are in it. `event_s`: from writing to arrival. Takes about 0.15 s.
    """
    began = time.monotonic()
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("null_server.py"))]
    command += [str(STREAMS), str(EVENTS), str(GAP_US)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None, "its port is read from there"
            port = server.stdout.readline().strip()
            found = _ask(f"http://127.0.0.1:{port}", kernel_clock) if port else None
        finally:
            server.kill()
    if found is not None:
        found["took_s"] = round(time.monotonic() - began, 3)
    return found


def _ask(url: str, kernel_clock: bool) -> dict[str, Any] | None:
    wire = b"GET / HTTP/1.1\r\nHost: null\r\n\r\n"
    client = Client(
        resolve(read_url(url)), limits=Limits(connect_s=1, silent_s=1, total_s=2), kernel_clock=kernel_clock
    )
    try:
        client.open_ahead(STREAMS)
        client.settle(1.0)
        used = time.process_time()
        for number in range(STREAMS):
            exchange = Exchange(number, wire)
            exchange.due_when_sent = True
            client.send(exchange)
        ended: list[Exchange] = []
        while client.busy:
            ended += client.poll(monotonic_ns() + 100_000_000)
        used = time.process_time() - used
        clock = client.clock
    finally:
        client.close()
    ttft, events = [], []
    for exchange in ended:
        if exchange.failure is not None or exchange.http_status != 200:
            return None
        first, *late = _lateness_s(exchange)
        ttft.append(first)
        events.extend(late)
    return {
        "streams": STREAMS, "events": len(events), "clock": clock,
        "ttft_p50_s": percentile(ttft, 50), "ttft_max_s": max(ttft),
        "event_p50_s": percentile(events, 50), "event_p99_s": percentile(events, 99),
        "cpu_s_per_event": used / max(len(events), 1),
    }  # fmt: skip


def _lateness_s(exchange: Exchange) -> list[float]:
    """What was added to the first event's wait since sending, then the lateness of each event, in seconds."""
    out: list[float] = []
    at, read = 0, 0
    body = bytes(exchange.body)
    while (end := body.find(b"\n\n", at)) >= 0:
        read_ns, written_ns = (int(word) for word in body[at + 6 : end].split())
        while exchange.ends[read] < end + 2:
            read += 1
        arrived = exchange.times_ns[read]
        if not out:
            assert exchange.sent_ns is not None, "an exchange with an answer was sent"
            out.append((arrived - exchange.sent_ns - (written_ns - read_ns)) / 1e9)
        out.append((arrived - written_ns) / 1e9)
        at = end + 2
    return out
