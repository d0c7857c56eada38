"""Connections, bytes in, arrival times. Nothing but HTTP is parsed here, no request is sent twice, no time is taken late.

One thread and one epoll. The kernel stamps each segment when it arrives (Linux, SO_TIMESTAMPNS), so a client that gets
round to reading it late still knows when it came; elsewhere our own clock is used and the run says so. Times are whole
nanoseconds of the monotonic clock; the offset to the kernel's wall clock is taken anew at every wake-up, so that a step
of the wall clock does not move a latency.
"""

import contextlib
import errno
import os
import socket
import sys
from array import array
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any

import httptools

from servefit.errors import ServefitError
from servefit.wire.address import Address
from servefit.wire.kernel import SO_TIMESTAMPNS, STAMP_SPACE, round_trip_ns, start_stamping, unstamp
from servefit.wire.poller import IN, OUT, make_poller

if TYPE_CHECKING:
    from servefit.wire.tls import Tls

_READ_BYTES = 1 << 16
_STEP_NS = 1_000_000_000
"""A stamp further than this from our own clock was taken across a step of the wall clock, and is not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to give up on a request. A request that passes one is a row with a status, never retried."""

    connect_s: float = 10.0
    silent_s: float = 300.0
    """No headers, or no further byte, for this long."""
    total_s: float = 3600.0
    body_bytes: int = 64 * 2**20
    idle_s: float = 4.0
    """An idle connection older than this is replaced before use: many servers close theirs after 5 s."""

    def __post_init__(self) -> None:
        """Raise ServefitError for a limit that no request, or that none ever, passes."""
        for name in ("connect_s", "silent_s", "total_s", "idle_s"):
            if not getattr(self, name) > 0:
                raise ServefitError(f"The limit {name} is {getattr(self, name):g} s.", hint="A limit is above 0 s.")


class Exchange:
    """One request on the wire and what came back: the body in one buffer, where each read ended in it, and when."""

    __slots__ = (
        "_parser", "at_ns", "body", "complete", "connect_ns", "done_ns", "due_ns", "due_when_sent", "ends", "error", "failure",
        "head_ns", "headers", "http_status", "id", "keep_alive", "on_body", "owner", "reused", "sent_ns", "stamped", "started_ns",
        "times_ns", "watch_bytes", "wire",
    )  # fmt: skip

    def __init__(self, number: int, wire: bytes, *, owner: Any = None) -> None:
        self.id = number
        self.wire = wire
        self.owner = owner
        self.due_ns = 0
        self.due_when_sent = False
        """A closed loop: nobody waits before asking, so connecting is no part of the latency."""
        self.started_ns = 0
        """When the client took it: later than due where the client was late."""
        self.sent_ns: int | None = None
        self.connect_ns: int | None = None
        self.reused = False
        self.body = bytearray()
        self.on_body = self.body.extend
        self.ends = array("q")
        self.times_ns = array("q")
        self.stamped = 0
        """How many of the reads carry the kernel's time."""
        self.at_ns = 0
        self.head_ns: int | None = None
        self.headers: dict[str, str] = {}
        self.http_status: int | None = None
        self.complete = False
        self.keep_alive = False
        self.failure: str | None = None
        """A status of `records.STATUSES` where the wire failed; None where HTTP ended as it should."""
        self.error = ""
        self.done_ns = 0
        self.watch_bytes = sys.maxsize
        self._parser: Any = None

    # Called by the HTTP parser.
    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; of several of one name the last counts."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Note the status, and when it was known; an informational answer (1xx) is passed over."""
        status = self._parser.get_status_code()
        if status >= 200:
            self.http_status = status
            self.head_ns = self.at_ns
        else:
            self.headers.clear()

    def on_message_complete(self) -> None:
        """The answer has ended as HTTP says, unless it was informational."""
        self.complete = self.http_status is not None
        self.keep_alive = bool(self._parser.should_keep_alive())


class _Connection:
    __slots__ = (
        "connect_ns", "exchange", "fd", "idle_ns", "keep_ns", "opened_ns", "parser", "pending", "ready", "sock", "tls",
        "touched_ns", "used",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, now: int) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.exchange: Exchange | None = None
        self.parser: Any = None
        self.ready = False
        self.used = False
        self.opened_ns = now
        self.connect_ns = 0
        self.idle_ns = now
        self.touched_ns = now
        self.keep_ns: int | None = None
        self.pending = b""
        self.tls: Tls | None = None

    @property
    def handshaking(self) -> bool:
        """Whether TLS is still being agreed on."""
        return self.tls is not None and self.tls.handshaking


@dataclass(slots=True)
class Counters:
    """What the client saw of itself while it ran."""

    reads: int = 0
    stamped: int = 0
    wakeups: int = 0
    lag_ns_max: int = 0
    """The longest between the kernel's receive time and our reading it."""
    lag_ns_sum: int = 0
    connects: int = 0
    rtt_ns_min: int | None = None
    """The shortest round trip of a TCP handshake: by the kernel on Linux, else how long connecting took."""
    replaced: int = 0
    """Idle connections that the server had closed, or that were too old to trust, replaced before use."""
    clock_steps: int = 0
    busy_max: int = 0


class Client:
    """Sends exchanges to one address and reads the answers; `poll` returns those that have ended."""

    def __init__(self, address: Address, *, limits: Limits | None = None, kernel_clock: bool = True) -> None:
        self.address = address
        self.limits = limits or Limits()
        self.counters = Counters()
        self.kernel_clock = kernel_clock and start_stamping()
        self.fresh = False
        """A new connection for each request, opened ahead: for servers that close theirs under the next request."""
        self.ahead = 0
        """How many connections to hold open: one that the server closes is replaced at once."""
        self.watch: Any = None
        """Called with an exchange whose body passed its `watch_bytes`: returns the next mark, or None to cut it off."""
        self._poller = make_poller()
        self._connections: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        self._ended: list[Exchange] = []
        self._busy = 0
        self._checked_ns = monotonic_ns()

    @property
    def busy(self) -> int:
        """Exchanges under way."""
        return self._busy

    @property
    def clock(self) -> str:
        """Which clock gave the arrival times: "kernel" only if every read carried its stamp."""
        seen = self.counters
        return "kernel" if self.kernel_clock and seen.reads and seen.stamped >= 0.999 * seen.reads else "user"

    # --- sending ----------------------------------------------------------------------------------------------------

    def open_ahead(self, count: int) -> None:
        """Have `count` connections open or opening, so that no request pays for connecting."""
        self.ahead = count
        for _ in range(count - len(self._connections)):
            self._connect(None)

    def freshen(self, count: int) -> None:
        """Replace idle connections that are too old to trust, so that `count` are ready for the next due time."""
        now = monotonic_ns()
        stale = [c for c in self._idle if self._too_old(c, now)]
        for connection in stale:
            self._drop(connection)
            self.counters.replaced += 1
        free = sum(1 for c in self._connections.values() if c.exchange is None)
        for _ in range(min(count - free, len(stale) or count)):
            self._connect(None)

    def settle(self, within_s: float) -> None:
        """Wait until every connection opened ahead is ready or has failed, at most `within_s`."""
        limit = monotonic_ns() + int(within_s * 1e9)
        while monotonic_ns() < limit and any(not c.ready for c in self._connections.values()):
            self._ended.extend(self.poll(limit))

    def send(self, exchange: Exchange) -> None:
        """Send now on an idle connection, or on a new one as soon as it is open."""
        now = monotonic_ns()
        exchange.started_ns = now
        self._busy += 1
        self.counters.busy_max = max(self.counters.busy_max, self._busy)
        while self._idle:
            connection = self._idle.pop()
            if self._connections.get(connection.fd) is not connection:
                continue
            if self._too_old(connection, now):
                self._drop(connection)
                self.counters.replaced += 1
                continue
            exchange.reused = connection.used
            self._begin(connection, exchange)
            return
        waiting = next((c for c in self._connections.values() if c.exchange is None and not c.ready), None)
        if waiting is not None:
            waiting.exchange = exchange
        else:
            self._connect(exchange)

    def _too_old(self, connection: _Connection, now: int) -> bool:
        limit = self.limits.idle_s * 1e9 if connection.keep_ns is None else connection.keep_ns
        return now - connection.idle_ns > limit

    def _connect(self, exchange: Exchange | None) -> None:
        now = monotonic_ns()
        self.counters.connects += 1
        try:
            sock = socket.socket(self.address.family, socket.SOCK_STREAM)
        except OSError as error:
            if exchange is not None:
                self._fail_unsent(exchange, "refused", f"no socket: {error.strerror}")
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.kernel_clock:
            try:
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            except OSError:
                self.kernel_clock = False
        code = sock.connect_ex(self.address.sockaddr)
        if code not in {0, errno.EINPROGRESS, errno.EWOULDBLOCK}:
            sock.close()
            if exchange is not None:
                self._fail_unsent(exchange, "refused" if code == errno.ECONNREFUSED else "reset", os.strerror(code))
            return
        connection = _Connection(sock, now)
        connection.exchange = exchange
        self._connections[connection.fd] = connection
        self._poller.register(connection.fd, IN | OUT)

    def _fail_unsent(self, exchange: Exchange, failure: str, error: str) -> None:
        exchange.failure, exchange.error, exchange.done_ns = failure, error, monotonic_ns()
        self._busy -= 1
        self._ended.append(exchange)

    def _connected(self, connection: _Connection) -> None:
        code = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            refused = code == errno.ECONNREFUSED
            self._fail(connection, "refused" if refused else "reset", os.strerror(code))
            return
        trip = round_trip_ns(connection.sock) or monotonic_ns() - connection.opened_ns
        self.counters.rtt_ns_min = min(self.counters.rtt_ns_min or trip, trip)
        if self.address.tls is not None and connection.tls is None:
            from servefit.wire.tls import Tls

            connection.tls = Tls(self.address.tls, self.address.host)
            self._shake(connection, connection.tls, b"")
            return
        self._ready(connection)

    def _shake(self, connection: _Connection, tls: "Tls", data: bytes) -> None:
        """Go on with the TLS handshake."""
        from servefit.wire.tls import TlsError

        try:
            self._push(connection, tls.shake(data))
        except TlsError as error:
            self._fail(connection, "refused", str(error))
            return
        if not tls.handshaking and connection.fd in self._connections:
            self._ready(connection)

    def _ready(self, connection: _Connection) -> None:
        now = monotonic_ns()
        connection.ready = True
        connection.connect_ns = now - connection.opened_ns
        connection.idle_ns = now
        self._poller.modify(connection.fd, IN)
        if connection.exchange is None:
            self._idle.append(connection)
        else:
            connection.exchange.connect_ns = connection.connect_ns
            self._begin(connection, connection.exchange)

    def _begin(self, connection: _Connection, exchange: Exchange) -> None:
        connection.exchange = exchange
        connection.parser = exchange._parser = httptools.HttpResponseParser(exchange)  # noqa: SLF001
        connection.used = True
        exchange.watch_bytes = min(exchange.watch_bytes, self.limits.body_bytes)
        exchange.sent_ns = connection.touched_ns = monotonic_ns()
        if exchange.due_when_sent:
            exchange.due_ns = exchange.sent_ns
        self._write(connection, exchange.wire)

    def _write(self, connection: _Connection, data: bytes) -> None:
        if connection.tls is not None:
            self._push(connection, connection.tls.encrypt(data))
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._fail(connection, "reset", error.strerror or "send failed")
            return
        if sent < len(data):
            connection.pending = data[sent:]
            self._poller.modify(connection.fd, IN | OUT)

    def _push(self, connection: _Connection, data: bytes) -> None:
        """Send what TLS has encrypted, after what was still waiting."""
        connection.pending += data
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            while connection.pending:
                connection.pending = connection.pending[connection.sock.send(connection.pending) :]
        except BlockingIOError:
            self._poller.modify(connection.fd, IN | OUT)
            return
        except OSError as error:
            self._fail(connection, "reset", error.strerror or "send failed")
            return
        self._poller.modify(connection.fd, IN)

    # --- receiving --------------------------------------------------------------------------------------------------

    def poll(self, until_ns: int) -> list[Exchange]:
        """Read what is there, waiting for it until `until_ns` at most; the exchanges that ended meanwhile."""
        if not self._ended:
            now = monotonic_ns()
            soonest = min(until_ns, now + 250_000_000)
            events = self._poller.wait(max(soonest - now, 0))
            self.counters.wakeups += 1
            now = monotonic_ns()
            offset = time_ns() - now
            for fd, mask in events:
                connection = self._connections.get(fd)
                if connection is None:
                    continue
                if not connection.ready and not connection.handshaking:
                    self._connected(connection)
                    continue
                if mask & OUT and connection.pending:
                    self._flush(connection)
                if mask & ~OUT:
                    self._receive(connection, offset)
            if now - self._checked_ns > 200_000_000:
                self._checked_ns = now
                self._check_limits(now)
        ended, self._ended = self._ended, []
        return ended

    def _receive(self, connection: _Connection, offset: int) -> None:
        try:
            if self.kernel_clock:
                data, ancillary, _, _ = connection.sock.recvmsg(_READ_BYTES, STAMP_SPACE)
            else:
                data, ancillary = connection.sock.recv(_READ_BYTES), []
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(connection, "reset", error.strerror or "reset")
            return
        at = now = monotonic_ns()
        seen = self.counters
        exchange = connection.exchange
        if ancillary:
            seconds, nanoseconds = unstamp(ancillary[0][2])
            stamp = seconds * 1_000_000_000 + nanoseconds - offset
            lag = now - stamp
            if 0 < lag < _STEP_NS or (exchange is not None and stamp >= connection.touched_ns and lag > 0):
                at = stamp
                seen.lag_ns_sum += lag
                seen.lag_ns_max = max(seen.lag_ns_max, lag)
            elif lag <= -1_000_000 or lag > 0:
                seen.clock_steps += 1
                ancillary.clear()
        if data:
            seen.reads += 1
            if ancillary:
                seen.stamped += 1
            if connection.ready and exchange is not None and connection.tls is None:
                self._feed(connection, exchange, data, at)
                return
        if connection.tls is not None:
            plain = self._decrypt(connection, connection.tls, data)
            if plain is None:
                return
            data = plain
        if exchange is None or not connection.ready:
            self._unasked(connection, data)
        elif not data:
            self._end_of_file(connection, exchange, at)
        else:
            self._feed(connection, exchange, data, at)

    def _feed(self, connection: _Connection, exchange: Exchange, data: bytes, at: int) -> None:
        exchange.at_ns = connection.touched_ns = at
        try:
            connection.parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not exchange.complete:
                self._fail(connection, "bad_stream", f"not HTTP: {error}", at=at)
                return
        end = len(exchange.body)
        exchange.ends.append(end)
        exchange.times_ns.append(at)
        if exchange.complete:
            self._finish(connection, exchange, at)
        elif end > exchange.watch_bytes:
            mark = self.watch(exchange) if self.watch is not None and end <= self.limits.body_bytes else None
            if mark is None:
                self._fail(connection, "too_long", f"the answer passed {end:,} bytes", at=at)
            else:
                exchange.watch_bytes = min(mark, self.limits.body_bytes)

    def _decrypt(self, connection: _Connection, tls: "Tls", data: bytes) -> bytes | None:
        """The plain bytes in `data`; None where there is nothing to do yet."""
        from servefit.wire.tls import TlsError

        if not data:
            return b""
        if tls.handshaking:
            self._shake(connection, tls, data)
            return None
        try:
            plain, answer = tls.decrypt(data)
        except TlsError as error:
            self._fail(connection, "reset", str(error))
            return None
        if answer:
            self._push(connection, answer)
        return plain or None

    def _unasked(self, connection: _Connection, data: bytes) -> None:
        """An idle connection was closed by the server, or spoke out of turn: it is replaced when needed."""
        if connection.handshaking and not data:
            self._fail(connection, "reset", "closed during the TLS handshake")
            return
        self.counters.replaced += 1
        self._drop(connection)

    def _end_of_file(self, connection: _Connection, exchange: Exchange, at: int) -> None:
        if exchange.http_status is None:
            self._fail(connection, "reset", "closed before an answer", at=at)
            return
        by_length = "content-length" in exchange.headers
        chunked = "chunked" in exchange.headers.get("transfer-encoding", "").lower()
        if by_length or chunked:
            self._fail(connection, "reset", "closed inside the answer", at=at)
            return
        exchange.complete = True  # HTTP/1.0: the end of the connection is the end of the answer
        self._finish(connection, exchange, at, keep=False)

    def _finish(self, connection: _Connection, exchange: Exchange, at: int, *, keep: bool = True) -> None:
        exchange.done_ns = at
        self._busy -= 1
        self._ended.append(exchange)
        connection.exchange = None
        keep = keep and exchange.keep_alive and not self.fresh
        connection.parser = exchange._parser = None  # noqa: SLF001 - a cycle; the collector rests while we measure
        if keep:
            connection.idle_ns = monotonic_ns()
            connection.keep_ns = _keep_alive_ns(exchange.headers.get("keep-alive", ""))
            self._idle.append(connection)
        else:
            self._drop(connection)
            if len(self._connections) < self.ahead:
                self._connect(None)

    # --- ends -------------------------------------------------------------------------------------------------------

    def _fail(self, connection: _Connection, failure: str, error: str, *, at: int | None = None) -> None:
        exchange, connection.exchange = connection.exchange, None
        self._drop(connection)
        connection.parser = None
        if exchange is not None:
            exchange._parser = None  # noqa: SLF001
            exchange.failure, exchange.error = failure, error
            exchange.done_ns = at if at is not None else monotonic_ns()
            self._busy -= 1
            self._ended.append(exchange)

    def cut(self, exchange: Exchange, failure: str, error: str) -> None:
        """End an exchange from our side; it comes out of the next `poll`."""
        for connection in self._connections.values():
            if connection.exchange is exchange:
                self._fail(connection, failure, error)
                return

    def cancel_all(self, error: str) -> list[Exchange]:
        """Cut off everything under way; the exchanges that were."""
        for connection in list(self._connections.values()):
            if connection.exchange is not None:
                self._fail(connection, "cancelled", error)
        ended, self._ended = self._ended, []
        return ended

    def _check_limits(self, now: int) -> None:
        limits = self.limits
        for connection in list(self._connections.values()):
            exchange = connection.exchange
            if not connection.ready:
                if now - connection.opened_ns > limits.connect_s * 1e9:
                    self._fail(connection, "timeout", f"no connection within {limits.connect_s:g} s")
                continue
            if exchange is None or exchange.sent_ns is None:
                continue
            silent = now - connection.touched_ns
            if silent > 1e9 and exchange.body.rstrip().endswith(b"data: [DONE]"):
                self._fail(connection, "no_http_end", "the stream's end came, the end of the HTTP answer did not")
            elif silent > limits.silent_s * 1e9:
                what = "no headers" if exchange.http_status is None else "no further byte"
                self._fail(connection, "timeout", f"{what} within {limits.silent_s:g} s")
            elif now - exchange.sent_ns > limits.total_s * 1e9:
                self._fail(connection, "timeout", f"not complete within {limits.total_s:g} s")

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.fd, None) is not None:
            self._poller.unregister(connection.fd)
            connection.sock.close()
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._poller.close()


def _keep_alive_ns(header: str) -> int | None:
    """How long an idle connection may be trusted by `Keep-Alive: timeout=5`: a second less; None where it says nothing."""
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "timeout" and value.isdigit():
            return max(int(value) * 1_000_000_000 - 1_000_000_000, 0)
    return None
