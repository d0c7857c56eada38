"""`servefit import` and `servefit export`: files in, files out, what they say, what they refuse."""

import csv
import json
import sys

import pytest

from measure.test_foreign import LLAMA_BENCH, VLLM, guidellm
from servefit.records import RequestRecord, Run, RunHeader, load_run, save_run


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with result files and a run, whose error text is a formula and whose target would break a table."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vllm.json").write_text(json.dumps(VLLM))
    (tmp_path / "guide.json").write_text(json.dumps(guidellm()))
    (tmp_path / "bench.json").write_text(json.dumps(LLAMA_BENCH))
    rows = (
        RequestRecord(id="0", status="ok", due_s=0.0, sent_s=0.001, chunk_s=(0.5, 0.6, 0.8), done_s=0.81, osl=3, isl=9),
        RequestRecord(id="1", status="timeout", due_s=1.0, error='=HYPERLINK("http://x")\x1b[2J', done_s=9.0),
    )
    header = RunHeader(kind="measured", target="a|b<script>", model="m", load={"concurrency": 2, "isl": 9, "osl": 3})
    save_run(Run(header=header, rows=rows), tmp_path / "run")
    return tmp_path


def test_an_old_result_becomes_a_run_that_can_be_compared(cli, here):
    """The run is on disk, says what it lacks, and stands beside another."""
    code, out, _ = cli("import", "vllm.json")
    assert code == 0
    for words in (
        "vLLM bench serve, qwen, 3 requests, 1 failed",
        "does not record when each request began",
        "next: servefit compare",
    ):
        assert words in out
    assert load_run(here / "runs" / "imported-vllm").header.inputs.keys() == {"vllm.json"}
    assert cli("import", "vllm.json", "--out", "again")[0] == 0
    code, out, _ = cli("compare", "again", "runs/imported-vllm")
    assert code == 0 and "not known what the first run was asked" in out


def test_several_loads_become_several_runs(cli, here):
    """One JSON object with a run for each benchmark."""
    code, out, _ = cli("import", "guide.json", "--out", "g", "--json")
    assert code == 0
    assert [r["run"] for r in json.loads(out)["runs"]] == ["g-1", "g-2"]
    assert load_run(here / "g-2").header.clock == "imported"


def test_llama_bench_can_be_compared(cli, here):
    """The paces that it times are compared; nothing else is there."""
    for name in ("a", "b"):
        assert cli("import", "bench.json", "--out", name)[0] == 0
    code, out, _ = cli("compare", "a", "b")
    assert code == 0
    assert "server's prefill per token" in out and "TTFT" not in out


def test_csv(cli, here):
    """A line a request; derived figures; nothing where nothing was observed; no formula for a spreadsheet."""
    code, out, _ = cli("export", "run", "--csv")
    first, second = csv.DictReader(out.splitlines())
    assert code == 0
    assert (first["ttft_s"], first["tpot_s"], first["itl_max_s"], first["osl"]) == ("0.5", "0.15", "0.2", "3")
    assert (second["ttft_s"], second["status"]) == ("", "timeout")
    assert second["error"].startswith("'=HYPERLINK")
    assert cli("export", "run", "--csv", "--out", "r.csv")[0] == 0
    assert (here / "r.csv").read_text().count("\n") == 3


def test_parquet(cli, here):
    """Types, every token's time, the header in the metadata."""
    parquet = pytest.importorskip("pyarrow.parquet")
    assert cli("export", "run", "--parquet", "--out", "r.parquet")[0] == 0
    table = parquet.read_table(here / "r.parquet")
    assert table.column("chunk_s").to_pylist() == [[0.5, 0.6, 0.8], []]
    assert table.column("ttft_s").to_pylist() == [0.5, None]
    assert json.loads(table.schema.metadata[b"servefit.run"])["model"] == "m"


def test_without_pyarrow_the_extra_is_named(cli, here, monkeypatch):
    """The hint is what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = cli("export", "run", "--parquet", "--out", "r.parquet")
    assert code == 2 and "servefit[parquet]" in err


def test_markdown(cli, here):
    """A table to paste; names cannot break it, control characters are shown."""
    code, out, _ = cli("export", "run", "--markdown")
    assert code == 0
    assert "| TTFT | 500 ms | 500 ms | 500 ms | 500 ms | 500 ms | 1 |" in out
    assert "1 of 2 answered (50%)" in out and "p95 = slowest of 1" in out
    assert "a\\|b&lt;script>" in out and "\x1b" not in out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("export", "run"), "No format is named"),
        (("export", "run", "--parquet"), "Parquet is not for a terminal"),
        (("export", "nowhere", "--csv"), "nowhere/run.json does not exist"),
        (("import", "nowhere.json"), "nowhere.json does not exist"),
        (("import", "run"), "run"),
        (("import", "vllm.json", "--out", "run"), "run holds a run already"),
    ],
)
def test_bad_input_is_one_sentence(cli, here, args, words):
    """Exit code 2 and a sentence with the value."""
    code, out, err = cli(*args)
    assert (code, out) == (2, "")
    assert words in err
