"""Traces: three formats become the same requests; an empty or malformed file is one sentence with its line."""

import pytest

from servefit.errors import ServefitError
from servefit.records import RequestRecord, Run, RunHeader, save_run
from servefit.workload.traces import has_more_lines, load_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
MOONCAKE = (
    '{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 6000, "input_length": 600, "output_length": 0, "hash_ids": [0, 7]}\n'
)


def test_azure(tmp_path):
    """Azure's CSV: the first request is due at 0, the second 4.314579 s later."""
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    first, second = load_trace(path, 10)
    assert (first.due_s, first.isl, first.osl) == (0.0, 374, 44)
    assert (second.due_s, second.isl, second.osl) == (4.314579, 396, 109)


def test_azure_with_time_zones(tmp_path):
    """A row with a zone beside one without (which is UTC) is a difference, not a crash; the zone counts."""
    path = tmp_path / "azure.csv"
    path.write_text(AZURE.replace("50.9951690,396", "50.9951690+01:00,396").replace("46.6805900", "46.6805900Z"))
    assert load_trace(path)[1].due_s == 3595.685421  # the second row came an hour, less 4.314579 s, before the first
    path.write_text(AZURE.replace("50.9951690,396", "50.9951690+00:00,396"))
    assert load_trace(path)[1].due_s == 4.314579


def test_mooncake(tmp_path):
    """Mooncake's JSONL: ms become seconds, hashes a prefix of 512-token blocks, an empty answer one token."""
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    first, second = load_trace(path)
    assert (first.due_s, second.due_s) == (0.0, 3.0)
    assert (first.prefix, first.prefix_block_tok) == ((0, 1, 2), 512)
    assert second.osl == 1


def test_a_run_is_a_trace(tmp_path):
    """A run folder gives its rows in due order, with served lengths before asked ones."""
    rows = (
        RequestRecord(id="b", status="ok", due_s=2.0, isl=10, osl=3),
        RequestRecord(id="a", status="timeout", due_s=1.0, isl_asked=20, osl_asked=4),
    )
    save_run(Run(header=RunHeader(kind="measured"), rows=rows), tmp_path / "run")
    first, second = load_trace(tmp_path / "run")
    assert (first.due_s, first.isl, first.osl) == (0.0, 20, 4)
    assert (second.due_s, second.isl, second.osl) == (1.0, 10, 3)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "line 1 is 'nothing'"),
        ("a.csv", "input_length,output_length\n1,2\n", "line 1 is 'input_length,output_length'"),
        ("a.csv", AZURE + "2023-11-16 18:16:00.0,many,3\n", "line 4 is malformed"),
        ("a.csv", AZURE.splitlines()[0] + "\n", "holds no requests"),
        ("a.csv", AZURE + "yesterday,1,3\n", "line 4 is malformed"),
        ("a.csv", AZURE + '2023-11-16 18:16:00.0,"' + "9" * 200_000 + '",3\n', "line 4 is malformed: field larger"),
        (
            "a.csv",
            AZURE + '2023-11-16 18:16:00.0,"10,3\n' + "2023-11-16 18:16:01.0,10,3\n" * 9000,
            "line 4 is malformed",
        ),
        ("a.jsonl", "", "holds no requests"),
        ("a.jsonl", MOONCAKE + "{\n", "line 3 is malformed"),
        ("a.jsonl", '{"timestamp": 0, "input_length": 5}\n', "line 1 has no 'output_length'"),
        ("a.jsonl", '{"timestamp": 0, "input_length": -5, "output_length": 1}\n', "line 1 is malformed"),
    ],
)
def test_faults_name_their_line(tmp_path, name, text, words):
    """What is wrong with a trace is one sentence with the line."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ServefitError, match=words):
        load_trace(path)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_lines_are_counted(tmp_path, name, end):
    """Three rows are more than two and not more than three, with a header and without, with a last line end and without."""
    path = tmp_path / name
    path.write_text("header\n" * (name == "a.csv") + "row\nrow\nrow" + end)
    assert [has_more_lines(path, n) for n in (0, 2, 3, 4)] == [True, True, False, False]
    assert not has_more_lines(tmp_path, 0)


def test_a_byte_that_is_no_text_is_named(tmp_path):
    """Read line by line, the byte is still counted from the beginning of the file."""
    path = tmp_path / "azure.csv"
    path.write_bytes(AZURE.encode() + b"2023-11-16 18:16:00,\xff,3\n")
    with pytest.raises(ServefitError, match=rf"byte {len(AZURE) + 20}\)"):
        load_trace(path)
