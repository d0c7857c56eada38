"""Clients as processes of this machine (`measure --workers N`): one clock, one schedule, a core each.

A worker is told its share through its standard input, says when it is ready, is told when to begin, and keeps its rows in a
run of its own beside the whole one, so that no row is lost whatever is killed. It never outlives the process that started it.
"""

import contextlib
import json
import os
import pickle
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from servefit.errors import CannotMeasure, ServefitError
from servefit.measure.load import Options, Prepared, Progress
from servefit.measure.many import Drive, Share, begin_in, measure_share, portable, shares_of, tell
from servefit.measure.run import parts_folder
from servefit.records import load_run
from servefit.servers.lifeline import die_with_parent
from servefit.workload.requests import Request
from servefit.workload.workload import Workload

LEAD_S = 0.5
"""From the moment when every worker is ready to the first due time: enough to open connections and build prompts."""
_LOOK_S = 0.25


def on_workers(count: int) -> Drive:
    """Has the load sent by `count` processes. Raises ServefitError, CannotMeasure."""
    if count < 1:
        raise ServefitError(f"--workers is {count}.", hint="At least 1.")

    def drive(
        known: Prepared, workload: Workload, requests: Sequence[Request], options: Options, zero_ns: int
    ) -> list[Share]:
        parts = shares_of(workload, requests, count)
        tell(options, f"starting {len(parts)} workers")
        kept, plain = portable(known, options)
        folders = [parts_folder(options.out) / str(number) for number in range(1, len(parts) + 1)]
        jobs = [
            (kept, part, own, replace(plain, out=f, zero_ns=zero_ns))
            for (part, own), f in zip(parts, folders, strict=True)
        ]
        with contextlib.ExitStack() as stack:
            crew = [stack.enter_context(_started(job)) for job in jobs]
            try:
                for worker in crew:
                    worker.hear()
                begin_ns = begin_in(LEAD_S, requests, options)
                for worker in crew:
                    worker.say(b"%d\n" % begin_ns)
                _watch(crew, folders, options, len(requests))
            except KeyboardInterrupt:
                if not all((folder / "run.json").exists() for folder in folders):
                    raise
                for worker in crew:
                    worker.process.terminate()  # it ends its part as a single client does on Ctrl-C
            for worker in crew:
                worker.hear()
        place = {"node": platform.node(), "node_id": "here", "cores": os.cpu_count()}
        return [Share(run=load_run(folder, packed=True), place=place) for folder in folders]

    return drive


@dataclass(frozen=True, slots=True)
class Worker:
    """A process, spoken with by lines."""

    process: "subprocess.Popen[bytes]"

    def say(self, data: bytes) -> None:
        """Send it something."""
        assert self.process.stdin is not None, "it is a pipe"
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def hear(self) -> None:
        """Wait for its next word. Raises what kept it from going on, or CannotMeasure where it has died."""
        assert self.process.stdout is not None, "it is a pipe"
        said = json.loads(self.process.stdout.readline() or "{}")
        if "error" in said:  # with the exit code that one client alone would have ended with
            kind = CannotMeasure if said["code"] == CannotMeasure.exit_code else ServefitError
            raise kind(said["error"], hint=said["hint"])
        if not said:
            raise CannotMeasure(f"A worker ended without a word, with code {self.process.wait()}.",
                                hint="What it had measured is kept: go on with --resume.")  # fmt: skip


@contextlib.contextmanager
def _started(job: tuple[Any, ...]) -> Iterator[Worker]:
    """A worker that has its job; killed at the end where it is still there."""
    code = "import sys; sys.path.append(sys.argv[1]); from servefit.measure.workers import work; work()"
    command = [sys.executable, "-c", code, str(Path(__file__).parents[2])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            worker = Worker(process)
            worker.say(pickle.dumps(job))
            yield worker
        finally:
            if process.poll() is None:
                process.kill()


def _watch(crew: Sequence[Worker], folders: Sequence[Path], options: Options, total: int) -> None:
    """Wait for all workers, and say how far they are; where one fails the others are ended too."""
    began = time.monotonic()
    read, ok, done = dict.fromkeys(folders, 0), 0, 0
    while any(worker.process.poll() is None for worker in crew):
        time.sleep(_LOOK_S)
        if any(worker.process.poll() for worker in crew):
            for worker in crew:
                worker.process.terminate()
            return
        if options.progress is None:
            continue
        for folder in folders:
            with contextlib.suppress(OSError), (folder / "requests.jsonl").open("rb") as file:
                file.seek(read[folder])
                new = file.read()
                read[folder] += len(new)
                done += new.count(b"\n")
                ok += new.count(b'"status":"ok"')
        kinds = {"ok": ok} | ({"failed": done - ok} if done > ok else {})
        options.progress(
            Progress(step="measuring", done=done, total=total, elapsed_s=time.monotonic() - began, by_status=kinds)
        )


def work() -> None:
    """What a worker does. Ctrl-C is for the process that started it, which asks it to end with SIGTERM."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    known, part, own, options = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started us
    out = sys.stdout.buffer

    def say(word: dict[str, str | int]) -> None:
        out.write(json.dumps(word).encode() + b"\n")
        out.flush()

    code = 0
    try:
        say({"ready": "yes"})
        begin_ns = int(sys.stdin.buffer.readline())
        with contextlib.suppress(KeyboardInterrupt):
            measure_share(known, part, own, replace(options, begin_ns=begin_ns))
        say({"done": "yes"})
    except ServefitError as error:
        code = error.exit_code
        say({"error": error.message, "hint": error.hint or "", "code": code})
    sys.exit(code)
