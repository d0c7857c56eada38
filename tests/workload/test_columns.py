"""Columns are the schedule: the same requests to the bit, in a fortieth of the memory."""

import hashlib
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.workload.arrivals import schedule
from servefit.workload.columns import Columns, NotInPieces, columns, hashed, pieces
from servefit.workload.requests import schedule_sha256
from servefit.workload.workload import Lengths, Workload

lengths = st.builds(
    Lengths,
    kind=st.sampled_from(["fixed", "uniform", "normal", "lognormal"]),
    mean=st.integers(1, 900),
    sd=st.sampled_from([0.0, 40.0]),
    max=st.none() | st.just(700),
)


loads = st.builds(
    Workload,
    n=st.integers(1, 60),
    seed=st.integers(0, 99),
    rate_req_per_s=st.sampled_from([0.3, 5.0, 115.74]),
    arrivals=st.sampled_from(["poisson", "constant", "gamma"]),
    burstiness=st.sampled_from([0.5, 1.0, 8.0]),
    isl=lengths,
    osl=lengths,
)


staged = st.builds(
    Workload,
    seed=st.integers(0, 99),
    stages=st.lists(st.tuples(st.sampled_from([0.0, 0.4, 5.0]), st.floats(0.5, 9.0)), min_size=1, max_size=4).map(
        tuple
    ),
    arrivals=st.sampled_from(["poisson", "constant", "gamma"]),
    burstiness=st.sampled_from([0.5, 1.0, 8.0]),
    isl=lengths,
    osl=lengths,
)


@given(loads)
def test_columns_are_the_schedule(workload):
    """Any open loop at one rate: every request is the one that `schedule` makes."""
    found = columns(workload)
    assert isinstance(found, Columns)
    assert tuple(found) == schedule(workload)


@given(loads | staged, st.sampled_from([1, 2, 7, 50]))
def test_pieces_are_the_schedule(workload, size):
    """Drawn a few at a time, of any arrivals and lengths: the same requests, so many in each piece."""
    drawn = list(pieces(workload, size))
    if workload.stages and not drawn:
        with pytest.raises(ServefitError, match="too short"):
            columns(workload)
        return
    assert [(r.due_s, r.isl, r.osl) for piece in drawn for r in piece] == [
        (r.due_s, r.isl, r.osl) for r in schedule(workload)
    ]
    assert all(len(piece) == size for piece in drawn[:-1])
    digest = hashlib.sha256()
    assert list(hashed(drawn, digest)) == drawn
    assert digest.hexdigest() == schedule_sha256(schedule(workload))


traced = st.tuples(
    st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 900), st.integers(0, 300)), min_size=1, max_size=30),
    st.sampled_from(["", "Z", "+01:00"]),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.integers(1, 40),
)


@given(traced, st.sampled_from([1, 2, 7]))
def test_pieces_of_a_trace_are_the_whole(tmp_path_factory, asked, size):
    """Any trace in time order, with ties, empty lines, a zone, a scale and a limit: the requests that reading it whole gives."""
    rows, zone, scale, n = asked
    path = tmp_path_factory.mktemp("trace") / "azure.csv"
    lines, at = ["\ufeffTIMESTAMP,ContextTokens,GeneratedTokens"], datetime(2023, 11, 16, 18, 15, 46, 680_590)  # noqa: DTZ001 - zones are added below
    for gap_us, isl, osl in rows:
        at += timedelta(microseconds=gap_us % 1_999_999)
        lines += [f"{at.isoformat(sep=' ', timespec='microseconds')}0{zone},{isl},{osl}"] + [""] * (gap_us % 5 == 1)
    path.write_text("\n".join(lines) + "\n" * (n % 2), encoding="utf-8")
    workload = Workload(trace=str(path), n=n, time_scale=scale)
    wanted, digest = schedule(workload), hashlib.sha256()
    found = list(hashed(pieces(workload, size), digest))
    assert [(r.due_s, r.isl, r.osl) for piece in found for r in piece] == [(r.due_s, r.isl, r.osl) for r in wanted]
    assert all(len(piece) == size for piece in found[:-1])
    assert digest.hexdigest() == schedule_sha256(wanted)


def test_a_trace_that_goes_back_in_time_is_not_read_in_pieces(tmp_path):
    """A row that was asked before the last of the piece before it, or names blocks that prompts share, is told."""
    path = tmp_path / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 5, "output_length": 5, "hash_ids": [%s]}\n'
    workload = Workload(trace=str(path), n=9)
    path.write_text(row % (1000, "") + row % (1000, "") + row % (4000, ""))
    assert [piece.due_s.tolist() for piece in pieces(workload, 2)] == [[0.0, 0.0], [3.0]]
    path.write_text(row % (1000, "") + row % (1000, "") + row % (999, ""))
    with pytest.raises(NotInPieces, match="time order"):
        list(pieces(workload, 2))
    path.write_text(row % (1000, "7"))
    with pytest.raises(NotInPieces, match="share"):
        list(pieces(workload, 2))


def test_a_piece_goes_on_where_the_one_before_ended():
    """Drawn in pieces of 65,536: past the first piece the requests are still the schedule's."""
    workload = Workload(n=70_000, rate_req_per_s=50.0)
    found, wanted = columns(workload), schedule(workload)
    assert found[65_535:65_538].due_s.tolist() == [r.due_s for r in wanted[65_535:65_538]]
    assert found[-1] == wanted[-1]


@pytest.mark.parametrize("fields", [{"concurrency": 3}, {"rate_req_per_s": 2.0, "turns": 2}, {"arrivals": "burst"}])
def test_what_is_not_alike_stays_a_tuple(fields):
    """Users, sessions and bursts need more than three columns."""
    assert columns(Workload(n=8, **fields)) == schedule(Workload(n=8, **fields))


def test_a_workload_that_cannot_be_is_refused():
    """The same sentence as from `schedule`."""
    with pytest.raises(ServefitError, match="rate_req_per_s is -1"):
        columns(Workload(n=8, rate_req_per_s=-1.0))
