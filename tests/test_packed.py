"""Records come out of a store as they went in, in a fraction of the memory; a packed run is judged as a plain one, to the bit."""

import pickle
import random
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servefit.charts.of_run import run_charts
from servefit.cli.export import as_csv, as_markdown
from servefit.cli.measure_show import run_json
from servefit.explain.compare import compare
from servefit.explain.features import look
from servefit.explain.rules import diagnose_run
from servefit.facts.devices import find_device
from servefit.facts.models import find_model
from servefit.measure.health import judge_rows
from servefit.measure.plausible import about_physics
from servefit.measure.window import in_window, window_tok_per_s
from servefit.objectives import Targets, failures_as_inf, latencies, summarize
from servefit.packed import Packed, chosen
from servefit.records import STATUSES, RequestRecord, Run, RunHeader, row_store, save_run, without_gaps
from servefit.workload.workload import Workload

floats = st.floats(allow_nan=False)
numbers = st.integers() | floats
rows = st.builds(
    RequestRecord,
    id=st.text(),
    status=st.sampled_from(list(STATUSES)),
    phase=st.sampled_from(["load", "warmup", "cold"]),
    expected_failure=st.booleans(),
    due_s=numbers,
    sent_s=st.none() | floats,
    connect_s=st.none() | floats,
    headers_s=st.none() | floats,
    chunk_s=st.lists(numbers, max_size=5).map(tuple),
    chunk_tok=st.none() | st.lists(st.integers(), max_size=5).map(tuple),
    answer_chunk=st.none() | st.integers(),
    done_s=st.none() | floats,
    isl=st.none() | st.integers(),
    osl=st.none() | st.integers(),
    isl_source=st.sampled_from(["usage", "asked", "none"]),
    cached_tok=st.none() | st.integers(),
    finish_reason=st.none() | st.text(max_size=3),
    http_status=st.none() | st.sampled_from([200, 429, 500]),
    error=st.none() | st.text(),
    findings=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    server=st.none() | st.dictionaries(st.text(), numbers, max_size=4),
    user=st.none() | st.integers(0, 1000),
    text=st.none() | st.text(),
)


def packed(records, in_memory_bytes: int = 1 << 20) -> Packed[RequestRecord]:
    """The same rows, packed; beyond so many bytes on disk."""
    store = row_store()
    for column in (store._bytes, store._index):
        column._most = in_memory_bytes // column._size
    for record in records:
        store.add(record)
    return Packed(store)


@given(st.lists(rows, max_size=8), st.sampled_from([0, 200, 1 << 20]))
@example([RequestRecord(id="half \ud800", status="ok", due_s=-0.0, chunk_s=(1, 2.0), server={}, findings=())], 0)
def test_what_goes_in_comes_out(records, in_memory_bytes):
    """Every field to the bit and of its type, in order, whatever the row holds; also after a pickle, and from a file."""
    held = packed(records, in_memory_bytes)
    assert [repr(row) for row in held] == [repr(row) for row in records]
    assert held == tuple(records) and tuple(records) == held and len(held) == len(records)
    assert pickle.loads(pickle.dumps(held)) == tuple(records)
    assert held.where("phase", "load") == tuple(row for row in records if row.phase == "load")
    assert chosen(held, lambda row: row.ok) == tuple(row for row in records if row.ok)
    assert held[1:5:2] == tuple(records[1:5:2]) and held[::-1] == tuple(records[::-1])
    for at in range(-len(records), len(records)):
        assert held[at] == records[at]
    assert held[:-1] != tuple(records) or not records
    with pytest.raises(IndexError):
        held[len(records)]


def test_an_addition_that_was_cut_off_leaves_nothing_behind():
    """Ctrl-C in the middle of `add` loses that row at most: those before and after it are whole."""
    store = row_store()
    store.add(row(random.Random(1), 1))
    store._bytes.add_bytes(b"half a row")
    store.add(row(random.Random(2), 2))
    assert Packed(store) == (row(random.Random(1), 1), row(random.Random(2), 2))


def test_a_view_does_not_grow_with_its_store():
    """A run taken from a store stays as it is while more rows come."""
    store = row_store()
    store.add(row(random.Random(1), 1))
    before = Packed(store)
    store.add(row(random.Random(2), 2))
    assert len(before) == 1 and len(Packed(store)) == 2


def test_a_packed_row_takes_a_fraction_of_a_plain_one():
    """Two tokens, counts by the server, a user: under 160 bytes, where the objects take nearly five times as many."""
    store = row_store()
    for i in range(100):
        store.add(plain_row(i))
    tracemalloc.start()
    try:
        for i in range(2_000):
            store.add(plain_row(i))
        packed_bytes, _ = tracemalloc.get_traced_memory()
        kept = [plain_row(i) for i in range(2_000)]
        plain_bytes = tracemalloc.get_traced_memory()[0] - packed_bytes
    finally:
        tracemalloc.stop()
    assert len(kept) == 2_000
    assert packed_bytes < 160 * 2_000 < 750 * 2_000 < plain_bytes


def plain_row(i: int) -> RequestRecord:
    """What a closed loop writes of a short answer."""
    at = i * 0.01 + 1e-5
    return RequestRecord(
        id=str(100_000 + i), status="ok", due_s=at, sent_s=at + 1e-5, headers_s=at + 0.1, chunk_s=(at + 0.2, at + 0.3),
        done_s=at + 0.31, isl_asked=300, isl=310 + i, isl_source="usage", osl_asked=2, osl=2, osl_source="usage",
        finish_reason="length", http_status=200, user=i % 512,
        server={"first_read_chunks": 2, "queue_s": at / 100, "prefill_s": at / 90},
    )  # fmt: skip


# --- a run is judged alike ----------------------------------------------------------------------------------------------


def row(rng: random.Random, number: int) -> RequestRecord:
    """A row as a busy day brings them: some failed, some warm-ups, fields that nobody told."""
    due = 0.1 * number + rng.random()

    def maybe(value):
        return value if rng.random() < 0.8 else None

    phase = "cold" if number == 0 else "warmup" if number < 3 else "load"
    if rng.random() < 0.2:
        status = rng.choice(["timeout", "rate_limited", "http_error", "truncated"])
        return RequestRecord(
            id=str(number), status=status, phase=phase, expected_failure=rng.random() < 0.3, due_s=due, sent_s=maybe(due),
            done_s=maybe(due + rng.random()), error=maybe(f"no {number}"), http_status=maybe(429), isl_asked=maybe(64),
        )  # fmt: skip
    tokens = rng.choice([1, 2, 9, 40])
    at = due + 0.1 + rng.random()
    times = []
    for _ in range(tokens):
        times.append(at)
        at += 0.02 + 0.01 * rng.random()
    sizes = tuple(rng.choice([1, 2]) for _ in times) if rng.random() < 0.3 else None
    told = {"queue_s": rng.random() / 20, "prefill_s": 0.05, "decode_s": 0.4} if rng.random() < 0.5 else None
    return RequestRecord(
        id=str(number), status="ok", phase=phase, expected_failure=rng.random() < 0.1, due_s=due, sent_s=maybe(due + 1e-4),
        connect_s=maybe(0.001), chunk_s=tuple(times), chunk_tok=sizes, done_s=maybe(at), isl_asked=maybe(100),
        isl=maybe(rng.randrange(50, 400)), isl_source=rng.choice(["usage", "asked"]), osl_asked=tokens,
        osl=maybe(sum(sizes or (1,) * tokens)), cached_tok=maybe(rng.randrange(30)), finish_reason="length", http_status=200,
        findings=rng.choice([(), (), ("bursty",), ("no_usage", "compressed")]), server=told, user=rng.randrange(4),
    )  # fmt: skip


def two_runs(seed: int, n: int = 90, in_memory_bytes: int = 1 << 20) -> tuple[Run, Run]:
    """A run as a tuple of rows, and the same packed."""
    rng = random.Random(seed)
    records = [row(rng, number) for number in range(n)]
    records.sort(key=lambda r: r.done_s or r.due_s)
    header = RunHeader(
        kind="measured", load={"concurrency": 4, "prompt_source": "usage"}, window_s=(2.0, 8.0), endpoint={"url": "http://127.0.0.1:1"}
    )  # fmt: skip
    plain = Run(header=header, rows=tuple(records))
    return plain, replace(plain, rows=packed(records, in_memory_bytes))


LOADS = (Workload(n=90, concurrency=4), Workload(n=90, rate_req_per_s=10.0), Workload(n=90, concurrency=200))


@pytest.mark.parametrize("in_memory_bytes", [500, 1 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_a_packed_run_is_judged_as_a_plain_one(seed, tmp_path, in_memory_bytes):
    """Summary, verdict, window, physics, what is shown, exported and written: the same in every bit, on disk as in memory."""
    plain, long = two_runs(seed, in_memory_bytes=in_memory_bytes)
    assert long.rows.on_disk == (in_memory_bytes == 500)
    assert isinstance(long.rows, Packed) and isinstance(long.load_rows, Packed) and long == plain
    targets = Targets(ttft_s=0.5, tpot_s=0.03)
    assert summarize(long, targets) == summarize(plain, targets)
    for (ours, lost), (theirs, failed) in [(latencies(long), latencies(plain))]:
        assert lost == failed and all(sorted(ours[name]) == sorted(theirs[name]) for name in theirs)
    assert failures_as_inf(long, "ttft_s", 90) == failures_as_inf(plain, "ttft_s", 90)
    for load in LOADS:
        assert judge_rows(long, load, []) == judge_rows(plain, load, [])
    assert summarize(in_window(long)) == summarize(in_window(plain))
    assert window_tok_per_s(long) == window_tok_per_s(plain)
    device, model = find_device("rtx-4090"), find_model("llama-3.1-8b")
    assert about_physics(long, device, model) == about_physics(plain, device, model)
    assert run_json(long, summarize(long), tmp_path) == run_json(plain, summarize(plain), tmp_path)
    assert (as_csv(long), as_markdown(long)) == (as_csv(plain), as_markdown(plain))
    assert run_charts(long) == run_charts(plain)
    for name, run in (("long", long), ("plain", plain)):
        save_run(run, tmp_path / name)
    assert (tmp_path / "long/requests.jsonl").read_bytes() == (tmp_path / "plain/requests.jsonl").read_bytes()


@pytest.mark.parametrize("seed", range(3))
def test_a_packed_run_is_explained_as_a_plain_one(seed):
    """Who was in flight, what reading takes, every cause; also of rows that go through a change when they are looked at."""
    plain, long = two_runs(seed)
    assert look(long) == look(plain)
    assert look(plain).under_way != (0,) * len(look(plain).rows), "or nothing is told apart"
    assert diagnose_run(long) == diagnose_run(plain)
    slim = replace(plain, rows=tuple(map(without_gaps, plain.rows)))
    through = replace(long, rows=Packed(long.rows._store, through=without_gaps))
    assert look(through) == look(slim) and summarize(through) == summarize(slim) and through.load_rows == slim.load_rows


def test_a_packed_run_is_compared_as_a_plain_one():
    """Every difference and its interval, whichever of the two is packed."""
    plain, long = two_runs(1, n=60)
    other, other_long = two_runs(2, n=60)
    assert compare(other_long, long) == compare(other, plain)
