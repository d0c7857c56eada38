"""The engine against queueing theory, paper and pencil, and a run whose bytes are written down here."""

import hashlib
import math
import statistics

import pytest

from servefit.engine.config import EngineConfig, Speculation
from servefit.engine.simulate import simulate, simulate_run, simulate_stepping
from servefit.physics.steptime import StepTime
from servefit.records import row_to_json
from servefit.workload.arrivals import schedule
from servefit.workload.requests import Request
from servefit.workload.workload import Lengths, Workload

GOLDEN_SHA256 = "42b6bb0f23e092b99b6ced3ab628bb218caf59557dbade4fac38383d3fc6e3af"
STEP = StepTime(const_s=2e-3, per_seq_s=14e-6, weight_read_s=7.8e-3, compute_per_tok_s=6e-5, per_kv_tok_s=7e-8, per_prefill_pos_s=1e-9)  # fmt: skip


def test_same_seed_same_bytes():
    """A simulated run's bytes depend on its seed alone: their hash is the same on any machine."""
    workload = Workload(
        n=60, rate_req_per_s=6.0, isl=Lengths(kind="lognormal", mean=400, sd=300.0),
        osl=Lengths(kind="lognormal", mean=40, sd=30.0), seed=5,
    )  # fmt: skip
    run = simulate_run(workload, EngineConfig(seats=8, kv_blocks=200), STEP)
    digest = hashlib.sha256(run.header.schedule_sha256.encode())
    for row in run.rows:
        digest.update(row_to_json(row).encode())
    assert digest.hexdigest() == GOLDEN_SHA256


def mean_wait(service, rate, *, batches=40, n=40_000):
    """Mean wait before service with policy "none", and the half-width of its 99 % interval by batch means."""
    waits = []
    requests = schedule(Workload(n=n, rate_req_per_s=rate, seed=11, **service))
    step = StepTime(const_s=0.001)
    outcome = simulate(requests, EngineConfig(policy="none"), step)
    waits = [first - due - 0.001 for first, due in zip(outcome.first_s, outcome.due_s, strict=True)]
    size = n // batches
    means = [statistics.fmean(waits[i * size : (i + 1) * size]) for i in range(batches)]
    return statistics.fmean(means), 2.7 * statistics.stdev(means) / math.sqrt(batches)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_m_d_1(load):
    """One at a time, 100 steps of 1 ms each: the mean wait is rho s / (2 (1 - rho)), within its confidence interval."""
    wait_s, half = mean_wait({"osl": Lengths(mean=100)}, load / 0.1)
    assert wait_s == pytest.approx(load * 0.1 / (2 * (1 - load)), abs=half)


@pytest.mark.slow
def test_m_m_1():
    """Exponential answers: the mean wait is rho s / (1 - rho). Lengths are drawn here, since no `Lengths` is exponential."""
    from servefit.workload.requests import stream

    rng = stream(3, "test")
    n, load, mean = 40_000, 0.6, 200
    lengths = [max(round(rng.expovariate(1 / mean)), 1) for _ in range(n)]
    service = statistics.fmean(lengths) * 1e-3
    second = statistics.fmean(k * k for k in lengths) * 1e-6
    due, requests = 0.0, []
    for i, osl in enumerate(lengths):
        due += rng.expovariate(load / (mean * 1e-3))
        requests.append(Request(id=i, due_s=due, isl=1, osl=osl))
    outcome = simulate(requests, EngineConfig(policy="none"), StepTime(const_s=0.001))
    waits = [f - d - 0.001 for f, d in zip(outcome.first_s, outcome.due_s, strict=True)]
    means = [statistics.fmean(waits[i : i + 1000]) for i in range(0, n, 1000)]
    half = 2.7 * statistics.stdev(means) / math.sqrt(len(means))
    assert second / (2 * service**2) == pytest.approx(1.0, rel=0.05), "the answers are exponential"
    assert statistics.fmean(waits) == pytest.approx(load * mean * 1e-3 / (1 - load), abs=half)


def test_littles_law():
    """Time-averaged requests in the system = rate x mean time in it, counted from events and from records."""
    requests = schedule(Workload(n=500, rate_req_per_s=6.0, isl=Lengths(mean=300), osl=Lengths(mean=60)))
    outcome = simulate(requests, EngineConfig(seats=16), STEP)
    events = sorted([(d, 1) for d in outcome.due_s] + [(e, -1) for e in outcome.last_s])
    area = inside = 0.0
    before = 0.0
    for at, change in events:
        area += inside * (at - before)
        inside, before = inside + change, at
    assert area == pytest.approx(sum(outcome.e2e_s), rel=1e-9)
    assert area / outcome.end_s == pytest.approx(500 / outcome.end_s * statistics.fmean(outcome.e2e_s))


def test_on_paper():
    """Two requests, 10 ms a step and 1 ms a sequence: the second's prompt shares the step with the first's decode."""
    step = StepTime(const_s=0.010, per_seq_s=0.001)
    requests = [Request(id=0, due_s=0.0, isl=4, osl=3), Request(id=1, due_s=0.010, isl=4, osl=2)]
    out = simulate(requests, EngineConfig(), step)
    assert list(out.first_s) == pytest.approx([0.010, 0.021])
    assert list(out.last_s) == pytest.approx([0.033, 0.033])


def test_a_preempted_token_stays_seen():
    """Memory for 6 tokens, two requests of 2 + 3: the newer is sent back, keeps its token, and the gap shows."""
    step = StepTime(const_s=0.010)
    requests = [Request(id=i, due_s=0.0, isl=2, osl=3) for i in range(2)]
    for engine in (simulate, simulate_stepping):
        out = engine(requests, EngineConfig(kv_blocks=6, block_tok=1), step)
        assert list(out.preempted) == [0, 1]
        assert out.first_s[0] == out.first_s[1] == pytest.approx(0.010)
        assert out.gaps.percentile(100) > 0.015
    run = simulate_run(Workload(n=2), EngineConfig(kv_blocks=6, block_tok=1), step, requests=requests)
    (newer,) = [row for row in run.rows if row.preempted]
    assert newer.chunk_s[:2] == pytest.approx((0.010, 0.020)), "both tokens that it had before it was sent back"


def test_speculation_yields_what_the_formula_says():
    """Two drafted tokens, half of them right: 1.75 tokens a step, so 70 tokens after the first take 40 steps."""
    spec = Speculation(draft_tok=2, accept_frac=0.5, draft_s=0.001)
    out = simulate([Request(id=0, due_s=0.0, isl=5, osl=71)], EngineConfig(speculation=spec), StepTime(const_s=0.010))
    assert out.steps == 41
    assert out.last_s[0] - out.first_s[0] == pytest.approx(40 * 0.012)


def test_a_shared_prefix_is_computed_once():
    """The second request with the same 96 tokens computes 4 of 100; without the cache, all."""
    step = StepTime(const_s=0.001, per_prefill_tok_s=1e-3)
    requests = [Request(id=i, due_s=float(i), isl=100, osl=2, prefix=tuple(range(6))) for i in range(2)]
    hit = simulate(requests, EngineConfig(prefix_cache=True), step)
    miss = simulate(requests, EngineConfig(), step)
    assert hit.ttft_s[1] == pytest.approx(0.005)
    assert miss.ttft_s[1] == pytest.approx(0.101)
    assert hit.cached_tok == 96


def test_priority_goes_first():
    """One seat: the lower number is served before those who came earlier."""
    requests = [Request(id=i, due_s=0.0, isl=5, osl=5, priority=p) for i, p in enumerate((5, 5, 1))]
    fair = simulate_stepping(requests, EngineConfig(seats=1), STEP)
    urgent = simulate(requests, EngineConfig(seats=1, order="priority"), STEP)
    assert fair.first_s[2] > fair.first_s[1]
    assert urgent.first_s[2] < urgent.first_s[0]


def test_preempted_prefix_is_cheap():
    """With a prefix cache, a preempted sequence finds its blocks again and comes back sooner."""
    step = StepTime(const_s=0.001, per_prefill_tok_s=1e-3)
    requests = [Request(id=i, due_s=0.0, isl=64, osl=40) for i in range(2)]
    plain = simulate_stepping(requests, EngineConfig(kv_blocks=9, budget_tok=256), step)
    cached = simulate_stepping(requests, EngineConfig(kv_blocks=9, budget_tok=256, prefix_cache=True), step)
    assert sum(plain.preempted) and sum(cached.preempted)
    assert cached.last_s[1] < plain.last_s[1]
