"""What must hold for any engine, any schedule and any step time."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.strategies import configs, schedules, steps
from servefit.engine.policies import EPSILON_S, Server
from servefit.engine.stepping import Arrivals, drive


def run(requests, config, step, *, concurrency=None, horizon_s=math.inf, on_step=None):
    """Step through a schedule; returns the sequences and the server."""
    arrivals = Arrivals(requests, step, concurrency=concurrency, think_s=0.02)
    server = Server(config)
    drive(arrivals, [server], step, horizon_s=horizon_s, on_step=on_step)
    return arrivals.sequences, server


closed = st.none() | st.integers(1, 5)


@given(schedules(), configs(), steps, closed)
@settings(deadline=None)
def test_requests_in_equal_requests_out(requests, config, step, concurrency):
    """Without a horizon, everyone is finished or rejected, with all tokens or none, and nobody holds memory."""
    sequences, server = run(requests, config, step, concurrency=concurrency)
    for seq in sequences:
        assert (seq.status, seq.produced_tok) in {("ok", seq.osl), ("rejected", 0)}
        assert (seq.status == "rejected") == (server.kv.blocks(seq.isl + seq.osl - 1) > server.kv.total)
    assert not server.running
    assert not server.waiting
    assert server.kv.taken == 0


@given(schedules(), configs(), steps, st.floats(0.01, 1.0))
@settings(deadline=None)
def test_the_horizon_cuts_and_counts(requests, config, step, horizon_s):
    """With a horizon, no token comes after it, and those not finished say so."""
    sequences, _ = run(requests, config, step, horizon_s=horizon_s)
    for seq in sequences:
        assert seq.status in {"ok", "unfinished", "rejected"}
        assert all(at <= horizon_s + EPSILON_S for at in seq.chunk_s)
        assert (seq.status == "ok") == (seq.produced_tok == seq.osl)


@given(schedules(), configs(), steps, closed)
@settings(deadline=None)
def test_no_token_before_its_arrival(requests, config, step, concurrency):
    """Tokens come after the request is ready, in order, and preemption takes none back."""
    sequences, _ = run(requests, config, step, concurrency=concurrency)
    for seq in sequences:
        assert seq.ready_s >= seq.due_s
        assert all(at > seq.ready_s - EPSILON_S for at in seq.chunk_s)
        assert all(a < b for a, b in zip(seq.chunk_s, seq.chunk_s[1:], strict=False))
        assert len(seq.chunk_s) == seq.produced_tok


@given(schedules(), configs(("continuous", "chunked")), steps)
@settings(deadline=None)
def test_what_was_seen_stays_seen(requests, config, step):
    """From step to step a request's tokens only grow, also for those that are sent back: memory for 24 tokens, in a hurry."""
    requests = [replace(r, isl=r.isl % 8 + 1, osl=r.osl % 12 + 1, due_s=r.due_s / 20) for r in requests]
    config = replace(config, kv_blocks=6, block_tok=4, seats=config.seats + 2, budget_tok=config.budget_tok + 2)
    given_s = {}

    def on_step(server, batch, end_s):
        for seq in batch.decodes:
            given_s.setdefault(seq.index, []).append(end_s)

    sequences, _ = run(requests, config, step, on_step=on_step)
    for seq in sequences:
        assert set(given_s.get(seq.index, [])) <= set(seq.chunk_s)


@given(schedules(), configs(), steps, closed)
@settings(deadline=None)
def test_first_tokens_come_in_arrival_order(requests, config, step, concurrency):
    """First come, first served: who was ready first has the first token first (or in the same step)."""
    sequences, _ = run(requests, config, step, concurrency=concurrency)
    served = sorted((seq for seq in sequences if seq.chunk_s), key=lambda seq: seq.key)
    firsts = [seq.chunk_s[0] for seq in served]
    assert firsts == sorted(firsts)


@given(schedules(), configs(("continuous", "chunked")), steps, closed)
@settings(deadline=None)
def test_no_seat_is_empty_while_someone_waits(requests, config, step, concurrency):
    """As a step starts, a free seat beside a waiting request means that memory or the token budget ran out."""
    preempted = 0

    def on_step(server, batch, end_s):
        nonlocal preempted
        now = sum(seq.preempted for seq in [*server.running, *server.waiting])
        just_preempted, preempted = now > preempted, now
        if not server.waiting or len(server.running) >= config.seats or just_preempted:
            return
        head = server.waiting[0]
        used = batch.prefill_tok + batch.seqs
        memory = server.kv.blocks(head.known_tok if config.reserve_prompt else 1) > server.kv.free
        budget = used >= config.budget_tok or (
            config.policy == "continuous" and (not batch.prefills or used + head.known_tok > config.budget_tok)
        )
        if not config.reserve_prompt and config.policy == "chunked":
            memory = memory or server.kv.blocks(min(head.known_tok, config.budget_tok - used)) > server.kv.free
        if config.policy == "continuous":
            memory = memory or server.kv.blocks(head.known_tok) > server.kv.free
            budget = budget and bool(batch.prefills)
        assert memory or budget

    run(requests, config, step, concurrency=concurrency, on_step=on_step)


@given(schedules(), configs(), steps)
@settings(deadline=None)
def test_kv_taken_plus_free_is_total(requests, config, step):
    """In every step the blocks that sequences hold are the blocks taken, and never more than there are."""

    def on_step(server, batch, end_s):
        held = sum(seq.private_blocks for seq in server.running)
        assert held == server.kv.taken
        assert server.kv.taken + server.kv.free == server.kv.total
        assert server.kv.free >= 0
        for seq in server.running:
            if not server.padded_isl:
                assert seq.private_blocks >= server.kv.blocks(seq.computed_tok)

    run(requests, config, step, on_step=on_step)


@given(schedules(), configs(), steps, closed)
@settings(deadline=None)
def test_limits_hold_in_every_step(requests, config, step, concurrency):
    """Never more running than seats, never more tokens in a chunked step than the budget."""

    def on_step(server, batch, end_s):
        assert len(server.running) <= (1 if config.policy == "none" else config.seats)
        if config.policy == "chunked":
            assert batch.prefill_tok + batch.seqs <= config.budget_tok
        assert batch.prefill_tok + batch.seqs > 0

    run(requests, config, step, concurrency=concurrency, on_step=on_step)
