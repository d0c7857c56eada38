"""Runs on the page: all of them, fast; the timing table; what is damaged or hostile; one that grows; two compared."""

import json
import re
from html import escape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from servefit.explain.compare import compare
from servefit.records import Run, load_run
from servefit.web.app import create_app
from servefit.web.shelf import all_runs
from servefit.web.watching import Watcher
from web import folder as made

HOST = "127.0.0.1:8731"


def client(folder):
    """A browser on this machine."""
    return TestClient(create_app(folder, hosts=[HOST]), base_url=f"http://{HOST}", follow_redirects=False)


@pytest.fixture
def data(tmp_path):
    """A data folder with runs of every kind."""
    return made.make(tmp_path)


def test_an_empty_folder_says_what_to_do(tmp_path):
    """No run yet: the page names the command."""
    assert "servefit measure TARGET" in client(tmp_path).get("/runs").text


def test_the_timing_table_has_short_long_hosted_and_failures(data):
    """M14, M15: short and long, local and hosted, a failure and an expected failure as rows of their own."""
    text = client(data).get("/runs").text
    for part in (
        ">short<",
        ">long<",
        ">local<",
        ">hosted<",
        "1 failed: rate_limited",
        "1 failed (expected): not_found",
    ):
        assert part in text, part
    assert "7 runs" in text and "1 damaged" in text
    for name in ("broken", "headless"):  # its rows, or its header
        assert f'{name}</a> <span class="tag tag-damaged">damaged</span>' in text


def test_what_a_model_wrote_is_shown_and_never_run(data):
    """A script tag as output, model name, target, error and folder name stands on the page as text."""
    page = client(data)
    path = next(r.path for r in all_runs(data) if "x y" in r.path)
    for address in ("/runs", f"/runs/{path.replace('&', '%26')}"):
        answer = page.get(address)
        assert answer.status_code == 200
        assert "<script>document" not in answer.text and "<img src=x" not in answer.text
        assert "&lt;script&gt;" in answer.text


@pytest.mark.parametrize(("name", "word"), [("broken", "line 1"), ("headless", "not JSON")])
def test_a_damaged_run_says_so_in_a_sentence(data, name, word):
    """Damage is shown with where it is, and the rest of the list is still there."""
    answer = client(data).get(f"/runs/runs/{name}")
    assert answer.status_code == 422 and "is damaged" in answer.text and word in answer.text
    assert str(data) not in answer.text


def test_rows_of_the_wrong_kind_are_damage_too(data):
    """JSON that is valid and still no row: one sentence, no crash."""
    (data / "runs" / "short" / "requests.jsonl").write_text('{"id":"0","status":"ok","due_s":"soon","chunk_s":[1,2]}\n')
    page = client(data)
    assert page.get("/runs/runs/short").status_code == 422
    assert page.get("/runs").status_code == 200


@pytest.mark.parametrize("path", ["../secret", "..%2f..%2fsecret", "runs/../../secret", "/etc", "runs//short", "link", "no", "a%00b",
                                  "x" * 5000])  # fmt: skip
def test_nothing_outside_of_the_folder_is_opened(data, tmp_path, path):
    """Dots, encoded dots, absolute paths, links out of the folder, names that cannot be: 404."""
    secret = tmp_path.parent / "secret"
    if not secret.exists():
        made.put(Run(header=made.header("secret"), rows=()), secret)
        (secret / "plan.json").write_text("{}")
    if not (data / "link").is_symlink():
        (data / "link").symlink_to(secret)
    page = client(data)
    for route in ("runs", "live", "plans", "decisions"):
        answer = page.get(f"/{route}/{path}")
        assert answer.status_code == 404 and "secret</" not in answer.text, route


def test_a_link_is_not_listed(data, tmp_path):
    """A symbolic link to a run elsewhere is no run of this folder."""
    made.put(Run(header=made.header("elsewhere"), rows=()), tmp_path.parent / "elsewhere")
    (data / "runs" / "linked").symlink_to(tmp_path.parent / "elsewhere")
    assert "elsewhere" not in client(data).get("/runs").text


def test_one_run_has_its_figures_and_why_it_is_slow(data):
    """Summary, findings, five figures with their numbers, the sentence of explain, the rows."""
    text = client(data).get("/runs/runs/long").text
    assert "The prompt was cut." in text and text.count("<figure") == 6 and text.count(": the numbers</summary>") == 6
    assert "Slow to start" in text and "p95 = slowest of 10" in text


def test_two_runs_are_compared_and_another_workload_is_said(data):
    """Figure by figure, better, worse or cannot tell, as the command says it; a different workload is a warning."""
    page = client(data)
    assert "They were not asked the same" in page.get("/compare?run=runs/short&run=runs/long").text
    same = page.get("/compare?run=runs/short&run=runs/hosted").text
    assert "not asked the same" not in same
    folder = data / "runs"
    said = compare(load_run(folder / "short"), load_run(folder / "hosted"))
    assert escape(said.sentence) in same, "the page says what `servefit compare` says"
    assert [d.outcome for d in said.differences] == re.findall(r'<td class="(?:pass|fail|)">([a-z ]+)</td>', same)
    assert page.get("/compare?run=runs/short").status_code == 400


def test_a_growing_run_is_read_once(tmp_path):
    """Each look reads only what was appended; a torn line waits for its end; another run under the name starts over."""
    with made.growing(tmp_path) as writer:
        run, watcher = tmp_path / "runs" / "now", Watcher()
        assert len(watcher.look(run)[0]) == 3
        with (run / "requests.jsonl").open("a") as file:
            file.write('{"id":"torn","status":"ok","due_s"')
        assert watcher.look(run) == watcher.look(run) and len(watcher.look(run)[0]) == 3
        with (run / "requests.jsonl").open("a") as file:
            file.write(":1.0}\nnonsense\n")
        rows, damaged = watcher.look(run)
        assert (len(rows), rows[-1].id, damaged) == (4, "torn", 1)
        assert writer.folder == run
    (run / "requests.jsonl").unlink()
    (run / "requests.jsonl").write_text("")
    assert watcher.look(run) == ((), 0)


def test_a_run_in_progress_tells_its_percentiles(tmp_path):
    """The live answer has the rows so far; when the run ends it says so."""
    page = client(tmp_path)
    with made.growing(tmp_path) as writer:
        assert (
            "in progress" in page.get("/runs").text and 'data-live="/live/runs/now"' in page.get("/runs/runs/now").text
        )
        first = page.get("/live/runs/now").json()
        assert (first["state"], first["n"]) == ("running", 3) and "of 40" in first["html"]
        writer.append(made.rows(9)[8])
        assert page.get("/live/runs/now").json()["n"] == 4
        writer.finish(made.header("laptop"))
    assert page.get("/live/runs/now").json()["state"] == "finished"
    assert "data-live" not in page.get("/runs/runs/now").text


@pytest.mark.slow
def test_a_thousand_runs_are_listed_by_their_headers(tmp_path, monkeypatch):
    """A thousand runs: a page of fifty, found by a word; rows are read only of those in the timing table."""
    from servefit.web import timing

    made.make(tmp_path, extra=1000)
    reads = []
    real = timing.load_run
    monkeypatch.setattr(timing, "load_run", lambda path: reads.append(path) or real(path))
    page = client(tmp_path)
    answer = page.get("/runs")
    assert "1,007 runs" in answer.text and "1 of 21" in answer.text and len(answer.content) < 300_000
    assert len(reads) <= 12
    assert "many-777" in page.get("/runs?find=many-777").text and "1 found" in page.get("/runs?find=many-777").text
    assert page.get("/runs?page=999&find=").status_code == 200


ODD = (
    {"chunk_s": [3.0, 2.0, 1.0]}, {"chunk_s": [-5.0, -4.0]}, {"chunk_s": [0.0, 0.0, 0.0]}, {"chunk_s": [1e29, 1e29]},
    {"chunk_s": [1e308, 1e308]}, {"chunk_s": [1e-320, 2e-320]}, {"chunk_s": []}, {"chunk_s": [1.0], "chunk_tok": [2**60]},
    {"chunk_s": [1.0, 2.0], "chunk_tok": [1]}, {"chunk_s": [1.0, 2.0], "chunk_tok": [0, 0]}, {"chunk_tok": [-3] * 4},
    {"due_s": -1e29}, {"due_s": 1e29}, {"sent_s": -1.0}, {"done_s": -1e29}, {"isl": -5}, {"osl": 0}, {"osl": 2**62},
    {"isl": 0, "osl": 0}, {"server": {"queue_s": -1, "prefill_s": 1e29}}, {"server": {"queue_s": "x"}}, {"phase": "x"},
    {"status": "surprise"}, {"id": "é" * 300}, {"error": "x" * 5000}, {"answer_chunk": -9}, {"cached_tok": -1},
)  # fmt: skip
HEADS = ({"load": {"n": -1, "isl": "x"}}, {"endpoint": {"url": "http://["}}, {"endpoint": {"url": 5}}, {"window_s": [2, 1]},
         {"load": {"concurrency": 1e29, "n": 1e29}}, {"started": "yesterday"}, {"window_s": [0, 1e29]}, {"seed": -1})  # fmt: skip


def absurd(folder: Path, name: str, head: dict, row: dict) -> None:
    """A run whose middle row, or whose header, holds what no measurement leaves."""
    made.put(Run(header=made.header("odd"), rows=tuple(made.rows(3, osl=4))), folder / "runs" / name)
    for file, change, line in (("run.json", head, 0), ("requests.jsonl", row, 1)):
        path = folder / "runs" / name / file
        lines = path.read_text().splitlines()
        lines[line] = json.dumps(json.loads(lines[line]) | change)
        path.write_text("\n".join(lines) + "\n")


def test_absurd_rows_are_damage_or_plain_figures_and_never_a_crash(tmp_path):
    """Negative, huge, empty, unordered times and counts; odd headers: every page answers, finished or in progress."""
    cases = [({}, row) for row in ODD] + [(head, {}) for head in HEADS]
    for i, (head, row) in enumerate(cases):
        absurd(tmp_path, f"r{i}", head, row)
    page = client(tmp_path)  # raises what a page raises
    for i in range(len(cases)):
        for path in (f"/runs/runs/r{i}", f"/live/runs/r{i}", f"/compare?run=runs/r{i}&run=runs/r0"):
            assert page.get(path).status_code in (200, 400, 422), (path, cases[i])
    for path in ("/", "/runs", "/learn"):
        assert page.get(path).status_code == 200
    assert "damaged" in page.get(f"/runs/runs/r{ODD.index({'chunk_tok': [-3] * 4})}").text
