"""Experiments: each conclusion from runs whose truth is known, ending in a sentence with the numbers."""

import pytest

from explain.runs import STEP, by_hand, shake, simulate, stream
from servefit.engine.config import Speculation
from servefit.engine.simulate import EngineConfig, simulate_run
from servefit.errors import ServefitError
from servefit.explain import experiments as x
from servefit.records import Run
from servefit.workload.workload import Lengths, Workload


def simulated(workload: Workload, **config: object) -> Run:
    """The simulated engine's run of a trial."""
    return simulate_run(
        workload, EngineConfig(**({"policy": "continuous", "seats": 8, "budget_tok": 8192} | config)), STEP
    )


def test_prefix_on_an_engine_with_a_cache():
    """1,000 stable and 50 fresh tokens at 1,600 tok/s: about 40 instead of 640 ms, and the sentence says put it first."""
    changing, stable = (
        simulated(t.workload, prefix_cache=True) for t in x.prefix_trials(stable_tok=1000, fresh_tok=50, n=6, osl=16)
    )
    found = x.conclude_prefix(changing, stable, stable_tok=1000)
    assert found.sentence.startswith("Put the stable part first")
    assert found.values["times"] > 5
    assert found.values["warm_changing_s"] == pytest.approx(0.010 + 1050 * 0.0006, rel=0.05)


def test_prefix_on_an_engine_without_one():
    """Without a cache the order makes no difference, and the sentence says that."""
    changing, stable = (simulated(t.workload) for t in x.prefix_trials(stable_tok=1000, fresh_tok=50, n=6, osl=16))
    found = x.conclude_prefix(changing, stable, stable_tok=1000)
    assert "makes no difference" in found.sentence
    assert found.values["times"] == pytest.approx(1.0, abs=0.05)


def test_prefix_needs_answers():
    """Fewer than three answers conclude nothing."""
    run = by_hand([stream(i, i, 0.1, [0.01] * 4) for i in range(2)])
    with pytest.raises(ServefitError, match="needs 3"):
        x.conclude_prefix(run, run, stable_tok=10)


def test_context_ladder():
    """Each 1,000 tokens of context add 3 ms (3 µs a KV token) to every token written; TTFT follows 1,600 tok/s."""
    trials = x.context_trials(lengths=[2000, 250, 500, 1000], n=3, osl=16)
    runs = [(t.workload.isl.mean, simulated(t.workload), "") for t in trials]
    found = x.conclude_context(runs, kv_bytes_per_tok=131072)
    assert found.values["per_1000_tok_s"] == pytest.approx(0.003, rel=0.02)
    assert found.values["cut_at_tok"] is None
    assert found.rows[-1][5] == "262.1 MB"
    assert len(found.figure["series"]["TTFT"]) == 4


def test_context_says_where_it_is_cut():
    """A server that reads 2,048 tokens whatever is sent: from 4,000 on it is cut."""

    def answered(asked: int) -> Run:
        read = min(asked, 2048)
        status = "ok" if read == asked else "prompt_cut"
        return by_hand(
            [stream(i, i * 9.0, read / 1000, [0.01] * 8, isl=read, isl_asked=asked, status=status) for i in range(3)]
        )

    found = x.conclude_context([(n, answered(n), "") for n in (500, 1000, 4000, 8000)])
    assert (found.values["cut_at_tok"], found.values["read_most_tok"]) == (4000, 2048)
    assert "From 4,000 tokens on the server cuts" in found.sentence


def test_context_says_where_it_is_refused():
    """A server that refuses: the rung carries what it said."""
    ok = by_hand([stream(i, i * 9.0, 0.1, [0.01] * 8) for i in range(3)])
    longer = by_hand([stream(i, i * 9.0, 0.3, [0.01] * 8, isl=300) for i in range(3)])
    found = x.conclude_context([(64, ok, ""), (300, longer, ""), (4000, None, "HTTP 400: too long")])
    assert found.values["cut_at_tok"] == 4000
    assert found.rows[-1][-1] == "refused"
    assert found.notes == ("the server said: HTTP 400: too long",)
    assert "300 tokens are read whole, 4,000 are refused" in found.sentence


def test_context_in_noise_concludes_nothing_about_the_gap():
    """Gaps that go up and down with no order say nothing about the context, and never that it makes writing faster."""
    gaps = {64: 0.245, 256: 0.040, 512: 0.051, 900: 0.048}
    runs = [(n, by_hand([stream(i, i * 9.0, n / 500, [g] * 8, isl=n) for i in range(3)]), "") for n, g in gaps.items()]
    found = x.conclude_context(runs)
    assert found.values["per_1000_tok_s"] is None
    assert "shows no growth with the context (40.0 ms to 245 ms, in no order)" in found.sentence


def test_moe_from_outside():
    """20 ms at 273 GB/s read 5.46 GB at most: of a 40 GB file 8 to 12% are active."""
    one = by_hand([stream(i, i * 9.0, 0.1, [0.02] * 20) for i in range(4)])
    many = by_hand([stream(i, i * 9.0, 0.1, [0.04] * 20) for i in range(8)])
    found = x.conclude_moe(one, many, users=4, bandwidth_bytes_per_s=273e9, total_bytes=40e9)
    assert found.values["most_bytes"] == pytest.approx(5.46e9)
    assert "8% to 12%" in found.sentence
    assert "touch other experts" in found.sentence


def test_a_dense_model_reads_all_of_itself():
    """5.46 GB of 4.9 GB: nothing points at a mixture of experts."""
    one = by_hand([stream(i, i * 9.0, 0.1, [0.02] * 20) for i in range(4)])
    found = x.conclude_moe(one, one, users=4, bandwidth_bytes_per_s=273e9, total_bytes=4.9e9)
    assert "reads all of itself" in found.sentence
    assert "share what is read" in found.sentence


def bench(size: int, rate: float, **more: object) -> dict[str, object]:
    """A row of llama-bench's JSON."""
    return {"model_type": f"{size} B", "model_size": size, "n_prompt": 0, "n_gen": 128, "avg_ts": rate} | more


def test_ceiling_finds_the_fixed_part():
    """5.7 ms plus bytes at 36.5 GB/s: below 0.21 GB overhead is the larger half."""
    rows = [bench(size, 1 / (0.0057 + size / 36.5e9)) for size in (97_000_000, 269_000_000, 538_000_000)]
    found = x.conclude_ceiling(
        x.read_llama_bench([*rows, bench(1, 900.0, n_prompt=512, n_gen=0)]), bandwidth_bytes_per_s=26.3e9
    )
    assert found.values["fixed_s"] == pytest.approx(0.0057, rel=1e-6)
    assert found.values["bandwidth_bytes_per_s"] == pytest.approx(36.5e9, rel=1e-6)
    assert "below 0.21 GB" in found.sentence


def test_ceiling_says_what_does_not_fit():
    """Six precisions as measured on two cores (llama.cpp b11434): the line is rough, and F32 reads more than the bandwidth given."""
    measured = {76: 126.0, 97: 149.6, 143: 86.5, 268: 53.4, 269: 71.2, 538: 50.5}
    found = x.conclude_ceiling(
        x.read_llama_bench([bench(mb * 1_000_000, rate) for mb, rate in measured.items()]), bandwidth_bytes_per_s=26.3e9
    )
    assert [row[-1] for row in found.rows] == ["36%", "55%", "47%", "54%", "73%", "103%"]
    above, rough = found.notes
    assert above.startswith("538000000 B: above the ceiling")
    assert "misses one of them by 40%" in rough


def test_ceiling_where_bytes_do_not_matter():
    """A smaller file that is slower: bandwidth is not the wall, and that is said."""
    found = x.conclude_ceiling(x.read_llama_bench([bench(97_000_000, 100.0), bench(143_000_000, 120.0)]))
    assert "not the wall" in found.sentence


def test_one_size_concludes_little():
    """One point has no slope."""
    assert "One size only" in x.conclude_ceiling(x.read_llama_bench([bench(4_900_000_000, 44.6)])).sentence


@pytest.mark.parametrize("bad", [[], {}, [1], [{"n_gen": 0}], [{"n_gen": 128, "model_size": "x", "avg_ts": 1}], "x"])
def test_a_file_that_is_no_bench(bad: object):
    """Anything else is one sentence."""
    with pytest.raises(ServefitError, match="decode row"):
        x.read_llama_bench(bad)


def test_speculation_recovers_the_acceptance():
    """The simulated engine drafts 4 at 70%: 2.77 tokens a step, 70% recovered, the speed-up near theory."""
    ask = Workload(n=40, isl=Lengths(mean=32), osl=Lengths(mean=128), concurrency=1)
    off = simulated(ask)
    on = simulated(ask, speculation=Speculation(draft_tok=4, accept_frac=0.7, draft_s=0.001))
    found = x.conclude_speculation(off, on, draft_tok=4, draft_cost=0.1)
    assert found.values["acceptance"] == pytest.approx(0.7, abs=0.05)
    assert found.values["speedup"] > 1.3
    assert found.sentence.startswith("It pays")


def counted(tok: int, accepted: float, drafted: float, gaps: list[float]) -> Run:
    """Three answers of `tok` tokens whose drafts the server counts, as llama.cpp does."""
    told = {"drafted_tok": drafted, "accepted_tok": accepted}
    return by_hand(
        [stream(i, i * 9.0, 0.1, gaps, sizes=(1,) + (2,) * len(gaps), osl=tok, server=told) for i in range(3)]
    )


def test_speculation_by_the_servers_own_counts():
    """64 tokens, 40 of 60 drafts accepted: 24 steps, 2.67 tokens and 2.5 drafts a step, 67% accepted: no guess from chunks."""
    on = counted(64, 40, 60, [0.012] * 30)
    assert x.drafted(on.rows) == (pytest.approx(40 / 60), pytest.approx(64 / 24), 2)
    off = by_hand([stream(i, i * 9.0, 0.1, [0.010] * 63) for i in range(3)])
    found = x.conclude_speculation(off, on, draft_tok=9, draft_cost=0.0)
    assert "the server counts 67% of its drafted tokens as accepted, 2.67 tokens a step" in found.sentence
    assert found.values["acceptance"] == pytest.approx(2 / 3)
    assert x.drafted(off.rows) is None


def test_speculation_in_theory():
    """A draft that costs a whole step never pays; a cheap one does from a low acceptance on."""
    assert "never pays" in x.predict_speculation(itl_s=0.02, draft_tok=4, draft_cost=1.0).sentence
    found = x.predict_speculation(itl_s=0.022, draft_tok=4, draft_cost=0.1)
    assert found.values["pays_from"] == pytest.approx(0.3, abs=0.051)


def test_noise_does_not_change_the_conclusion():
    """A millisecond of jitter leaves the context's slope where it was."""
    trials = x.context_trials(lengths=[250, 2000], n=5, osl=32)
    found = x.conclude_context([(t.workload.isl.mean, shake(simulated(t.workload)), "") for t in trials])
    assert found.values["per_1000_tok_s"] == pytest.approx(0.003, rel=0.1)
    assert simulate(n=3, users=1).rows
