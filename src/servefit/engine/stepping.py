"""The simulated engine, one step at a time: the readable truth that the jumping one must equal.

next: an arrival, or the replica that may start a step first
arrival -> the router names a replica -> it waits there
step    -> the policy forms a batch -> the step-time model says how long -> tokens come out as it ends
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many

from servefit.engine.config import EngineConfig
from servefit.engine.policies import EPSILON_S, POLICIES, Batch, Server, timeout_at
from servefit.engine.sequence import Sequence
from servefit.physics.steptime import StepTime, step_s
from servefit.workload.requests import Request

Route = Callable[[Sequence, Many[Server], float], Server]
"""Which replica serves a request that arrives now."""


class Arrivals:
    """Who comes when: an open loop is known beforehand, a user of a closed loop or a session comes when an answer ends."""

    def __init__(
        self, requests: Many[Request], step: StepTime, *, concurrency: int | None = None, think_s: float = 0.0
    ) -> None:
        self.think_s = think_s
        self.step = step
        self.sequences = [Sequence(request=r, index=i, isl=r.isl, osl=r.osl) for i, r in enumerate(requests)]
        self.issued: list[Sequence] = []
        self._last_due_s = self._last_ready_s = -1.0
        self.last_s = 0.0
        """When the last one so far was ready."""
        self._pending: list[tuple[float, int]] = []
        self._ends: list[tuple[float, int]] = []
        self._next_turn: dict[int, int] = {}
        heads: list[int] = []
        last: dict[int, int] = {}
        for i, request in enumerate(requests):
            if request.session is not None and request.session in last:
                self._next_turn[last[request.session]] = i
            else:
                heads.append(i)
            if request.session is not None:
                last[request.session] = i
        now = heads if concurrency is None else heads[:concurrency]
        self._later = deque(heads[len(now) :])
        for user, i in enumerate(now):
            self._issue(i, requests[i].due_s, None if concurrency is None else user)

    def _issue(self, index: int, due_s: float, user: int | None) -> None:
        seq = self.sequences[index]
        seq.due_s = due_s
        seq.ready_s = due_s + self.step.front_end_s + self.step.front_end_per_tok_s * seq.isl
        if self._last_due_s == due_s and self.step.front_serial_s > 0:
            seq.ready_s = max(seq.ready_s, self._last_ready_s + self.step.front_serial_s)
        self._last_due_s, self._last_ready_s = due_s, seq.ready_s
        seq.user = user
        self.issued.append(seq)
        heapq.heappush(self._pending, (seq.ready_s, index))

    def ended(self, seq: Sequence, at_s: float) -> None:
        """The answer of `seq` is complete (or refused) at `at_s`, which may still lie ahead."""
        heapq.heappush(self._ends, (at_s, seq.index))

    def settle(self, until_s: float) -> None:
        """Let those go on whose answers ended before anything else happens: their session, or their user."""
        while self._ends and self._ends[0][0] <= min(until_s, self.next_s) + EPSILON_S:
            at_s, index = heapq.heappop(self._ends)
            self._go_on(self.sequences[index], at_s)

    def _go_on(self, seq: Sequence, at_s: float) -> None:
        follow = self._next_turn.get(seq.index)
        if follow is not None:
            self._issue(follow, max(at_s + self.think_s, self.sequences[follow].request.due_s), seq.user)
        elif self._later:
            self._issue(self._later.popleft(), at_s + self.think_s, seq.user)

    def come_back(self, seq: Sequence, at_s: float) -> None:
        """The KV of `seq` has arrived elsewhere at `at_s`: it is routed again."""
        seq.computed_tok = 0
        seq.ready_s = at_s
        heapq.heappush(self._pending, (at_s, seq.index))

    @property
    def next_s(self) -> float:
        """When the next request is ready; infinity where none is known."""
        return self._pending[0][0] if self._pending else math.inf

    def pop(self) -> Sequence:
        """The next request that is ready."""
        self.last_s, index = heapq.heappop(self._pending)
        return self.sequences[index]


def drive(
    arrivals: Arrivals,
    servers: Many[Server],
    step: StepTime,
    *,
    route: Route | None = None,
    horizon_s: float = math.inf,
    hand_over: Callable[[Sequence, float], bool] | None = None,
    on_step: Callable[[Server, Batch, float], None] | None = None,
) -> None:
    """Run until everyone is served, or nothing that ends by `horizon_s` is left to start.

    `hand_over` may take a sequence away as its first token comes out (disaggregation); `on_step` sees every step.
    """
    while True:
        server = min(servers, key=_wake)
        arrivals.settle(server.wake_s)
        if arrivals.next_s <= server.wake_s + EPSILON_S and arrivals.next_s < math.inf:
            if arrivals.next_s > horizon_s:
                for other in servers:
                    if other.wake_s > horizon_s:
                        other.wake_s = math.inf
                return
            _arrive(arrivals, servers, route)
        elif server.wake_s < math.inf:
            _step(server, arrivals, step, horizon_s=horizon_s, hand_over=hand_over, on_step=on_step)
        elif waiting := [s for s in servers if s.waiting and not s.stopped]:
            for other in waiting:
                other.last_call = True
                other.wake_s = max(other.free_s, arrivals.last_s)
        else:
            return


def _wake(server: Server) -> float:
    return server.wake_s


def _arrive(arrivals: Arrivals, servers: Many[Server], route: Route | None) -> None:
    seq = arrivals.pop()
    server = route(seq, servers, seq.ready_s) if route else servers[0]
    deliver(seq, server, arrivals)


def deliver(seq: Sequence, server: Server, arrivals: Arrivals) -> None:
    """Let a sequence wait at a server, waking it where it is idle; refuse what can never fit."""
    seq.replica = server.number
    seq.priority = seq.request.priority if server.config.order == "priority" else 0
    if server.kv.never_fits(seq):
        seq.status = "rejected"
        seq.done_s = seq.ready_s
        arrivals.ended(seq, seq.ready_s)
        return
    server.sent += 1
    server.enqueue(seq)
    server.last_call = False
    if server.stopped:
        return
    server.wake_s = min(server.wake_s, max(server.free_s, seq.ready_s))


def duration_s(config: EngineConfig, step: StepTime, batch: Batch, *, last_tok: int = 0, prompts: int = 0) -> float:
    """Seconds of the step: drafted tokens are computed like prompt tokens, and drafting them costs its own time.

    `last_tok` is how many tokens the step before had: another number is a change of shape; `prompts` requests begin.
    """
    spec = config.speculation
    if spec is None or not batch.seqs:
        return step_s(
            step, seqs=batch.seqs, kv_tok=batch.kv_tok, prefill_tok=batch.prefill_tok, prefill_pos=batch.prefill_pos,
            changed=batch.seqs + batch.prefill_tok != last_tok, prompts=prompts,
        )  # fmt: skip
    prefill_tok = batch.prefill_tok + batch.seqs * spec.draft_tok
    verify_s = step_s(
        step,
        seqs=batch.seqs,
        kv_tok=batch.kv_tok,
        prefill_tok=prefill_tok,
        prefill_pos=batch.prefill_pos,
        prompts=prompts,
    )
    return verify_s + spec.draft_s * spec.draft_tok


def _step(
    server: Server,
    arrivals: Arrivals,
    step: StepTime,
    *,
    horizon_s: float,
    hand_over: Callable[[Sequence, float], bool] | None,
    on_step: Callable[[Server, Batch, float], None] | None,
) -> None:
    if server.wake_s > horizon_s:
        server.stopped = True
        server.wake_s = math.inf
        return
    server.now_s = server.wake_s
    server.done_in_flight = server.begun = 0
    batch = POLICIES[server.config.policy](server)
    if batch is None:
        dynamic = server.config.policy == "dynamic" and server.waiting
        server.wake_s = max(timeout_at(server), server.now_s) if dynamic else math.inf
        return
    took_s = duration_s(server.config, step, batch, last_tok=server.last_tok, prompts=server.begun)
    server.last_tok = batch.seqs + batch.prefill_tok
    end_s = server.now_s + took_s
    if end_s > horizon_s + EPSILON_S:
        server.stopped = True
        server.wake_s = math.inf
        return
    server.steps += 1
    server.busy_s += took_s
    if on_step:
        on_step(server, batch, end_s)
    server.wake_s = server.free_s = end_s
    for seq, tok in batch.prefills:
        seq.computed_tok += tok
        if seq.computed_tok == seq.known_tok:
            seq.prefilling = False
            seq.emit(end_s)
            if hand_over and seq.produced_tok < seq.osl and hand_over(seq, end_s):
                server.running.remove(seq)
                server.kv.release(seq)
                server.done += 1
                seq.running = False
            else:
                _end_if_done(server, seq, arrivals, end_s)
    for seq in batch.decodes:
        tok = _decoded_tok(server.config, seq)
        seq.computed_tok += tok
        seq.emit(end_s, tok)
        _end_if_done(server, seq, arrivals, end_s)
    if server.padded_isl and all(seq.done_s is not None for seq in server.running):
        for seq in server.running:
            server.kv.release(seq)
        server.running.clear()
        server.padded_isl = 0


def _decoded_tok(config: EngineConfig, seq: Sequence) -> int:
    """Tokens that this step yields: one, or with speculation a whole number that is right on average, the same each time."""
    if config.speculation is None:
        return 1
    each = config.speculation.tok_per_step
    seq.verified_steps += 1
    tok = math.floor(seq.verified_steps * each + 1e-9) - math.floor((seq.verified_steps - 1) * each + 1e-9)
    return min(tok, seq.osl - seq.produced_tok)


def _end_if_done(server: Server, seq: Sequence, arrivals: Arrivals, at_s: float) -> None:
    if seq.produced_tok < seq.osl:
        return
    seq.status = "ok"
    seq.done_s = at_s
    server.done += 1
    server.done_in_flight += 1
    if not server.padded_isl:
        server.running.remove(seq)
        seq.running = False
        server.kv.release(seq)
    arrivals.ended(seq, at_s)
