"""The cold wave, the steady window and the drain are told apart."""

from dataclasses import replace
from heapq import nsmallest
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.measure.window import about_trend, find_window, in_window, window_tok_per_s
from servefit.records import RequestRecord, Run, RunHeader
from servefit.workload.workload import Workload

CLOSED = Workload(n=24, concurrency=4)
OPEN = Workload(n=24, rate_req_per_s=1.0)


def answer(number: int, due_s: float, ttft_s: float, took_s: float = 1.0) -> RequestRecord:
    """An answer of two tokens."""
    end = due_s + ttft_s + took_s
    return RequestRecord(
        id=str(number), status="ok", due_s=due_s, sent_s=due_s, chunk_s=(due_s + ttft_s, end), done_s=end, osl=2
    )


def closed_loop() -> list[RequestRecord]:
    """Four users, six turns each: the first wave waits up to 2 s for its first token, the rest 0.5."""
    rows = [answer(user, 0.0, 2.0 - 0.4 * user) for user in range(4)]
    for turn in range(1, 6):
        rows += [answer(4 * turn + user, 3.0 + 1.5 * (turn - 1), 0.5) for user in range(4)]
    return rows


def test_a_closed_loop_is_steady_after_its_first_wave():
    """The window begins when every user has its first token, and ends with the last sending."""
    rows = closed_loop()
    window = find_window(rows, CLOSED)
    assert window == (2.0, 9.0)
    steady = in_window(Run(header=RunHeader(kind="measured", window_s=window), rows=tuple(rows)))
    assert steady is not None
    assert {row.ttft_s for row in steady.rows} == {0.5}
    assert len(steady.rows) == 20


def test_tokens_count_by_when_they_came():
    """The window's rate counts tokens that arrived in it, also of requests due before it."""
    rows = tuple(closed_loop())
    run = Run(header=RunHeader(kind="measured", window_s=(2.0, 9.0)), rows=rows)
    inside = sum(2.0 <= at <= 9.0 for row in rows for at in row.chunk_s)
    assert window_tok_per_s(run) == pytest.approx(inside / 7.0)
    assert window_tok_per_s(replace(run, header=RunHeader(kind="measured"))) is None


def test_no_window_where_none_can_be_told():
    """A burst, stages and a handful of requests have no steady part."""
    rows = [answer(i, 0.1 * i, 0.1) for i in range(24)]
    assert find_window(rows, Workload(n=24, arrivals="burst")) is None
    assert find_window(rows, Workload(n=24, stages=((1.0, 24.0),))) is None
    assert find_window(rows[:8], OPEN) is None
    assert find_window([], OPEN) is None


times = st.integers(0, 12).map(float)


@given(st.lists(st.tuples(times, times), max_size=40), st.integers(1, 15))
def test_the_window_is_that_of_all_rows_at_once(drawn, users):
    """Whatever is due when, also at one moment: as from lists of all of them."""
    rows = [answer(i, due, ttft) for i, (due, ttft) in enumerate(drawn)]
    for load in (replace(CLOSED, concurrency=users), OPEN):
        closed = load.concurrency is not None
        begun = [row.chunk_s[0] if closed else row.done_s for row in rows]
        wave = nsmallest(users, range(len(rows)), key=lambda i: rows[i].due_s)
        start = max((begun[i] for i in wave), default=0.0) if closed else min(begun, default=0.0)
        end = max((row.due_s for row in rows), default=0.0)
        inside = sum(start <= row.due_s <= end for row in rows)
        assert find_window(rows, load) == ((start, end) if inside >= 10 and end > start else None)
    order = sorted(range(len(rows)), key=lambda i: rows[i].due_s)
    parts = [[rows[i].ttft_s for i in part] for part in (order[: len(rows) // 2], order[len(rows) // 2 :])]
    grows = len(rows) >= 20 and median(parts[1]) >= 1.5 * median(parts[0]) + 0.05
    assert [f.code for f in about_trend(rows, OPEN)] == ["queue_grows"] * grows


def test_a_growing_queue_is_said():
    """An open loop above capacity waits longer and longer; one below it does not."""
    growing = [answer(i, float(i), 0.1 + 0.2 * i) for i in range(24)]
    assert [f.code for f in about_trend(growing, OPEN)] == ["queue_grows"]
    assert about_trend([answer(i, float(i), 0.1) for i in range(24)], OPEN) == []
    assert about_trend(growing, CLOSED) == []
