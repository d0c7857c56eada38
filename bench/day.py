"""What a long measurement holds in memory: `python bench/day.py [--requests 40000,140000] [--users 32] [--tokens 2] [--rate R]`.

`servefit measure`, as a user would run it, of short answers from a server that thinks of nothing (bench/known_server.py), once
for each number of requests, up to the printed summary. Its peak resident memory (VmHWM) is taken when it has ended; the
difference of the first and the last, over the difference in requests, is what a further request takes: next to nothing, as rows,
ranks and the schedule are not held. Two tokens an answer do not reach the limit of two million token times; --tokens 20 does.
Below 20,000 requests rows are held as they are.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from columns import show

SRC = Path(__file__).parent.parent / "src"
ASKED_BYTES = 16
"""What a further request may take."""


def one(requests: int, load: list[str], tokens: int) -> dict:
    """One run of `servefit measure` of so many requests."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "known_server.py"), "--ttft-ms", "0", "--itl-ms", "0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        return measured(server.stdout.readline().strip(), requests, load, tokens)
    finally:
        server.stdin.close()
        server.wait(60)


def measured(url: str, requests: int, load: list[str], tokens: int) -> dict:
    """Its peak memory, and how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "servefit", "measure", url, "--no-probe", "--model", "known", "--isl", "64", "--osl", str(tokens),
             *load, "-n", str(requests), "--quiet", "--out", f"{folder}/run"],
            stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(SRC)},
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - started
        assert os.waitstatus_to_exitcode(status) == 0, "servefit measure failed"
        header = json.loads(Path(f"{folder}/run/run.json").read_text())
        log_bytes = Path(f"{folder}/run/requests.jsonl").stat().st_size
    client = header["client"]
    return {
        "requests": requests,
        "peak_mb": used.ru_maxrss * 1024 / 1e6,
        "wall_s": wall_s,
        "beside_load_s": wall_s - client["wall_s"],
        "req_per_s": requests / client["wall_s"],
        "req_per_cpu_s": requests / client["cpu_s"],
        "log_mb": log_bytes / 1e6,
        "verdict": header["verdict"],
    }


COLUMNS = (
    ("requests", "requests", 0), ("peak_mb", "peak MB", 1), ("wall_s", "wall s", 1), ("beside_load_s", "start + end s", 1),
    ("req_per_s", "req/s", 0), ("req_per_cpu_s", "req per CPU s", 0), ("log_mb", "log MB", 0),
)  # fmt: skip


def main() -> None:
    """Run, print, and say what a further request takes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", default="40000,140000")
    parser.add_argument("--users", type=int, default=32)
    parser.add_argument("--rate", type=float, help="an open loop of so many requests a second instead")
    parser.add_argument("--tokens", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    load = ["--concurrency", str(given.users)] if given.rate is None else ["--rate", str(given.rate)]
    rows = [one(int(n), load, given.tokens) for n in given.requests.split(",")]
    more = rows[-1]["requests"] - rows[0]["requests"]
    each = (rows[-1]["peak_mb"] - rows[0]["peak_mb"]) * 1e6 / more if more else None
    if given.json:
        print(json.dumps({"rows": rows, "bytes_per_request": each}))
        return
    show(COLUMNS, rows)
    if each is not None:
        print(f"{each:.0f} bytes for each further request" + (f", asked {ASKED_BYTES}" if each > ASKED_BYTES else ""))


if __name__ == "__main__":
    main()
