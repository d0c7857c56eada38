"""How close our client is to the truth, and what it costs: `python bench/client.py [--streams 1,64,256,512,1000] [--json]`.

A server with known timings (bench/known_server.py: 100 ms to the first token, 128 tokens, one every 20 ms) remembers when it
sent each token; `servefit measure` runs against it as a user would run it. Error is our percentile minus the true one. CPU
is that of our process from start to end, so start-up and report are in it. Server and client share the machine: on two
cores, other work shows in the tails of both.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from columns import show

SRC = Path(__file__).parent.parent / "src"
TARGETS = {  # at 256 and at 512 streams: what issue 3 asks for
    256: {"ttft_p50_error_ms": 0.2, "ttft_p99_error_ms": 1, "itl_p99_error_ms": 0.1, "cpu_s_per_mtok": 20},
    512: {"ttft_p99_error_ms": 2, "itl_p99_error_ms": 0.2, "cpu_s_per_mtok": 15, "peak_mb": 200},
}


def one(streams: int, rounds: int, tokens: int) -> dict:
    """One run of `servefit measure` at so many streams, beside the truth."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "known_server.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        url = server.stdout.readline().strip()
        return measured(url, streams, rounds, tokens)
    finally:
        server.stdin.close()
        server.wait(10)


def measured(url: str, streams: int, rounds: int, tokens: int) -> dict:
    """What we say, what is true and what it cost."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out:
        started = time.monotonic_ns()
        process = subprocess.Popen(
            [sys.executable, "-m", "servefit", "measure", url, "--no-probe", "--model", "known", "--isl", "64",
             "--osl", str(tokens), "--concurrency", str(streams), "-n", str(streams * rounds), "--quiet", "--json",
             "--out", f"{folder}/run"],
            stdout=out, env={**os.environ, "PYTHONPATH": str(SRC)},
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        ended = time.monotonic_ns()
        assert os.waitstatus_to_exitcode(status) == 0, "servefit measure failed"
        out.seek(0)
        said = json.load(out)
    with urllib.request.urlopen(f"{url}/truth") as answer:
        truth = json.load(answer)
    summary, client = said["summary"], said["client"]

    def error_ms(name: str, p: int) -> float:
        return 1e3 * (summary[f"{name}_s"][f"p{p}"] - truth[f"{name}_p{p}_s"])

    mtok = truth["tokens"] / 1e6
    return {
        "streams": streams,
        "ok": summary["ok"],
        "sent": truth["requests"],
        "ttft_p50_error_ms": error_ms("ttft", 50),
        "ttft_p99_error_ms": error_ms("ttft", 99),
        "itl_p50_error_ms": error_ms("itl", 50),
        "itl_p99_error_ms": error_ms("itl", 99),
        "cpu_s_per_mtok": client["cpu_s"] / mtok,
        "cpu_s_whole": used.ru_utime + used.ru_stime,
        "cpu_cores": client["cpu_cores"],
        "others_cores": client["others_cores"],
        "busy_streams": truth["busy_streams"],
        "peak_mb": used.ru_maxrss * 1024 / 1e6,
        "start_s": (truth["first_request_ns"] - started) / 1e9,
        "after_s": (ended - truth["last_token_ns"]) / 1e9,
        "shared_reads_frac": client["tokens_sharing_a_read_frac"],
        "clock": said["clock"],
        "verdict": summary["verdict"],
        "true_ttft_p99_ms": 1e3 * truth["ttft_p99_s"],
    }


COLUMNS = (
    ("streams", "streams", 0), ("ttft_p50_error_ms", "TTFT p50 err ms", 2), ("ttft_p99_error_ms", "TTFT p99 err ms", 2),
    ("itl_p99_error_ms", "ITL p99 err ms", 3), ("busy_streams", "busy", 0), ("cpu_s_per_mtok", "CPU s/Mtok", 1),
    ("cpu_cores", "cores", 2), ("others_cores", "others", 2), ("peak_mb", "peak MB", 0), ("start_s", "start s", 2),
    ("after_s", "after s", 2), ("shared_reads_frac", "shared", 3),
)  # fmt: skip


def main() -> None:
    """Run, print, and say which targets are missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", default="1,64,256,512")
    parser.add_argument("--rounds", type=int, default=6, help="requests a stream")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [one(int(streams), given.rounds, given.tokens) for streams in given.streams.split(",")]
    missed = [
        f"{row['streams']} streams: {name} is {row[name]:.2f}, asked {limit}"
        for row in rows for name, limit in {**TARGETS.get(row["streams"], {}), "start_s": 0.5}.items()
        if abs(row[name]) > limit
    ]  # fmt: skip
    if given.json:
        print(json.dumps({"rows": rows, "missed": missed}))
        return
    show(COLUMNS, rows)
    print("\n".join(missed) or "every target is met")


if __name__ == "__main__":
    main()
