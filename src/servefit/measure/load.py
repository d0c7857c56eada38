"""The load itself: sends what is due, reads what has come, writes each row as it ends."""

import gc
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic_ns
from typing import Any

from servefit.facts.devices import Device
from servefit.host import others
from servefit.host.realtime import real_time
from servefit.measure.health import Health
from servefit.measure.kept import Kept
from servefit.measure.pace import ClosedLoop, Flow, OpenLoop, Pace
from servefit.measure.probe import Endpoint
from servefit.measure.prompts import PromptMaker, make_conversation, make_prompt
from servefit.measure.rows import Planned, make_row
from servefit.measure.until import Until
from servefit.records import RequestRecord, RunWriter
from servefit.spill import Ranked
from servefit.wire.address import is_loopback
from servefit.wire.client import Client, Exchange, Limits
from servefit.wire.dialects import Ask
from servefit.workload.drawn import Drawn
from servefit.workload.requests import Request
from servefit.workload.workload import Workload

MOST_UNWRITTEN = 2_000
"""Answers that may wait for their row, 3 kB and their bytes each, where a client has no idle moment; then rows go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a measurement is, for whoever watches it."""

    step: str
    done: int = 0
    total: int = 0
    busy: int = 0
    elapsed_s: float = 0.0
    by_status: dict[str, int] = field(default_factory=dict)
    ttft_s: tuple[float, ...] = ()
    """TTFT of the last successes."""
    itl_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to measure, beside what."""

    out: Path
    probe: bool = True
    """Ask the endpoint what it is and accepts, a cold request and a warm-up first. Off, the first request counts."""
    prompt: str | None = None
    keep_text: bool = False
    resume: bool = False
    kernel_clock: bool = True
    limits: Limits = field(default_factory=Limits)
    progress: Callable[[Progress], None] | None = None
    until: Until | None = None
    """Ends the load once it has seen enough; what is under way is still waited for."""
    may_send: Callable[[str, int, int], bool] | None = None
    """Asked before each request (its id, prompt tokens, answer tokens): False ends the load, as at a spend cap."""
    settled: Callable[[RequestRecord], None] | None = None
    """Told each row as it ends, warm-up and cold start too: what was really used."""
    device: Device | None = None
    """What the model runs on, so that times which physics does not allow are found; None: this machine, for a server here."""
    realtime: bool = False
    """Take a real-time priority for the load, where the system allows it."""
    precision: str | None = None
    """Of the model's weights there; None: unknown."""
    begin_ns: int | None = None
    """On this machine's monotonic clock: when the schedule begins, so that several clients begin as one; None: at once."""
    zero_ns: int | None = None
    """On the same clock: the zero of the rows' times; None: when the measurement begins."""


@dataclass(slots=True)
class Prepared:
    """What is known before the clock starts."""

    endpoint: Endpoint
    maker: PromptMaker
    overhead: dict[str, Any] | None = None
    """What our own client adds, against a null server."""
    rows: list[RequestRecord] = field(default_factory=list)
    start_ns: int = 0


class Load:
    """The load itself: one loop that sends what is due, reads what has come, and in its idle moments writes rows."""

    def __init__(
        self,
        prepared: Prepared,
        workload: Workload,
        requests: Sequence[Request],
        options: Options,
        writer: RunWriter,
        *,
        base_s: float = 0.0,
        talks: Mapping[int, Sequence[Request]] | None = None,
    ) -> None:
        self._endpoint = prepared.endpoint
        self._maker = prepared.maker
        self._workload = workload
        self._requests = requests
        self._options = options
        self._writer = writer
        self._zero_ns = prepared.start_ns - round(base_s * 1e9)
        self._client = Client(prepared.endpoint.address, limits=options.limits, kernel_clock=options.kernel_clock)
        self._client.watch = self._still_sane
        self._client.fresh = prepared.endpoint.fresh
        self._talks = talks or {}
        self._ready: dict[int, Exchange] = {}
        """Built and not yet sent, by their place in the schedule."""
        self._built = 0
        self._early: set[int] = set()
        """Sent before their turn in the schedule came, as a session's later turns may be."""
        self._backlog: deque[Exchange] = deque()
        self._done = 0
        self.kept = None if options.resume else Kept(prepared.rows, folder=options.out)
        """The rows so far; of a resumed run the log has them all, and is read at the end."""
        self._by_status: Counter[str] = Counter()
        self._ttft: deque[float] = deque(maxlen=1000)
        self._itl: deque[float] = deque(maxlen=5000)
        self._late_s = Ranked(options.out)
        self._told_ns = 0
        self.capped = False
        """Whether a cap ended the load before its last request."""
        self._health = Health(overhead=prepared.overhead, loopback=is_loopback(prepared.endpoint.address))
        if self._health.loopback:
            self._health.server_pids = others.server_pids(prepared.endpoint.url.port)
        self._ahead = self._connections_wanted(prepared)

    # --- the loop ---------------------------------------------------------------------------------------------------

    def drive(self) -> None:
        """Send everything and record everything. Ends when the last request has. Raises CannotMeasure."""
        with real_time(wanted=self._options.realtime):
            self._drive()

    def _drive(self) -> None:
        client = self._client
        pace = self._pace()
        client.open_ahead(self._ahead)
        self._build(max(64, 2 * self._ahead))
        client.settle(self._options.limits.connect_s)
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            self._health.start()
            pace.begin((self._options.begin_ns or monotonic_ns() + 2_000_000) - self._skipped_ns())
            while True:
                due = self._send_due(pace)
                if due is None and not client.busy and not self._backlog:
                    break
                self._turn(pace, due)
        finally:
            gc.enable()
            gc.unfreeze()
            self._health.stop()

    def _send_due(self, pace: Pace) -> int | None:
        """Send all that is due; when the next is, None where nothing is until an answer ends."""
        sent = 0
        until = self._options.until
        while (due := pace.due_ns()) is not None and not (until is not None and until.enough):
            now = monotonic_ns()
            if due > now or sent >= 64:
                return due
            if self.capped:
                return None
            place, user, due = pace.take(now)
            exchange = self._ready.pop(place, None) or self._make(place)
            if place == self._built:
                self._built += 1
            elif place > self._built:
                self._early.add(place)
            if not self._may_send(exchange.owner):
                return None
            exchange.due_ns = due
            exchange.owner = replace(exchange.owner, user=user) if user is not None else exchange.owner
            self._client.send(exchange)
            self._late_s.append(max(0, exchange.started_ns - due) / 1e9)
            sent += 1
        return None

    def _may_send(self, planned: Planned) -> bool:
        """Whether the cap leaves room; asked again once everything that has ended is settled."""
        may_send = self._options.may_send
        if may_send is None or may_send(planned.id, planned.isl or 0, planned.osl or 0):
            return True
        while self._backlog:
            self._record(self._backlog.popleft())
        self.capped = not may_send(planned.id, planned.isl or 0, planned.osl or 0)
        return not self.capped

    def _turn(self, pace: Pace, due: int | None) -> None:
        """Read once; where nothing had come, use the moment."""
        client = self._client
        now = monotonic_ns()
        chores = bool(self._backlog) or self._unbuilt()
        until = now if chores else due if due is not None else now + 250_000_000
        reads = client.counters.reads
        ended = client.poll(until)
        if ended:
            now = monotonic_ns()
            for exchange in ended:
                pace.ended(exchange.owner.user, exchange.owner.session, now)
            self._backlog.extend(ended)
        elif client.counters.reads == reads:
            self._idle(due)
        enough = 4 * self._ahead + 256
        if len(self._backlog) > enough:
            self._record(self._backlog.popleft())
        while len(self._backlog) > max(2 * enough, MOST_UNWRITTEN):
            self._record(self._backlog.popleft())
        now = monotonic_ns()
        if self._options.progress is not None and now - self._told_ns > 250_000_000:
            self._told_ns = now
            self._report()

    def _idle(self, due: int | None) -> None:
        """One small piece of work that can wait: a row, a prompt, a fresh connection."""
        if self._backlog:
            self._record(self._backlog.popleft())
        elif self._unbuilt():
            self._build(1)
        elif due is not None and due - monotonic_ns() > 30_000_000:
            self._client.freshen(1)

    def _unbuilt(self) -> bool:
        return self._built < len(self._requests) and len(self._ready) < max(64, 2 * self._ahead)

    def _build(self, count: int) -> None:
        """Make the bytes of the next `count` requests, so that sending is one system call."""
        for place in range(self._built, min(self._built + count, len(self._requests))):
            if place in self._early:
                self._early.remove(place)
            else:
                self._ready[place] = self._make(place)
            self._built += 1

    def _make(self, place: int) -> Exchange:
        endpoint, workload, request = self._endpoint, self._workload, self._requests[place]
        history: tuple[dict[str, str], ...] = ()
        prompt: str | list[int]
        talk = self._talks.get(request.session) if request.session is not None else None
        if talk is not None and endpoint.dialect.conversations and self._maker.fixed is None:
            history, prompt, isl = make_conversation(self._maker, talk, request, workload.seed)
        else:
            prompt, isl = make_prompt(self._maker, request, workload.seed)
        ask = Ask(model=endpoint.model, prompt=prompt, osl=request.osl, fields=endpoint.fields, history=history)
        planned = Planned(
            id=str(request.id),
            isl=isl,
            isl_tolerance_frac=self._maker.tolerance_frac,
            osl=request.osl,
            eos_off="ignore_eos" in endpoint.fields or "min_tokens" in endpoint.fields,
            session=request.session,
            expect_failure=endpoint.expect_failure,
        )
        exchange = Exchange(request.id, endpoint.wire(ask), owner=planned)
        exchange.due_when_sent = workload.concurrency is not None
        exchange.watch_bytes = 65_536 + 2_048 * request.osl
        return exchange

    def _pace(self) -> Pace:
        load = self._workload
        if load.concurrency is not None:
            return ClosedLoop(self._requests, concurrency=load.concurrency, think_s=load.think_s, ramp_s=load.ramp_s)
        if isinstance(self._requests, Drawn):
            return Flow(self._requests)
        return OpenLoop(self._requests, think_s=load.think_s)

    def _skipped_ns(self) -> int:
        """How much of an open loop's schedule a resumed run has behind it: its first request is due at once."""
        skips = self._workload.concurrency is None and self._options.resume and self._requests
        return round(self._requests[0].due_s * 1e9) if skips else 0

    def _connections_wanted(self, prepared: Prepared) -> int:
        """Connections to open before the clock starts: the users, or what Little's law expects of the first request."""
        if self._workload.concurrency is not None:
            return min(self._workload.concurrency, len(self._requests))
        took = max((row.e2e_s or 0.0 for row in prepared.rows), default=0.0)
        span = self._requests[-1].due_s - self._requests[0].due_s if self._requests else 0.0
        rate = len(self._requests) / span if span > 0 else len(self._requests)
        return max(1, min(int(1.5 * rate * took) + 2, len(self._requests), 256))

    # --- rows -------------------------------------------------------------------------------------------------------

    def _record(self, exchange: Exchange) -> None:
        """Make the row of an exchange, write it, let go of its bytes."""
        row = make_row(
            exchange,
            exchange.owner,
            self._endpoint.dialect,
            start_ns=self._zero_ns,
            keep_text=self._options.keep_text,
            secret=self._endpoint.secret,
        )
        self._writer.append(row)
        if self._options.settled is not None:
            self._options.settled(row)
        if self.kept is not None:
            self.kept.add(row)
        self._done += 1
        self._by_status[row.status] += 1
        if self._options.until is not None:
            self._options.until.saw(row)
        if self._options.progress is not None and row.ok and row.ttft_s is not None:
            self._ttft.append(row.ttft_s)
            self._itl.extend(row.itl_s[-50:])
        self._health.saw(row)

    def _still_sane(self, exchange: Exchange) -> int | None:
        """Whether a long answer may go on: its next mark in bytes, or None where it passed what was asked by far."""
        planned: Planned = exchange.owner
        from servefit.wire.reply import Reply

        reply = Reply()
        if exchange.http_status == 200:
            self._endpoint.dialect.read(bytes(exchange.body), reply)
        limit = 2 * (planned.osl or 0) + 64
        return None if len(reply.offsets) > limit else 2 * len(exchange.body)

    def cancel(self, why: str) -> None:
        """Cut off what is under way and record all of it."""
        self._backlog.extend(self._client.cancel_all(why))
        while self._backlog:
            self._record(self._backlog.popleft())

    @property
    def recorded(self) -> int:
        """How many requests have their row."""
        return self._done

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def health(self) -> Health:
        """What the client saw of itself."""
        self._health.take(self._client.counters, self._late_s, clock=self._client.clock)
        return self._health

    def _report(self) -> None:
        elapsed = (monotonic_ns() - self._health.started_ns) / 1e9
        progress = Progress(
            step="measuring",
            done=self._done,
            total=len(self._requests),
            busy=self._client.busy,
            elapsed_s=elapsed,
            by_status=dict(self._by_status),
            ttft_s=tuple(self._ttft),
            itl_s=tuple(self._itl),
        )
        if self._options.progress is not None:
            self._options.progress(progress)
