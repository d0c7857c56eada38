"""A run survives the disk to the byte, a kill at any moment, and a hostile file."""

import json
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit import records
from servefit.errors import ServefitError
from servefit.packed import Packed
from servefit.records import (
    SCHEMA_VERSION,
    Finding,
    RequestRecord,
    Run,
    RunHeader,
    RunWriter,
    content_sha256,
    iter_rows,
    load_run,
    row_from_json,
    row_to_json,
    save_run,
)


def a_row(i=0, **more):
    """A small complete request."""
    return RequestRecord(
        id=str(i), status="ok", due_s=i + 0.1, sent_s=i + 0.2, chunk_s=(i + 0.3, i + 0.35), osl=2, **more
    )


times = st.floats(0, 1e6).map(lambda t: round(t, 9))


@given(
    due=times,
    chunks=st.lists(times, max_size=5).map(lambda x: tuple(sorted(x))),
    error=st.none() | st.text(max_size=20),
)
def test_a_row_survives_json(due, chunks, error):
    """What is written is what is read, whatever text the server sent."""
    row = RequestRecord(
        id="x", status="ok", due_s=due, chunk_s=chunks, error=error, findings=("a",), server={"queue_s": 0.5}
    )
    assert row_from_json(row_to_json(row)) == row
    assert "\n" not in row_to_json(row)


def test_definitions_on_paper():
    """Due 1.0, sent 1.1, tokens at 1.5, 1.6, 1.9: TTFT 0.5 from due and 0.4 from send, gaps 0.1 and 0.3, TPOT 0.2, E2E 0.9."""
    row = RequestRecord(id="x", status="ok", due_s=1.0, sent_s=1.1, chunk_s=(1.5, 1.6, 1.9), osl=3)
    assert row.ttft_s == pytest.approx(0.5) and row.ttft_from_send_s == pytest.approx(0.4)
    assert row.itl_s == pytest.approx((0.1, 0.3))
    assert row.tpot_s == pytest.approx(0.2) and row.e2e_s == pytest.approx(0.9)


def test_several_tokens_a_chunk_spread_their_gap():
    """4 tokens a chunk every 0.2 s are gaps of 0.05 s, not 0.2; the first chunk's tokens have none."""
    row = RequestRecord(id="x", status="ok", due_s=0, chunk_s=(0.5, 0.7, 0.9), chunk_tok=(4, 4, 4), osl=12)
    assert len(row.token_s) == 12
    assert row.itl_s == pytest.approx([0.05] * 8)
    assert row.tpot_s == pytest.approx(0.4 / 8)  # 8 tokens came after the first chunk: 50 ms each


def test_one_token_has_no_pace():
    """TTFT and E2E of a single token are the same; there is no gap and no TPOT."""
    row = RequestRecord(id="x", status="ok", due_s=0, chunk_s=(0.5,), osl=1)
    assert (row.ttft_s, row.e2e_s, row.itl_s, row.tpot_s) == (0.5, 0.5, (), None)


def test_299_gaps():
    """300 tokens at 22 ms are 299 gaps: 6.578 s, not 6.6 s."""
    row = RequestRecord(id="x", status="ok", due_s=0, chunk_s=tuple(0.775 + 0.022 * k for k in range(300)), osl=300)
    assert sum(row.itl_s) == pytest.approx(6.578) and row.e2e_s == pytest.approx(7.353)


def test_a_run_survives_the_disk(tmp_path):
    """Header and rows come back equal; the content hash names exactly these bytes."""
    header = RunHeader(
        kind="measured", target="t", findings=(Finding(code="c", level="note", message="m"),), window_s=(1.0, 2.0)
    )
    save_run(Run(header=header, rows=(a_row(0), a_row(1, chunk_tok=(1, 1)))), tmp_path / "r")
    run = load_run(tmp_path / "r")
    assert run.rows == (a_row(0), a_row(1, chunk_tok=(1, 1))) and run.header.findings == header.findings
    assert run.header.window_s == (1.0, 2.0) and run.header.finished
    assert list(iter_rows(tmp_path / "r")) == list(run.rows)
    before = content_sha256(tmp_path / "r")
    path = tmp_path / "r" / "requests.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.35", b"0.36"))
    assert content_sha256(tmp_path / "r") != before


def test_every_prefix_of_the_file_is_a_readable_run(tmp_path):
    """Killed at any byte, the complete lines are read; a torn last line is dropped with a word."""
    save_run(Run(header=RunHeader(kind="measured"), rows=tuple(a_row(i) for i in range(3))), tmp_path / "r")
    path = tmp_path / "r" / "requests.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        run = load_run(tmp_path / "r")
        complete = whole[:cut].count(b"\n")
        assert len(run.rows) in (complete, complete + 1)
        torn = whole[:cut].rpartition(b"\n")[2]
        assert any(f.code == "torn_line" for f in run.header.findings) == (bool(torn) and len(run.rows) == complete)


def test_a_damaged_line_is_named(tmp_path):
    """A line that is damaged in the middle is an error with its number, not a silent loss."""
    save_run(Run(header=RunHeader(kind="measured"), rows=tuple(a_row(i) for i in range(3))), tmp_path / "r")
    path = tmp_path / "r" / "requests.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-5], lines[2]]) + "\n")
    with pytest.raises(ServefitError, match="line 2"):
        load_run(tmp_path / "r")


def test_a_second_writer_and_an_existing_run_are_refused(tmp_path):
    """Two writers on one run, or a new run over an old one, would lose rows."""
    with RunWriter(tmp_path / "r", RunHeader(kind="measured")) as writer:
        writer.append(a_row())
        with pytest.raises(ServefitError, match="another servefit"):
            RunWriter(tmp_path / "r", RunHeader(kind="measured"), resume=True)
    with pytest.raises(ServefitError, match="holds a run already"):
        RunWriter(tmp_path / "r", RunHeader(kind="measured"))
    with RunWriter(tmp_path / "r", RunHeader(kind="measured"), resume=True) as writer:
        writer.append(a_row(1))
    assert [r.id for r in load_run(tmp_path / "r").rows] == ["0", "1"]


def test_resume_cuts_a_torn_line(tmp_path):
    """What was half written is measured again; what was whole stays."""
    save_run(Run(header=RunHeader(kind="measured"), rows=(a_row(0),)), tmp_path / "r")
    with (tmp_path / "r" / "requests.jsonl").open("ab") as file:
        file.write(b'{"id":"1","sta')
    with RunWriter(tmp_path / "r", RunHeader(kind="measured"), resume=True) as writer:
        writer.append(a_row(2))
    assert [r.id for r in load_run(tmp_path / "r").rows] == ["0", "2"]


def test_half_a_surrogate_pair_is_kept_as_a_question_mark(tmp_path):
    """A server can send half of a pair, which is no text: neither the row nor the header is lost over it."""
    row = replace(a_row(0), text="a\ud800b")
    save_run(Run(header=RunHeader(kind="measured", model="m\ud800"), rows=(row,)), tmp_path / "r")
    run = load_run(tmp_path / "r")
    assert (run.rows[0].text, run.header.model) == ("a?b", "m?")


@pytest.mark.parametrize(
    ("text", "said"),
    [("[]", "not the header"), ("{", "not JSON"), (json.dumps({"schema_version": SCHEMA_VERSION + 1, "kind": "measured"}), "schema version"),
     (json.dumps({"schema_version": 1, "kind": "measured", "window_s": [1]}), "damaged"), ("[" * 100_000, "nested too deeply")],
)  # fmt: skip
def test_a_header_that_is_none_is_one_sentence(tmp_path, text, said):
    """Damaged, foreign and newer headers are refused with their path."""
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ServefitError, match=said) as caught:
        load_run(tmp_path)
    assert "run.json" in caught.value.message


@given(st.text(max_size=200))
def test_no_line_crashes_the_reader(line):
    """Any text is a row, or a ValueError or TypeError that load_run turns into a sentence."""
    try:
        row_from_json(line)
    except (ValueError, TypeError):
        return


def test_a_line_nested_without_end_is_damage(tmp_path):
    """Brackets alone in the middle of a run are a damaged line, named, not a crash."""
    save_run(Run(header=RunHeader(kind="measured"), rows=(a_row(0),)), tmp_path / "r")
    rows = tmp_path / "r" / "requests.jsonl"
    rows.write_text("[" * 100_000 + "\n" + rows.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ServefitError, match="damaged in line 1"):
        load_run(tmp_path / "r")


@pytest.mark.parametrize("field", ["isl", "due_s"])
def test_a_number_that_overflows_is_damage(tmp_path, field):
    """One absurd number is named with its line where it is read, and is no crash in what sums it up later."""
    save_run(Run(header=RunHeader(kind="measured"), rows=(a_row(0), a_row(1))), tmp_path / "r")
    rows = tmp_path / "r" / "requests.jsonl"
    first, rest = rows.read_text(encoding="utf-8").split("\n", 1)
    absurd = {"isl": 10**400, "due_s": 1e308}[field]
    rows.write_text(json.dumps(json.loads(first) | {field: absurd}) + "\n" + rest, encoding="utf-8")
    with pytest.raises(ServefitError, match="damaged in line 1"):
        load_run(tmp_path / "r")


def test_rows_without_their_header_are_never_mixed_with_others(tmp_path):
    """A folder that was copied without its run.json is refused, whether something is begun in it or resumed."""
    save_run(Run(header=RunHeader(kind="measured"), rows=(RequestRecord(id="0", status="ok", due_s=0.0),)), tmp_path)
    (tmp_path / "run.json").unlink()
    before = (tmp_path / "requests.jsonl").read_bytes()
    for resume in (False, True):
        with pytest.raises(ServefitError, match=r"rows of a run without its run\.json"):
            RunWriter(tmp_path, RunHeader(kind="measured"), resume=resume)
    assert (tmp_path / "requests.jsonl").read_bytes() == before


@pytest.mark.parametrize("damage", [b"{}\n", b"\xff\n", b'{"id":"1","status":3,"due_s":0}\n'])
def test_rows_read_one_by_one_name_a_damaged_line_too(tmp_path, damage):
    """As `load_run` does; a torn last line is passed over."""
    row = b'{"id":"0","status":"ok","due_s":0.0}\n'
    (tmp_path / "requests.jsonl").write_bytes(row + damage + row + b'{"id":"2","sta')
    with pytest.raises(ServefitError, match="damaged in line 2"):
        list(iter_rows(tmp_path))
    (tmp_path / "requests.jsonl").write_bytes(row + b'{"id":"2","sta')
    assert len(list(iter_rows(tmp_path))) == 1


def test_a_log_is_never_held_as_text(tmp_path):
    """Opening for resume, hashing and reading a log of 20 MB each take far less memory than the log."""
    header = RunHeader(kind="measured")
    with RunWriter(tmp_path / "run", header) as writer:
        writer.finish(header)
    log = tmp_path / "run" / "requests.jsonl"
    line = row_to_json(RequestRecord(id="1", status="ok", due_s=0.0)).encode()
    padded = line[:-1] + b',"later":"' + b"x" * 2_000_000 + b'"}\n'
    log.write_bytes(padded * 10 + padded[:1_500_000])

    def peak_bytes(call):
        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(lambda: content_sha256(tmp_path / "run")) < 5_000_000
    assert peak_bytes(lambda: load_run(tmp_path / "run")) < 15_000_000
    assert peak_bytes(lambda: RunWriter(tmp_path / "run", header, resume=True).close()) < 5_000_000
    assert log.stat().st_size == 10 * len(padded), "the torn line, longer than one block, is cut"
    assert len(load_run(tmp_path / "run").rows) == 10


def test_rows_share_their_words():
    """Rows that were read hold one copy of each word between them, however many they are."""
    line = row_to_json(a_row(isl_source="usage", osl_source="chunks", finish_reason="length", phase="warmup"))
    first, second = row_from_json(line), row_from_json(line)
    for name in ("status", "phase", "isl_source", "osl_source", "finish_reason"):
        assert getattr(first, name) is getattr(second, name), name


def test_a_long_run_is_read_packed(tmp_path, monkeypatch):
    """Up to the limit a tuple, beyond it packed; the same rows either way, and a torn last line is told of both."""
    run = Run(header=RunHeader(kind="measured"), rows=tuple(a_row(number) for number in range(30)))
    save_run(run, tmp_path)
    with (tmp_path / "requests.jsonl").open("a") as file:
        file.write('{"id":"torn')
    plain = load_run(tmp_path)
    monkeypatch.setattr(records, "LONG", 29)
    assert type(load_run(tmp_path).rows) is tuple, "packed only for who asks for it"
    packed = load_run(tmp_path, packed=True)
    assert type(plain.rows) is tuple and isinstance(packed.rows, Packed)
    assert packed == plain and plain.rows == run.rows
    assert [f.code for f in packed.header.findings] == ["torn_line"]
    monkeypatch.setattr(records, "LONG", 30)
    few = load_run(tmp_path, packed=True)
    assert few.rows == run.rows and type(few.rows) is tuple
