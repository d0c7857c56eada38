"""Batching policies: each step, who prefills how many tokens and who decodes. POLICIES is the registry.

A policy takes the server, admits and preempts, and returns the step's batch; None where there is nothing to do yet.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from servefit.engine.config import EngineConfig
from servefit.engine.kv_cache import KvCache
from servefit.engine.sequence import Sequence


@dataclass(slots=True, kw_only=True)
class Batch:
    """What one step computes. `seqs`, `kv_tok`, `prefill_tok`, `prefill_pos` are what the step-time model is asked."""

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[tuple[Sequence, int]] = field(default_factory=list)
    seqs: int = 0
    kv_tok: int = 0
    prefill_tok: int = 0
    prefill_pos: int = 0

    def add_decode(self, seq: Sequence) -> None:
        """The next token of a sequence: it reads the KV of all its known tokens."""
        self.decodes.append(seq)
        self.seqs += 1
        self.kv_tok += seq.known_tok

    def add_prefill(self, seq: Sequence, tok: int) -> None:
        """`tok` more tokens of a prompt."""
        self.prefills.append((seq, tok))
        self.prefill_tok += tok
        self.prefill_pos += positions(seq.computed_tok, tok)


def positions(past_tok: int, tok: int) -> int:
    """Sum of the positions (from 1) of `tok` tokens after `past_tok`: how many keys they look at.

    >>> positions(0, 3), positions(10, 2)
    (6, 23)
    """
    return past_tok * tok + tok * (tok + 1) // 2


class Server:
    """One replica: who waits, who runs, its KV cache and its clock."""

    def __init__(self, config: EngineConfig, *, number: int = 0) -> None:
        self.config = config
        self.number = number
        self.waiting: list[Sequence] = []  # in the order of their keys
        self.running: list[Sequence] = []  # in the order they were admitted
        reuse = config.prefix_cache and config.policy in ("continuous", "chunked")
        self.kv = KvCache(config.kv_blocks, config.block_tok, reuse=reuse)
        self.now_s = 0.0
        self.wake_s = float("inf")
        """When it next looks for something to do."""
        self.free_s = 0.0
        """When the step in flight ends."""
        self.last_call = False
        """Nobody else can come: what waits for company goes alone."""
        self.stopped = False
        self.padded_isl = 0
        """Static batches: the longest prompt, to which all are padded."""
        self.last_tok = 0
        """Tokens in the step before: another number is a change of shape."""
        self.begun = 0
        """Requests that got their seat for the step that is being formed."""
        self.steps = 0
        self.busy_s = 0.0
        self.sent = 0
        self.done = 0
        self.done_in_flight = 0
        """Requests that end with the step now in flight."""

    def enqueue(self, seq: Sequence) -> None:
        """Put a sequence where its key belongs: a preempted one comes before those that never ran."""
        insort(self.waiting, seq, key=_order)

    def preempt(self) -> Sequence:
        """Send the newest running sequence back to wait; what its user has seen stays seen."""
        victim = max(self.running, key=_order)
        self.running.remove(victim)
        victim.running = False
        self.kv.release(victim, keep=True)
        victim.computed_tok = 0
        victim.prefilling = True
        victim.preempted += 1
        self.enqueue(victim)
        return victim

    def start(self, seq: Sequence) -> None:
        """Give the first waiting sequence a seat, with what is found of its KV."""
        assert self.waiting[0] is seq, "someone was served out of turn"
        self.waiting.pop(0)
        self.begun += 1
        seq.computed_tok = max(self.kv.admit(seq), seq.received_tok)
        if not seq.preempted:
            seq.cached_tok = seq.computed_tok - seq.received_tok if seq.received_tok else seq.computed_tok
        seq.received_tok = 0
        seq.prefilling = not (seq.produced_tok and seq.known_tok - seq.computed_tok == 1)
        seq.running = True
        if seq.queue_s is None:
            seq.queue_s = self.now_s - seq.ready_s
        self.running.append(seq)


def _order(seq: Sequence) -> tuple[int, float, int]:
    return seq.key


def chunked(server: Server) -> Batch | None:
    """One token budget a step: the running sequences first, then the waiting ones in turn (vLLM's V1 scheduler)."""
    config, kv = server.config, server.kv
    budget = config.budget_tok
    batch = Batch()
    before = len(server.running)
    for seq in list(server.running):
        if not seq.running or budget == 0:
            continue
        tok = min(seq.known_tok - seq.computed_tok, budget) if seq.prefilling else 1
        if not _make_room(server, seq, seq.computed_tok + tok + _lookahead(config, seq)):
            continue
        budget -= tok
        _add(batch, seq, tok)
    if len(server.running) < before:  # whoever was preempted comes first, in a later step
        _drop_preempted(batch)
        return batch if server.running else chunked(server)
    while server.waiting and budget > 0 and len(server.running) < config.seats:
        seq = server.waiting[0]
        known = max(kv.found_tok(seq), seq.received_tok)
        tok = min(seq.known_tok - known, budget)
        if not kv.can_admit(seq, seq.known_tok if config.reserve_prompt else known + tok):
            break
        server.start(seq)
        held = kv.hold(seq, known + tok)
        assert held, "a sequence was admitted without room"
        budget -= tok
        _add(batch, seq, tok)
    return batch if batch.decodes or batch.prefills else None


def continuous(server: Server) -> Batch | None:
    """Whole prompts first, as many as fit, while the running sequences stand still; else everyone decodes."""
    config, kv = server.config, server.kv
    batch = Batch()
    while server.waiting and len(server.running) < config.seats:
        seq = server.waiting[0]
        known = max(kv.found_tok(seq), seq.received_tok)
        tok = seq.known_tok - known
        if (batch.prefills and batch.prefill_tok + tok > config.budget_tok) or not kv.can_admit(seq, seq.known_tok):
            break
        server.start(seq)
        held = kv.hold(seq, seq.known_tok)
        assert held, "a sequence was admitted without room"
        if seq.prefilling:
            batch.add_prefill(seq, tok)
    if batch.prefills:
        return batch
    for seq in list(server.running):
        if seq.running and _make_room(server, seq, seq.computed_tok + 1 + _lookahead(config, seq)):
            batch.add_decode(seq)
    _drop_preempted(batch)
    return batch if batch.decodes else None


def static(server: Server) -> Batch | None:
    """Wait for a full batch, pad it to its longest prompt, keep every seat until its longest answer is done."""
    return _batch(server, ready=len(server.waiting) >= server.config.seats)


def dynamic(server: Server) -> Batch | None:
    """Like static, but the first waiting request waits at most `timeout_s` for others."""
    full = len(server.waiting) >= server.config.seats
    late = bool(server.waiting) and server.now_s + EPSILON_S >= timeout_at(server)
    return _batch(server, ready=full or late)


def one_at_a_time(server: Server) -> Batch | None:
    """No batching: the next request starts when the one before it is done."""
    return _padded(server, ready=bool(server.waiting), seats=1)


POLICIES: dict[str, Callable[[Server], Batch | None]] = {
    "none": one_at_a_time,
    "static": static,
    "dynamic": dynamic,
    "continuous": continuous,
    "chunked": chunked,
}
EPSILON_S = 1e-9
"""Moments closer than this are the same moment: what is due as a step ends is in time for the next one."""


def timeout_at(server: Server) -> float:
    """When `dynamic` stops waiting for company."""
    return min(seq.ready_s for seq in server.waiting) + server.config.timeout_s


def _batch(server: Server, *, ready: bool) -> Batch | None:
    return _padded(server, ready=ready) if server.config.padded else _together(server, ready=ready)


def _together(server: Server, *, ready: bool) -> Batch | None:
    """The step of a batch that is seated together but not padded: whole prompts first, and who is done has left."""
    config, kv = server.config, server.kv
    if not server.running:
        if not (ready or (server.last_call and server.waiting)):
            return None
        server.last_call = False
        while (
            server.waiting
            and len(server.running) < config.seats
            and kv.can_admit(server.waiting[0], server.waiting[0].known_tok)
        ):
            seq = server.waiting[0]
            server.start(seq)
            held = kv.hold(seq, seq.known_tok)
            assert held, "a sequence was admitted without room"
    batch = Batch()
    for seq in server.running:
        if seq.prefilling:
            if batch.prefills and batch.prefill_tok + seq.known_tok - seq.computed_tok > config.budget_tok:
                break  # the rest of the prompts take a step of their own
            batch.add_prefill(seq, seq.known_tok - seq.computed_tok)
    if batch.prefills:
        return batch
    for seq in list(server.running):
        if seq.running and _make_room(server, seq, seq.computed_tok + 1):
            batch.add_decode(seq)
    _drop_preempted(batch)
    return batch if batch.decodes else None


def _padded(server: Server, *, ready: bool, seats: int | None = None) -> Batch | None:
    """The step of a batch in which everyone starts together and holds a seat and padded memory until all are done."""
    if not server.running:
        if not (ready or (server.last_call and server.waiting)):
            return None
        server.last_call = False
        _start_padded(server, seats or server.config.seats)
        longest = server.padded_isl
        n = len(server.running)
        batch = Batch(prefills=[(seq, seq.isl) for seq in server.running])
        batch.prefill_tok = n * longest
        batch.prefill_pos = n * positions(0, longest)
        return batch
    produced = max(seq.produced_tok for seq in server.running)
    n = len(server.running)
    open_ = [seq for seq in server.running if seq.produced_tok < seq.osl]
    return Batch(decodes=open_, seqs=n, kv_tok=n * (server.padded_isl + produced))


def _start_padded(server: Server, seats: int) -> None:
    """Admit from the front while the padded batch fits: each sequence takes the longest prompt and the longest answer."""
    kv = server.kv
    isl = osl = 0
    while server.waiting and len(server.running) < seats:
        seq = server.waiting[0]
        isl, osl = max(isl, seq.isl), max(osl, seq.osl)
        if server.running and (len(server.running) + 1) * kv.blocks(isl + osl - 1) > kv.total:
            break
        server.start(seq)
        server.padded_isl = isl
    longest = max(seq.osl for seq in server.running)
    for seq in server.running:
        held = kv.hold(seq, server.padded_isl + longest - 1)
        assert held, "a padded batch was admitted without room"


def _lookahead(config: EngineConfig, seq: Sequence) -> int:
    if config.speculation is None or seq.prefilling:
        return 0
    return min(config.speculation.draft_tok, seq.osl - seq.produced_tok - 1)


def _make_room(server: Server, seq: Sequence, tok: int) -> bool:
    """Hold KV for `tok` tokens of a running sequence, preempting the newest ones for it; False where it went itself."""
    while not server.kv.hold(seq, tok):
        if server.preempt() is seq:
            return False
    return True


def _drop_preempted(batch: Batch) -> None:
    """Take those out of the batch that were preempted after they had been put in (possible with priorities only)."""
    gone = [seq for seq in batch.decodes if not seq.running] + [seq for seq, _ in batch.prefills if not seq.running]
    if gone:
        decodes, prefills = batch.decodes, batch.prefills
        batch.decodes, batch.prefills = [], []
        batch.seqs = batch.kv_tok = batch.prefill_tok = batch.prefill_pos = 0
        for seq in decodes:
            if seq.running:
                batch.add_decode(seq)
        for seq, tok in prefills:
            if seq.running:
                batch.add_prefill(seq, tok)


def _add(batch: Batch, seq: Sequence, tok: int) -> None:
    if seq.prefilling:
        batch.add_prefill(seq, tok)
    else:
        batch.add_decode(seq)
