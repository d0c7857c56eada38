"""Each cause is provoked on the simulated engine (or by hand) and named, and its neighbours stay silent."""

import random
import re
from dataclasses import replace

import pytest

from explain.runs import by_hand, disturb, of_requests, simulate, stream
from servefit.errors import ServefitError
from servefit.explain.features import fit_reading, look
from servefit.explain.rules import Diagnosis, diagnose_run
from servefit.records import Finding, Run
from servefit.workload.requests import Request
from servefit.workload.workload import Lengths


def codes(run: Run, other: Run | None = None) -> list[str]:
    """The causes found, by code, those with most seconds first."""
    return [c.code for c in diagnose_run(run, other=other).causes]


def cause(found: Diagnosis, code: str):
    """The one with this code."""
    return next(c for c in found.causes if c.code == code)


def test_a_calm_run_has_no_cause():
    """Short prompts, one user: nothing is wrong, and nothing is found."""
    assert codes(simulate(users=1)) == []


def test_full_seats_are_named_with_their_number():
    """Eight users on two seats wait for a seat; the rule says two, from arrivals alone."""
    found = diagnose_run(simulate(users=8, seats=2))
    assert found.causes[0].code == "seats_full"
    assert found.causes[0].value == 2
    assert "prefill_stall" not in [c.code for c in found.causes]
    assert {"more_seats", "more_replicas"} <= {f.code for f in found.fixes}


def test_the_servers_own_queue_times_make_it_sure():
    """Where the server tells its queue times, the cause is shown, not inferred."""
    run = simulate(users=8, seats=2)
    told = replace(run, rows=tuple(replace(r, server={"queue_s": max((r.ttft_s or 0) - 0.05, 0.0)}) for r in run.rows))
    assert cause(diagnose_run(told), "seats_full").certainty == "shown"


def test_a_saturated_closed_loop_without_queue_times():
    """Nobody met an empty server during the load: the warm-up's requests say what reading takes, or the server's own times do."""
    run = simulate(n=24, users=8, seats=2)
    warm = [
        stream(90, -9.0, 0.05, [0.01], phase="warmup", isl=60),
        stream(91, -5.0, 0.12, [0.01], phase="warmup", isl=187),
    ]
    assert codes(replace(run, rows=(*warm, *run.rows)))[0] == "seats_full"
    told = replace(run, rows=tuple(replace(r, server={"prefill_s": 0.04}) for r in run.rows))
    found = diagnose_run(told).causes[0]
    assert found.code == "seats_full"
    assert "own reading time" in found.saw


@pytest.mark.parametrize("first", [0, 1, 2])
def test_users_who_send_at_once_are_served_in_any_order(first: int):
    """Three users on one seat, as measured on llama.cpp: whichever of the three the server took first, the seat is named.

    Who was due first and served last met no empty server, and says nothing of what reading takes.
    """
    took, ends, rows = 0.40, [2.0, 2.0, 2.0], []
    order = [*range(first, 3), *range(first)]
    for turn in range(9):
        due, end = (2.0 + 0.0001 * order[turn], ends[-1]) if turn < 3 else (ends[-3], ends[-1])
        rows.append(stream(turn, due, end + 0.22 - due, [(took - 0.22) / 23] * 23, isl=44, isl_asked=44))
        ends.append(rows[-1].chunk_s[-1])
    warm = [
        stream(90, 0.5, 0.43, [0.01], phase="warmup", isl=59, isl_asked=59),
        stream(91, 1.0, 0.87, [0.01], phase="warmup", isl=187, isl_asked=187),
    ]
    found = diagnose_run(by_hand([*warm, *rows])).causes[0]
    assert (found.code, found.value) == ("seats_full", 1)
    assert "until an answer before it had ended" in found.saw
    typical = fit_reading(by_hand([*warm, *rows]))
    assert typical
    assert typical.expected_s(44) < 0.6, (
        "0.22 is the truth, 0.87 was believed where the last in line was taken for the first"
    )


def test_a_busy_machine_does_not_hide_the_queue():
    """The same three on one seat while half of the time everything takes up to four times as long: the order is the same."""
    for seed in range(20):
        busy = disturb(simulate(n=9, isl=24, osl=24, users=3, policy="none", seats=1, seed=seed), seed)
        found = diagnose_run(busy).causes[0]
        assert (found.code, found.value) == ("seats_full", 1), seed


def test_a_busy_machine_makes_no_queue():
    """Few requests on a server of 16 seats, disturbed alike: those who met nobody are as slow, so at most one of ten is blamed."""
    runs = [disturb(simulate(n=40, isl=48, osl=32, rate=0.5, seats=16, seed=seed), seed) for seed in range(20)]
    assert sum(bool({"seats_full", "prompts_ahead", "queueing"} & set(codes(run))) for run in runs) <= 2
    for users in (2, 4, 6):  # calm, with a seat for everyone
        assert codes(simulate(n=20, isl=64, osl=48, users=users, seats=8)) == []


def test_prompts_read_beside_answers_are_no_seats():
    """Two users by turns, long prompts in slices: never two answers at once, but the prompt was read meanwhile."""
    rows, due = [], 0.0
    for number in range(16):
        rows.append(stream(number, due, 1.0, [0.02] * 30, isl=900, isl_asked=900))
        due += 0.8
    assert "seats_full" not in codes(by_hand(rows))
    assert look(by_hand(rows)).running_max == 1


def test_one_seat_in_an_open_loop():
    """A server that serves one at a time, near its capacity: waiting, one seat."""
    found = diagnose_run(simulate(n=60, rate=1.5, policy="none"))
    assert found.causes[0].code == "seats_full"
    assert found.causes[0].value == 1


def test_a_long_prompt_is_not_a_queue():
    """1,500 tokens in, one user: reading is the start, and nobody waits."""
    found = diagnose_run(simulate(n=10, isl=1500, users=1))
    assert [c.code for c in found.causes] == ["long_prompt"]
    assert found.causes[0].saw.endswith("to the first token (the request at p50 of TTFT).")


def test_long_against_short():
    """Two runs on the same server: the long one's start is its length."""
    found = diagnose_run(simulate(n=10, isl=1500, users=1), other=simulate(n=10, isl=32, users=1))
    assert found.causes[0].code == "long_prompt"
    assert "times as long" in found.causes[0].saw


def test_prefill_stalls_decodes():
    """Long prompts arrive while answers run: whole prompts stop them, slices do not."""
    long = [Request(id=i, due_s=0.9 * i, isl=1000, osl=80) for i in range(20)]
    assert "prefill_stall" in codes(of_requests(long))
    assert "prefill_stall" not in codes(of_requests(long, policy="chunked", budget_tok=64))
    fix = next(f for f in diagnose_run(of_requests(long)).fixes if f.code == "chunked_prefill")
    assert "becomes" in fix.how


def test_short_prompts_do_not_stall():
    """Sixteen-token prompts at the same rate cost no pause worth the name."""
    short = [Request(id=i, due_s=0.9 * i, isl=16, osl=80) for i in range(20)]
    assert codes(of_requests(short)) == []


def test_preemption_without_being_told():
    """A KV pool that is too small sets answers back: long pauses while the others go on."""
    found = codes(simulate(n=24, isl=64, osl=256, users=8, kv_blocks=60))
    assert "preemption" in found
    assert "preemption" not in codes(simulate(n=24, isl=64, osl=256, users=8, kv_blocks=2000))


def test_cold_start():
    """The first request of a fresh server takes 3 s, the others 0.1 s: a cold start, kept apart."""
    rows = [stream(i, i * 2.0, 0.1, [0.01] * 20) for i in range(10)]
    cold = stream(99, -5.0, 3.0, [0.01] * 20, phase="cold")
    assert codes(by_hand([cold, *rows])) == ["cold_start"]
    assert codes(by_hand([stream(99, -5.0, 0.12, [0.01] * 20, phase="cold"), *rows])) == []


def test_cold_start_after_a_pause():
    """M17: a server that falls asleep: the request after a minute of quiet is slow, alone on the server."""
    rows = [stream(i, i * 1.0, 0.1, [0.01] * 20, phase="warmup" if i == 0 else "load") for i in range(10)]
    woken = stream(10, 80.0, 4.0, [0.01] * 20)
    assert codes(by_hand([*rows, woken])) == ["cold_start"]


def test_prompt_cut_by_the_servers_count():
    """2,050 tokens counted where 8,000 were sent: cut, shown by the server's own count."""
    rows = [
        stream(i, i * 9.0, 1.0, [0.02] * 10, isl=2050, isl_asked=8000, status="ok" if i else "prompt_cut")
        for i in range(5)
    ]
    found = diagnose_run(by_hand(rows))
    assert cause(found, "prompt_cut").certainty == "shown"
    assert cause(found, "prompt_cut").value == 2050


def test_an_estimate_that_is_off_is_not_a_cut():
    """A tokenizer that counts 10% fewer than our estimate cuts nothing."""
    rows = [stream(i, i * 9.0, 0.1, [0.02] * 10, isl=58, isl_asked=64) for i in range(5)]
    assert "prompt_cut" not in codes(by_hand(rows))


def test_refused_context_names_the_setting():
    """A server that refuses long prompts is not slow: the failures say what to raise."""
    refused = [stream(i, i * 1.0, 0.0, [], status="unprocessable", http_status=400, chunk_s=(), isl=None, osl=None,
                      error="the request exceeds the available context size") for i in range(3)]  # fmt: skip
    ok = [stream(9, 9.0, 0.1, [0.01] * 20)]
    assert codes(by_hand(refused + ok))[0] == "context_refused"  # no answer at all comes before slowness
    with pytest.raises(ServefitError, match="3 unprocessable") as caught:
        diagnose_run(by_hand(refused))
    assert "context size" in caught.value.hint


def test_answers_broken_off_are_memory_not_a_long_prompt():
    """llama.cpp's shared cache runs out: begun answers end with its words; a prompt of 64 tokens was not too long."""
    broken = [
        stream(i, i * 0.01, 0.1, [0.02] * 20, status="stream_error", error="Context size has been exceeded.")
        for i in range(5)
    ]
    ok = [stream(9, 9.0, 0.1, [0.02] * 20)]
    found = diagnose_run(by_hand(broken + ok))
    assert found.causes[0].code == "memory_full"
    assert "5 of 6 answers" in found.causes[0].saw
    assert "with 5 under way" in found.causes[0].saw
    assert "context_refused" not in codes(by_hand(broken + ok))
    other = [stream(i, i * 0.01, 0.1, [0.02] * 20, status="stream_error", error="internal error") for i in range(5)]
    assert "memory_full" not in codes(by_hand(other + ok))


def test_cached_prefix_by_count():
    """Nine tenths cached: said, with what a fresh prompt took."""
    rows = [
        stream(i, i * 3.0, 1.0 if i == 0 else 0.1, [0.01] * 20, isl=1000, cached_tok=0 if i == 0 else 900)
        for i in range(8)
    ]
    found = diagnose_run(by_hand(rows))
    assert "1.00 s" in cause(found, "cached_prefix").saw
    assert "prompt_caching" not in [f.code for f in found.fixes]


def test_cached_prefix_without_a_count():
    """The same prompt again and again, on a server that counts nothing: 20 times faster than a new prompt, and no cold start."""
    first = [
        stream(90, -9.0, 1.6, [0.01] * 5, phase="cold", isl=1200),
        stream(91, -5.0, 0.12, [0.01], phase="warmup", isl=180),
    ]
    again = [stream(i, i * 2.0, 0.06, [0.01] * 20, isl=1200) for i in range(8)]
    assert codes(by_hand(first + again)) == ["cached_prefix"]
    assert codes(by_hand(first[:1] + again, load={"prompt_source": "given"})) == ["cached_prefix"]
    assert codes(by_hand(first[:1] + again)) == ["cold_start"]
    # prompts of our own making begin alike nowhere, however slow the warm-up was
    assert "cached_prefix" not in codes(by_hand(first + again, load={"prompt_source": "usage"}))


def test_new_prompts_read_as_fast_as_the_warm_up_are_no_cache():
    """Prompts that are read at the warm-up's rate, or twice it, came from no cache."""
    warm = [stream(91, -5.0, 0.12, [0.01], phase="warmup", isl=180)]
    for rate in (1500, 3000):
        rows = [stream(i, i * 4.0, 1200 / rate, [0.01] * 20, isl=1200) for i in range(8)]
        assert "cached_prefix" not in codes(by_hand(warm + rows))


def test_rate_limiting_is_not_slowness():
    """429s are counted and named."""
    limited = [
        stream(i, i * 0.1, 0, [], status="rate_limited", chunk_s=(), http_status=429, server={"retry_after_s": 2.0})
        for i in range(3)
    ]
    ok = [stream(9 + i, 9.0 + i, 0.1, [0.01] * 20) for i in range(5)]
    found = diagnose_run(by_hand(limited + ok))
    assert cause(found, "rate_limited").value == pytest.approx(3 / 8)


def test_a_buffering_proxy():
    """Ten chunks at once every 0.2 s: held back, whatever the model's pace."""
    burst = ([0.0001] * 9 + [0.2]) * 4
    assert codes(by_hand([stream(i, i * 3.0, 0.3, burst) for i in range(6)])) == ["buffering"]


def test_nothing_is_streamed():
    """All tokens at the end: TTFT is the whole time."""
    assert codes(by_hand([stream(i, i * 3.0, 1.5, [0.0001] * 30) for i in range(6)])) == ["buffering"]


def test_collected_tokens_are_not_speculation():
    """Four tokens a chunk that take four steps were collected; four that take one were drafted."""
    rng = random.Random(3)
    collected, drafted = [], []
    for i in range(8):
        sizes = (1, *(rng.choice([1, 1, 2, 4]) for _ in range(40)))
        collected.append(stream(i, i * 5.0, 0.1, [0.01 * k + rng.random() * 0.001 for k in sizes[1:]], sizes=sizes))
        drafted.append(stream(i, i * 5.0, 0.1, [0.012 + rng.random() * 0.002 for _ in sizes[1:]], sizes=sizes))
    assert codes(by_hand(collected)) == ["several_tokens"]
    assert codes(by_hand(drafted)) == ["speculative"]


def test_speculation_on_the_simulated_engine():
    """A draft of four at 70% is named, and not offered again."""
    from servefit.engine.config import Speculation

    found = diagnose_run(
        simulate(users=1, osl=96, speculation=Speculation(draft_tok=4, accept_frac=0.7, draft_s=0.0005))
    )
    assert [c.code for c in found.causes] == ["speculative"]
    assert "speculate" not in [f.code for f in found.fixes]


def test_a_disturbed_machine():
    """Equal requests, each alone on the server, at 10 to 25 ms a token: the machine, not the model."""
    rng = random.Random(5)
    rows = [stream(i, i * 5.0, 0.1, [rng.choice([0.010, 0.016, 0.025])] * 40) for i in range(12)]
    assert codes(by_hand(rows)) == ["host_trouble"]


def test_a_crowded_machine_is_said_even_where_it_is_even():
    """Seven wait for two cores: evenly slow, and still the machine, as a possibility."""
    rows = [stream(i, i * 5.0, 0.1, [0.06] * 40) for i in range(6)]
    crowd = {"machine": {"cores": 2, "load_1min": 6.6}, "endpoint": {"url": "http://127.0.0.1:8080"}}
    assert cause(diagnose_run(by_hand(rows, **crowd)), "host_trouble").certainty == "possible"
    far = crowd | {"endpoint": {"url": "https://api.example.com"}}
    assert codes(by_hand(rows, **far)) == []


def test_what_others_used_meanwhile_goes_before_the_load_average():
    """A load of 12 while others used 0.02 of two cores disturbed nobody; 1.4 cores taken are a fact at any load average."""
    rows = [stream(i, i * 5.0, 0.1, [0.06] * 40) for i in range(6)]
    here = {"endpoint": {"url": "http://127.0.0.1:8080"}}
    queued = here | {"machine": {"cores": 2, "load_1min": 12.0}}
    assert codes(by_hand(rows, **queued, client={"others_cores": 0.02})) == []
    taken = by_hand(rows, **here, machine={"cores": 2, "load_1min": 0.5}, client={"others_cores": 1.4})
    found = cause(diagnose_run(taken), "host_trouble")
    assert (found.certainty, "used 1.4 of 2 cores" in found.saw) == ("shown", True)


def test_stolen_time_is_shown():
    """A tenth of the processor time stolen by the host is said as a fact."""
    rows = [stream(i, i * 5.0, 0.1, [0.01] * 40) for i in range(6)]
    found = diagnose_run(by_hand(rows, client={"steal_frac": 0.1}))
    assert cause(found, "host_trouble").certainty == "shown"
    found = diagnose_run(by_hand(rows, findings=(Finding(code="client_saturated", level="suspect", message=""),)))
    assert cause(found, "host_trouble").certainty == "shown"


def test_the_first_sentence_says_whose_times_it_tells():
    """The typical request's TTFT is not the run's p50 to the digit: the sentence names the request that it divides."""
    rows = [stream(i, i * 5.0, 0.1 + i / 100, [0.01] * 40) for i in range(6)]
    assert re.search(r"out; typical \(p50 of 6, request \d\)\): ", diagnose_run(by_hand(rows)).sentence)


def test_a_client_near_its_limit_is_a_possible_cause():
    """The run's note that the client used nearly a whole core is taken up, as what may be and not as what is."""
    rows = [stream(i, i * 5.0, 0.1, [0.01] * 40) for i in range(6)]
    found = diagnose_run(by_hand(rows, findings=(Finding(code="client_near_limit", level="note", message=""),)))
    near = cause(found, "host_trouble")
    assert near.certainty == "possible" and "nearly all that a core can give" in near.saw


def test_it_gets_slower_over_time():
    """The same request from 10 to 14 ms a token over two minutes: heat or power, not load."""
    rows = [stream(i, i * 6.0, 0.1, [0.010 + 0.0002 * i] * 60) for i in range(21)]
    assert "slowing_down" in codes(by_hand(rows))
    assert "slowing_down" not in codes(by_hand([stream(i, i * 6.0, 0.1, [0.010] * 60) for i in range(21)]))


def test_growing_load_is_not_heat():
    """A pace that falls because more answers share the steps is not the machine's fault."""
    ramp = [Request(id=i, due_s=30 * (1 - (1 - i / 60) ** 0.5), isl=32, osl=120) for i in range(60)]
    assert "slowing_down" not in codes(of_requests(ramp, seats=64))


def test_growing_prompts_are_not_heat():
    """A pace that falls because the context grows is not the machine's fault either."""
    ladder = [Request(id=i, due_s=4.0 * i, isl=100 + 150 * i, osl=60) for i in range(20)]
    assert "slowing_down" not in codes(of_requests(ladder))


@pytest.mark.parametrize("seed", range(6))
def test_calm_open_loops_are_not_accused(seed: int):
    """Poisson arrivals at a fifth of capacity: no queue, no stall, no preemption, whatever the seed."""
    run = simulate(n=60, isl=64, osl=48, rate=0.6, seed=seed, lengths=Lengths(kind="uniform", mean=64, min=32, max=96))
    assert not {"seats_full", "prompts_ahead", "preemption", "host_trouble", "slowing_down", "buffering"} & set(
        codes(run)
    )
