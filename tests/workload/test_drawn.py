"""A schedule that is drawn is the one that is held, to the bit, however it is read; its length takes no memory."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from servefit.measure.pace import ClosedLoop, Flow, OpenLoop
from servefit.workload import drawn as module
from servefit.workload.arrivals import schedule
from servefit.workload.drawn import Drawn, Ids, extent_of, left_of, requests_of
from servefit.workload.workload import Lengths, Workload

LENGTHS = {
    "isl": Lengths(kind="lognormal", mean=300, sd=200.0, max=4_000),
    "osl": Lengths(kind="uniform", mean=60, sd=20.0),
}
LOADS = (
    Workload(n=90, rate_req_per_s=7.0, **LENGTHS),
    Workload(n=90, rate_req_per_s=7.0, arrivals="gamma", burstiness=0.4, seed=3),
    Workload(n=90, rate_req_per_s=7.0, arrivals="constant", **LENGTHS),
    Workload(stages=((3.0, 10.0), (0.0, 5.0), (9.0, 8.0)), **LENGTHS),
    Workload(n=90, concurrency=13, ramp_s=2.0, **LENGTHS),
    Workload(n=7, concurrency=13, ramp_s=2.0),
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch):
    """Pieces of eight requests, and more than three are many."""
    monkeypatch.setattr(module, "_PIECE", 8)
    monkeypatch.setattr(module, "WHOLE", 3)


@pytest.mark.parametrize("load", LOADS)
def test_it_is_the_schedule(load):
    """In order, by place forward, backward and at both ends; and what is known of it before it begins."""
    whole, found = schedule(load), requests_of(load)
    assert isinstance(found, Drawn) and len(found) == len(whole)
    assert tuple(found) == whole and found[-1] == whole[-1] and found[0] == whole[0]
    assert tuple(found[place] for place in range(len(whole))) == whole
    assert found[5:70:6] == whole[5:70:6] and found[::-7] == whole[::-7]
    assert extent_of(found) == extent_of(whole)
    with pytest.raises(IndexError):
        found[len(whole)]


@pytest.mark.parametrize("load", LOADS)
def test_what_is_left_of_it(load):
    """Those that are not done keep their ids and due times: as from the tuple."""
    done = Ids(str(number) for number in range(90) if number % 5 in {1, 2} or number < 20)
    left, whole = left_of(requests_of(load), done.has), left_of(schedule(load), done.has)
    assert list(left) == whole and len(left) == len(whole)
    assert [left[place] for place in range(len(whole))] == whole and (not whole or left[-1] == whole[-1])


def test_a_trace_in_time_order_is_drawn_and_another_is_not(tmp_path: Path):
    """One that goes back in time is held as a whole, and so is what shares a prefix or a session."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2024-05-10 00:00:{second:02}.{second}00000,{100 + second},{second + 1}" for second in range(40)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    load = Workload(trace=str(path), n=30, time_scale=3.0)
    found = requests_of(load)
    assert isinstance(found, Drawn) and tuple(found) == schedule(load) and extent_of(found) == extent_of(schedule(load))
    path.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    assert requests_of(load) == schedule(load)
    for shares in ({"turns": 3}, {"shared_prefix_tok": 64}, {"turns": 2, "concurrency": 4, "rate_req_per_s": None}):
        assert type(requests_of(replace(LOADS[0], **shares))) is tuple


@pytest.mark.parametrize("load", LOADS)
def test_it_is_paced_as_the_tuple_is(load):
    """Each request at the same moment, whichever way the schedule is held."""

    def taken(requests):
        if load.concurrency is not None:
            pace = ClosedLoop(requests, concurrency=load.concurrency, ramp_s=load.ramp_s)
        else:
            pace = Flow(requests) if isinstance(requests, Drawn) else OpenLoop(requests)
        pace.begin(5_000)
        out = []
        while (due := pace.due_ns()) is not None:
            place, user, at = pace.take(due)
            out.append((due, place, user, at))
            pace.ended(user, None, due + 1_000_000 * (1 + place % 7))
        return out

    assert taken(requests_of(load)) == taken(schedule(load))


def test_its_length_takes_no_memory(monkeypatch: pytest.MonkeyPatch):
    """Read through once, five times as many take as much."""
    monkeypatch.setattr(module, "_PIECE", 64)
    monkeypatch.setattr("servefit.workload.columns._PIECE", 64)

    def peak(n: int) -> int:
        tracemalloc.start()
        monkeypatch.setattr(module.pieces, "__defaults__", (64,))
        found = requests_of(Workload(n=n, concurrency=8, **LENGTHS))
        assert sum(found[place].isl for place in range(n)) > n
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(500)
    assert peak(10_000) < peak(2_000) + 8_000


def test_ids_take_a_bit_each():
    """A damaged log's huge id takes no memory."""
    ids = Ids(["3", "9999999999999999", "-1", "w0", "\u00b2"])
    assert len(ids) == 1 and "3" in ids and len(ids._bits) == 1 and "9999999999999999" not in ids
