"""The probes fit the server's context, are sized by its pace, and teach a real engine."""

import time
from itertools import pairwise

import pytest

from calibrate.synthetic import TRUTH, serve
from servefit.calibrate.learn import learn
from servefit.calibrate.probes import (
    FULL,
    QUICK,
    Pace,
    Size,
    _of_round,
    _pace_of,
    again,
    deep,
    expected_s,
    join,
    lone,
    probe_server,
    stairs,
    tiles,
)
from servefit.errors import CannotMeasure
from servefit.physics.steptime import StepTime, step_s

FEW = Size(
    lone_tok=(33, 139, 391), lone_repeats=2, lone_osl=10, round_tok=(128,), stairs=(8,), stair_tok=3, deep=((3, 203),), join_tok=(143, 263, 523),
    join_base=(1,),
)  # fmt: skip
"""Enough to learn a step time, its policy and its seats; `tour` and `bench/predict.py` ask more."""
SLOW_READER = StepTime(
    const_s=0.0026, per_seq_s=0.0064, per_prefill_tok_s=0.0058, per_kv_tok_s=1.2e-5, front_end_s=0.002
)
"""As llama.cpp on two cores without matrix units: a prompt token takes half as long as a whole step."""
PACE = Pace(itl_s=0.010, ttft_s={32: 0.05, 128: 0.1, 512: 0.3, 1000: 0.6})


@pytest.mark.parametrize("size", [FULL, QUICK])
@pytest.mark.parametrize("context_tok", [256, 1024, 8192])
@pytest.mark.parametrize("round_", [0, 3])
def test_no_probe_leaves_the_context(size, context_tok, round_):
    """Prompt and answer of every request fit the context that the server says it has, in later rounds, too."""
    for make in (lone, tiles, stairs, deep, join):
        for probe in _of_round(round_, make(size, PACE, context_tok - round_)):
            assert all(r.isl + r.osl <= context_tok for r in probe.requests), probe.name


def test_a_round_asks_the_same_of_other_prompts():
    """Every probe again under a name of its own, a token longer; tiles keep their lengths, and a cache is looked for once."""
    for make in (lone, tiles, stairs, deep, join):
        firsts, thirds = list(make(FULL, PACE, 8192)), list(_of_round(2, make(FULL, PACE, 8192)))
        for first, third in zip(firsts, thirds, strict=True):
            assert third.name == f"{first.name}-round-3"
            longer = [b.isl - a.isl for a, b in zip(first.requests, third.requests, strict=True)]
            assert set(longer) == {0 if make is tiles else 2}
            assert [(r.due_s, r.osl) for r in third.requests] == [(r.due_s, r.osl) for r in first.requests]
    assert list(_of_round(0, again(FULL, PACE, 8192)))
    assert not list(_of_round(1, again(FULL, PACE, 8192)))


def test_lone_lengths_are_interleaved():
    """Up and down, so that a machine that slows down does not look like long prompts that cost more."""
    (probe,) = lone(FULL, None, 8192)
    lengths = [r.isl for r in probe.requests]
    n = len(FULL.lone_tok)
    assert lengths[:n] == sorted(lengths[:n])
    assert lengths[n : 2 * n] == sorted(lengths[n : 2 * n], reverse=True)
    assert probe.users == 1


@pytest.mark.parametrize("size", [FULL, QUICK])
def test_prompts_are_as_odd_as_real_ones(size):
    """Lengths that kernels like would teach a prefill that real prompts do not get: few are round, the others never asked twice."""
    asked = [
        r.isl for make in (lone, tiles, deep, join) for p in make(size, PACE, 8192) for r in p.requests if r.isl != 48
    ]
    assert {isl for isl in asked if isl % 16 == 0} == set(size.round_tok)
    (alone,) = lone(size, PACE, 8192)
    odd = [r.isl for r in alone.requests]
    assert len(set(odd)) == len(odd) == len(size.lone_tok) * size.lone_repeats


def test_stairs_step_down():
    """Every answer is longer than the one before by the same number of tokens."""
    for probe in stairs(FULL, PACE, 2048):
        assert {b.osl - a.osl for a, b in pairwise(probe.requests)} == {FULL.stair_tok}
        assert probe.users == len(probe.requests)


@pytest.mark.parametrize("size", [FULL, QUICK])
@pytest.mark.parametrize(("policy", "budget_tok"), [("continuous", None), ("chunked", 64), ("chunked", 512)])
@pytest.mark.parametrize("step", [TRUTH, SLOW_READER], ids=["quick reader", "slow reader"])
def test_who_joins_finds_the_base_still_decoding(size, policy, budget_tok, step):
    """On servers that read prompts whole or in pieces, all of the base decodes until the last prompt has come, and not for as long again."""
    served = {"policy": policy, "budget_tok": budget_tok or 10**9, "step": step}
    (alone,) = lone(size, None, 8192)
    pace = _pace_of(serve([(0.0, r.isl, r.osl) for r in alone.requests], users=1, **served))
    for probe in join(size, pace, 8192):
        run = serve([(r.due_s, r.isl, r.osl) for r in probe.requests], **served)
        base = [row for row in run.rows if row.isl == 48]
        comers = [row for row in run.rows if row.isl != 48]
        last = max(row.chunk_s[0] for row in comers)
        assert min(row.chunk_s[-1] for row in base) > last
        assert max(row.chunk_s[-1] for row in base) < 2 * last


def test_pace_is_straight_between_lengths():
    """Halfway between 128 (0.1 s) and 512 (0.3 s) tokens lies 0.2 s; beyond the last it grows in proportion."""
    assert PACE.ttft(320) == pytest.approx(0.2)
    assert PACE.ttft(2000) == pytest.approx(1.2)


def test_a_slow_server_is_asked_less():
    """At a hundred times the pace a probe is expected to take a hundred times as long, so the budget leaves it out."""
    slow = Pace(itl_s=1.0, ttft_s={k: 100 * v for k, v in PACE.ttft_s.items()})
    (probe,) = stairs(QUICK, PACE, 2048)
    assert expected_s(probe, slow) == pytest.approx(100 * expected_s(probe, PACE))


def test_answers_in_one_piece_are_no_lack_of_answers():
    """Eight of eight answered, each in one piece: the sentence says that no step is seen, not that too few answered."""
    run = serve([(0.0, 64, 1)] * 8, users=1)
    with pytest.raises(CannotMeasure, match="8 of 8 lone requests were answered, but each answer came in one piece"):
        _pace_of(run)
    with pytest.raises(CannotMeasure, match="Of 3 lone requests 3 can be used"):
        _pace_of(serve([(0.0, 64, 20)] * 3, users=1))


@pytest.mark.slow
@pytest.mark.engine
def test_the_embedded_engine_is_learned(tmp_path):
    """A few probes of the real engine give a step time above nothing, its policy from behaviour, and small residuals."""
    from servefit.calibrate.recognise import recognise
    from servefit.measure.probe import find_endpoint
    from servefit.servers import engines

    with engines.start("embedded", policy="chunked", seats=4, budget_tok=128) as engine:
        runs = dict(probe_server(find_endpoint(engine.url), tmp_path, size=FEW, rounds=2, clock=time.monotonic))
    twice = {"lone", "tiles", "stairs-8", "deep-3x203", "join-1"}
    assert set(runs) == {*twice, *(f"{name}-round-2" for name in twice), "again"}
    assert recognise(list(runs.values())).seats == 4
    found = learn(list(runs.values()), names=list(runs), force=True)
    assert found.batching.policy == "chunked"
    assert found.step.const_s + found.step.per_seq_s > 0.001
    short, long = (step_s(found.step, seqs=0, kv_tok=0, prefill_tok=n, prefill_pos=n * (n + 1) // 2) for n in (20, 120))
    assert long > short + 100 * 1e-5, "a prompt costs time by its length, whichever coefficient carries it"
    assert found.kv_tok
