"""A measurement from end to end, against servers whose answers are known."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from servefit.cli.measure_show import _load_words
from servefit.errors import CannotMeasure, ServefitError
from servefit.measure import load as load_module
from servefit.measure.kept import Kept
from servefit.measure.load import Load, Prepared
from servefit.measure.pace import OpenLoop
from servefit.measure.probe import find_endpoint
from servefit.measure.prompts import PromptMaker
from servefit.measure.rows import Planned
from servefit.measure.run import Options, measure
from servefit.packed import Packed
from servefit.records import RequestRecord, load_run
from servefit.traps.self_signed import write_pem
from servefit.traps.server import TrapServer, in_process, in_thread
from servefit.wire.client import Counters, Exchange, Limits
from servefit.workload import drawn as drawn_module
from servefit.workload.arrivals import schedule
from servefit.workload.requests import schedule_sha256
from servefit.workload.workload import Lengths, Workload

LOAD = Workload(n=6, concurrency=2, isl=Lengths(mean=64), osl=Lengths(mean=20))


@pytest.fixture(scope="module")
def server():
    """The trap server, eight times as fast as its scripts."""
    with in_thread(speed=8) as running:
        yield running


def test_cold_and_warm_up_are_apart(server: TrapServer, tmp_path: Path):
    """The first request and the warm-up are rows of their own phase, and enter no figure."""
    run = measure(find_endpoint(f"{server.url}/plain"), LOAD, Options(out=tmp_path / "run"))
    phases = [row.phase for row in run.rows]
    assert phases == ["cold", "warmup", "warmup"] + ["load"] * 6
    assert {row.id for row in run.load_rows} == {str(i) for i in range(6)}
    assert run.header.finished
    assert run == load_run(tmp_path / "run")


@pytest.mark.parametrize("when", [{"concurrency": 20}, {"concurrency": None, "rate_req_per_s": 200.0}])
@pytest.mark.parametrize("resume", [False, True])
def test_a_long_run_holds_few_rows(
    server: TrapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool, when: dict
):
    """With the limit at 10 rows, about as many are there as objects at any moment of a run of 80; it is the run on disk."""
    monkeypatch.setitem(Kept.__init__.__kwdefaults__, "whole_rows", 10)
    monkeypatch.setattr(drawn_module, "WHOLE", 10)
    live: list[int] = []

    def settled(row: RequestRecord) -> None:
        if row.id.endswith("9"):
            live.append(sum(type(thing) is RequestRecord for thing in gc.get_objects()))

    nines = 8
    target, load = find_endpoint(f"{server.url}/plain", model="m"), replace(LOAD, n=80, **when)
    if resume:
        measure(target, load, Options(out=tmp_path / "run", probe=False))
        with (tmp_path / "run" / "requests.jsonl").open("r+b") as file:
            kept = file.readlines()[:40]  # in the order in which they ended
            file.truncate(len(b"".join(kept)))
        nines -= sum(json.loads(line)["id"].endswith("9") for line in kept)
    run = measure(target, load, Options(out=tmp_path / "run", probe=False, settled=settled, resume=resume))
    assert isinstance(run.rows, Packed) and len(run.rows) == 80 and {int(row.id) for row in run.rows} == set(range(80))
    assert run.header.schedule_sha256 == schedule_sha256(schedule(load))
    assert len(live) == nines and max(live) <= 13  # those of before the load are frozen
    assert run == load_run(tmp_path / "run")


def test_answers_that_wait_to_be_written_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A client that never has an idle moment writes a row for each answer all the same, and never holds more than the bound."""
    monkeypatch.setattr(load_module, "MOST_UNWRITTEN", 300)
    endpoint = find_endpoint("http://127.0.0.1:9", model="m")
    load = Load(
        Prepared(endpoint=endpoint, maker=PromptMaker()), LOAD, schedule(LOAD), Options(out=tmp_path), FakeWriter()
    )
    monkeypatch.setattr(load, "_client", NeverIdle())
    written: list[Exchange] = []
    monkeypatch.setattr(load, "_record", written.append)
    pace, most = OpenLoop([]), 0
    for turn in range(1, 201):
        load._turn(pace, None)
        most = max(most, len(load._backlog))
        assert len(written) + len(load._backlog) == 50 * turn
    least = 2 * (4 * load._ahead + 256)
    assert most <= max(300, least) and len(written) >= 50 * 200 - most
    assert [e.id for e in written] == list(range(len(written))), "in the order in which they ended"


class FakeWriter:
    """Takes no rows."""


class NeverIdle:
    """A client whose every look finds fifty more answers."""

    def __init__(self) -> None:
        self.counters, self._n = Counters(), 0
        self.busy = 50

    def poll(self, _until_ns: int) -> list[Exchange]:
        """Fifty exchanges that have ended."""
        self.counters.reads += 1
        ended = [Exchange(self._n + k, b"", owner=Planned(id=str(self._n + k))) for k in range(50)]
        self._n += 50
        return ended


def test_prompts_are_unique_and_nothing_is_sent_twice(server: TrapServer, tmp_path: Path):
    """Each request of a run has a prompt of its own, and each prompt is sent once."""
    before = len(server.seen.requests)
    measure(find_endpoint(f"{server.url}/plain", model="m"), LOAD, Options(out=tmp_path / "run", probe=False))
    prompts = [body["messages"][0]["content"] for _, _, body in server.seen.requests[before:]]
    assert len(prompts) == len(set(prompts)) == 6


def test_a_trace_says_what_it_asks(server: TrapServer, tmp_path: Path):
    """The header's lengths are those of the trace, on average, not the workload's own; stages are named."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0,40,6\n2023-11-16 18:15:46.1,60,10\n"
    )
    load = Workload(trace=str(trace), n=2)
    run = measure(find_endpoint(f"{server.url}/plain", model="m"), load, Options(out=tmp_path / "run", probe=False))
    assert (run.header.load["isl"], run.header.load["osl"]) == (50, 8)
    assert _load_words(run.header.load) == "by a trace"
    staged = replace(LOAD, concurrency=None, stages=((20.0, 0.1), (40.0, 0.1)))
    run = measure(find_endpoint(f"{server.url}/plain", model="m"), staged, Options(out=tmp_path / "s", probe=False))
    assert _load_words(run.header.load) == "20 then 40 req/s"


def test_an_open_loop_counts_from_the_due_time(server: TrapServer, tmp_path: Path):
    """Rows keep their due time whatever became of them, and nothing is sent before it."""
    load = replace(LOAD, concurrency=None, rate_req_per_s=40.0, arrivals="constant", n=8)
    run = measure(find_endpoint(f"{server.url}/plain", model="m"), load, Options(out=tmp_path / "run", probe=False))
    rows = sorted(run.load_rows, key=lambda row: int(row.id))
    first = rows[0].due_s
    assert [round(row.due_s - first, 6) for row in rows] == [round(i / 40, 6) for i in range(8)]
    assert all(row.sent_s is not None and row.sent_s >= row.due_s for row in rows)
    assert all(row.ok for row in rows)


def test_the_round_trip_is_taken_when_connecting(server: TrapServer, tmp_path: Path):
    """The header says how long the shortest TCP handshake took: by the kernel, so far below a token's time on loopback."""
    run = measure(find_endpoint(f"{server.url}/plain"), LOAD, Options(out=tmp_path / "run"))
    trip = run.header.client["rtt_s"]
    assert 0 < trip < min(row.ttft_s for row in run.load_rows if row.ttft_s)


def test_a_failure_is_a_row_and_no_latency(server: TrapServer, tmp_path: Path):
    """A run that failed altogether has its rows, no figure, and is invalid."""
    run = measure(find_endpoint(f"{server.url}/http_500", model="m"), LOAD, Options(out=tmp_path / "run", probe=False))
    assert [row.status for row in run.rows] == ["http_error"] * 6
    assert run.header.verdict == "invalid"
    assert {f.code for f in run.header.findings} >= {"all_failed"}


def test_expected_failures_do_not_make_a_run_invalid(server: TrapServer, tmp_path: Path):
    """A target that is known to fail keeps its rows and reasons; that it passes is said."""
    target = find_endpoint(f"{server.url}/http_404", model="m", expect_failure=True)
    run = measure(target, LOAD, Options(out=tmp_path / "a"))
    assert {(row.status, row.expected_failure) for row in run.rows} == {("not_found", True)}
    assert run.header.verdict != "invalid"
    passing = find_endpoint(f"{server.url}/plain", model="m", expect_failure=True)
    run = measure(passing, LOAD, Options(out=tmp_path / "b"))
    assert "unexpected_pass" in {f.code for f in run.header.findings}


@pytest.mark.parametrize(
    ("trap", "words"),
    [("http_401", "let us in"), ("http_404", "no model"), ("html", "not an LLM"), ("redirect", "redirect")],
)
def test_what_cannot_be_measured_is_one_sentence(server: TrapServer, tmp_path: Path, trap: str, words: str):
    """Where the first request shows that nothing can be measured, that is said with a hint, and no folder is left."""
    with pytest.raises(CannotMeasure, match=words) as caught:
        measure(find_endpoint(f"{server.url}/{trap}", model="m"), LOAD, Options(out=tmp_path / "run"))
    assert caught.value.hint
    assert not (tmp_path / "run").exists()


def test_nobody_there_is_one_sentence(tmp_path: Path):
    """A closed port is said to be closed."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(CannotMeasure, match="Nothing answers"):
        measure(find_endpoint(f"127.0.0.1:{port}"), LOAD, Options(out=tmp_path / "run"))


@pytest.mark.slow
def test_a_certificate_of_its_own_is_named_or_refused(tmp_path: Path):
    """An https server with a private certificate: what to name is said, and named it is measured."""
    pem = write_pem(tmp_path / "own.pem")
    with in_process(pem) as url:
        with pytest.raises(CannotMeasure, match="certificate verify failed") as caught:
            measure(find_endpoint(f"{url}/plain", model="m"), LOAD, Options(out=tmp_path / "run"))
        assert "ca_file" in (caught.value.hint or "")
        trusted = find_endpoint(f"{url}/plain", model="m", ca_file=str(pem))
        run = measure(trusted, LOAD, Options(out=tmp_path / "run", probe=False))
    assert all(row.ok for row in run.rows)


def test_the_key_is_in_no_file(server: TrapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The API key goes to the server and nowhere else, even where the server quotes it."""
    monkeypatch.setenv("SOME_KEY", "sk-very-secret-0123456789")
    target = find_endpoint(f"{server.url}/http_401", model="m", api_key_env="SOME_KEY")
    measure(target, LOAD, Options(out=tmp_path / "run", probe=False))
    _, headers, _ = server.seen.requests[-1]
    assert headers["authorization"] == "Bearer sk-very-secret-0123456789"
    assert not [p for p in (tmp_path / "run").iterdir() if b"very-secret" in p.read_bytes()]
    assert "very-secret" not in repr(target)


def test_a_key_with_a_line_end_is_the_key_without(server: TrapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Files and secret stores leave a line end behind the key: it is not sent, and a server that quotes the key still brings it nowhere."""
    monkeypatch.setenv("SOME_KEY", " sk-very-secret-0123456789\r\n")
    target = find_endpoint(f"{server.url}/http_401", model="m", api_key_env="SOME_KEY")
    measure(target, LOAD, Options(out=tmp_path / "run", probe=False))
    _, headers, _ = server.seen.requests[-1]
    assert headers["authorization"] == "Bearer sk-very-secret-0123456789"
    assert not [p for p in (tmp_path / "run").iterdir() if b"very-secret" in p.read_bytes()]


@pytest.mark.parametrize("key", ["sk-new\r\nX-Evil: 1", "sk\x00", "sk-\t9", "schlüssel"])
def test_a_key_is_one_line_of_ascii(key: str, monkeypatch: pytest.MonkeyPatch):
    """A key that would bring a header of its own is refused before anything is sent, and not quoted."""
    monkeypatch.setattr("os.environ", {**os.environ, "SOME_KEY": key})
    with pytest.raises(CannotMeasure, match="The API key in SOME_KEY has characters") as caught:
        find_endpoint("http://127.0.0.1:9", model="m", api_key_env="SOME_KEY")
    assert key not in str(caught.value) + str(caught.value.hint)


def test_a_missing_key_is_said(monkeypatch: pytest.MonkeyPatch):
    """A key that is named and not set is a sentence, before anything is sent."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(CannotMeasure, match="NO_SUCH_KEY"):
        find_endpoint("http://127.0.0.1:1", api_key_env="NO_SUCH_KEY")


def test_a_second_writer_and_a_used_folder_are_refused(server: TrapServer, tmp_path: Path):
    """A folder holds one run."""
    target = find_endpoint(f"{server.url}/plain", model="m")
    options = Options(out=tmp_path / "run", probe=False)
    measure(target, LOAD, options)
    with pytest.raises(ServefitError, match="holds a run already"):
        measure(target, LOAD, options)


def test_resume_goes_on_where_it_stopped(server: TrapServer, tmp_path: Path):
    """Rows that are there stay, a torn line and cut-off requests are measured again, each id once."""
    target = find_endpoint(f"{server.url}/plain", model="m")
    options = Options(out=tmp_path / "run", probe=False)
    measure(target, LOAD, options)
    log = tmp_path / "run" / "requests.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    cut = json.dumps({"id": json.loads(lines[3])["id"], "status": "cancelled", "due_s": 1.0}).encode() + b"\n"
    log.write_bytes(b"".join(lines[:3]) + cut + lines[4][:40])
    run = measure(target, LOAD, replace(options, resume=True))
    assert sorted(int(row.id) for row in run.load_rows) == list(range(6))
    assert {row.status for row in run.load_rows} == {"ok"}
    assert run == load_run(tmp_path / "run")


def test_resume_does_not_wash_a_verdict(server: TrapServer, tmp_path: Path):
    """What made the earlier rows suspect still does: they are in the figures."""
    target = find_endpoint(f"{server.url}/plain", model="m")
    options = Options(out=tmp_path / "run", probe=False)
    measure(target, LOAD, options)
    path = tmp_path / "run" / "run.json"
    header = json.loads(path.read_text())
    busy = {"code": "busy_machine", "level": "suspect", "message": "Busy.", "hint": ""}
    path.write_text(json.dumps(header | {"findings": [busy], "verdict": "suspect"}))
    run = measure(target, LOAD, replace(options, resume=True))
    assert run.header.verdict == "suspect" and "busy_machine" in [f.code for f in run.header.findings]


def test_resume_asks_again_for_what_was_cut_off_before_other_rows_ended(server: TrapServer, tmp_path: Path):
    """Several clients do not stop at one moment: a cut-off row may stand before others', and is not kept beside its answer."""
    target = find_endpoint(f"{server.url}/plain", model="m")
    options = Options(out=tmp_path / "run", probe=False)
    measure(target, LOAD, options)
    log = tmp_path / "run" / "requests.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    cut = json.dumps({"id": json.loads(lines[2])["id"], "status": "cancelled", "due_s": 1.0}).encode() + b"\n"
    log.write_bytes(b"".join([*lines[:2], cut, *lines[3:]]))
    run = measure(target, LOAD, replace(options, resume=True))
    assert sorted((int(row.id), row.status) for row in run.load_rows) == [(i, "ok") for i in range(6)]
    assert log.read_bytes().startswith(b"".join([*lines[:2], *lines[3:]]))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--timeout", "nan"), "--timeout is nan"),
        (("--timeout", "-1"), "--timeout is -1"),
        (("--ramp", "1e300"), "--ramp is 1e300"),
        (("--rate", "1e-300"), "--rate is 1e-300"),
        (("--rate", "1e-6", "-n", "100000"), "due after"),
        (("--rate", "1e-6", "-n", "100000", "--workers", "2"), "due after"),
        (("--isl", "99999999999999"), "--isl is 99999999999999"),
    ],
)
def test_absurd_values_are_one_sentence(cli, tmp_path: Path, args, words):
    """Exit code 2, nothing on stdout, nothing written."""
    out = tmp_path / "run"
    code, said, err = cli("measure", "http://127.0.0.1:9", "--no-probe", "-n", "3", "--json", "--out", out, *args)
    assert (code, said) == (2, "") and words in err
    assert not out.exists()


def test_resume_of_another_load_is_refused(server: TrapServer, tmp_path: Path):
    """Rows of two different loads never share a run."""
    target = find_endpoint(f"{server.url}/plain", model="m")
    options = Options(out=tmp_path / "run", probe=False)
    measure(target, LOAD, options)
    with pytest.raises(ServefitError, match="another run"):
        measure(target, replace(LOAD, n=7), replace(options, resume=True))


def test_a_service_that_is_slow_to_start_is_given_up_on_time(server: TrapServer, tmp_path: Path):
    """No header within the limit is a row, and the run ends."""
    limits = Limits(silent_s=0.3)
    options = Options(out=tmp_path / "run", probe=False, limits=limits)
    run = measure(find_endpoint(f"{server.url}/no_headers", model="m"), replace(LOAD, n=2), options)
    assert [row.status for row in run.rows] == ["timeout", "timeout"]


# --- as a program ------------------------------------------------------------------------------------------------------


def program(*arguments: str, **more: object) -> "subprocess.Popen[str]":
    """`servefit measure` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "servefit", "measure", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": "src"}, **more,
    )  # fmt: skip


def wait_for_rows(folder: Path, count: int) -> None:
    """Until the run has so many rows in its file."""
    limit = time.monotonic() + 30
    log = folder / "requests.jsonl"
    while time.monotonic() < limit:
        if log.exists() and log.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.02)
    pytest.fail("the program wrote no rows")


@pytest.mark.slow
def test_the_json_contract(tmp_path: Path):
    """Stdout is one object with the figures that were promised."""
    with in_process() as url, program(f"{url}/plain", "-n", "4", "--concurrency", "4", "--isl", "64", "--osl", "20", "--no-probe",
                                      "--json", "--out", str(tmp_path / "run")) as done:  # fmt: skip
        out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    summary = json.loads(out)["summary"]
    assert {"n", "ok", "failed", "by_status", "output_tok_per_s", "goodput_req_per_s", "verdict", "findings"} <= set(
        summary
    )
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        assert set(summary[name]) == {"p50", "p90", "p95", "p99", "mean", "max", "n"}
    assert (summary["n"], summary["ok"], summary["by_status"]) == (4, 4, {"ok": 4})


@pytest.mark.slow
def test_killed_at_any_moment_the_run_can_be_read(tmp_path: Path):
    """A kill -9 leaves the rows that had ended."""
    folder = tmp_path / "run"
    with in_process() as url, program(f"{url}/plain", "-n", "500", "--concurrency", "4", "--isl", "64", "--no-probe", "--quiet",
                                      "--out", str(folder)) as running:  # fmt: skip
        wait_for_rows(folder, 4)
        running.kill()
        running.communicate(timeout=30)
    run = load_run(folder)
    assert len(run.rows) >= 4
    assert not run.header.finished


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_with_a_summary(tmp_path: Path, sign: signal.Signals):
    """Ctrl-C, or a polite kill, ends the load, prints what there is, exits with 130 and keeps every row."""
    folder = tmp_path / "run"
    with in_process() as url, program(f"{url}/plain", "-n", "500", "--concurrency", "4", "--isl", "64", "--osl", "20", "--no-probe",
                                      "--quiet", "--out", str(folder)) as running:  # fmt: skip
        wait_for_rows(folder, 4)
        running.send_signal(sign)
        out, err = running.communicate(timeout=30)
    assert running.returncode == 130, err
    assert "TTFT" in out
    assert "--resume" in out
    run = load_run(folder)
    assert {row.status for row in run.rows} <= {"ok", "cancelled"}
    assert not run.header.finished


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on file sizes")
def test_a_full_disk_stops_the_load_and_keeps_what_was_written(tmp_path: Path):
    """Where no byte more can be written, that is one sentence, and the rows before it can be read."""
    import resource

    def little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    folder = tmp_path / "run"
    with in_process() as url, program(f"{url}/plain", "-n", "400", "--concurrency", "4", "--isl", "64", "--osl", "20", "--no-probe",
                                      "--quiet", "--out", str(folder), preexec_fn=little_room) as running:  # fmt: skip
        _, err = running.communicate(timeout=60)
    assert running.returncode == 2, err
    assert "cannot be written" in err
    assert "Traceback" not in err
    assert len(load_run(folder).rows) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("http://127.0.0.1:1",), 3, "Nothing answers"),
        (("http://127.0.0.1:1", "--rate", "-1"), 2, "-1"),
        (("http://127.0.0.1:1", "-n", "0"), 2, "0"),
        (("http://127.0.0.1:1", "--rate", "1", "--concurrency", "1"), 2, "Both"),
        (("ftp://x",), 2, "URL"),
        (("http://127.0.0.1:1", "--workload", "no-such-file.toml"), 2, "no-such-file.toml"),
        (("http://127.0.0.1:99999",), 2, "URL"),
        (("http://no-such-host.invalid",), 3, "no-such-host"),
    ],
)
def test_bad_input_is_one_sentence_and_a_hint(tmp_path: Path, arguments: tuple[str, ...], code: int, words: str):
    """Each fault has its sentence, its hint and its exit code, and leaves nothing behind."""
    with program(*arguments, "--out", str(tmp_path / "run")) as running:
        out, err = running.communicate(timeout=60)
    assert running.returncode == code, err
    assert words in err
    assert "hint:" in err
    assert "Traceback" not in err
    assert not out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("quiet", [(), ("--quiet",), ("--quiet", "--json")])
def test_all_failed_is_said_on_stderr(cli, tmp_path: Path, quiet: tuple[str, ...]):
    """Where nothing was observed, one sentence on stderr says how the requests failed, and the exit code is 3."""
    args = ("measure", "http://127.0.0.1:9", "--no-probe", "-n", "3", "--out", tmp_path / "run", *quiet)
    code, _, err = cli(*args)
    assert code == 3
    assert err.strip().splitlines()[-1] == "servefit: All 3 requests failed: 3 refused. For example: Connection refused"
