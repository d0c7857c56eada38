"""Every figure that the docs state, in one go: `python -m bench.all [--data DIR] [NAME...]` (make bench). An hour on a quiet machine.

Each bench prints its own table; this prints the date, the machine and the commit, what it runs, and how each ended. `start-up` is
what a person waits for. --data names a folder of public measurements for `validate`; NAMEs run only those. --out keeps what they write, and
`predict` goes on with what lies there. --for and --rounds go to `predict`, of each engine.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from servefit.host.machine import chip_name  # noqa: E402 - the checkout, not an installed servefit

GOLDEN = "tests/golden/bundles/decision-1.zip"


def benches(data_dir: str | None, scratch: Path, more: list[str]) -> list[tuple[str, list[str]]]:
    """(name, arguments after python), the quick ones first; `more` are for `predict`."""
    predict = ["bench/predict.py", "--out", str(scratch / "predict.jsonl")]
    found = [
        ("install", ["-m", "bench.install"]),
        ("simulator", ["bench/simulator.py", "--candidates", "--day"]),
        ("explain", ["bench/explain_causes.py", "--seeds", "12"]),
        ("bandwidth", ["bench/bandwidth.py"]),
        ("client", ["bench/client.py", "--streams", "1,64,256,512"]),
        ("day", ["bench/day.py"]),
        ("page", ["-m", "bench.page"]),
        ("tour", ["-m", "servefit", "tour", "--out", str(scratch / "tour")]),
        ("predict", [*predict, "--engine", "embedded", *more]),
        ("predict", [*predict, "--engine", "llamacpp", "--rounds", "2", *more]),
    ]
    return [*found, ("validate", ["bench/validate.py", data_dir])] if data_dir else found


def start_up() -> None:
    """Wall seconds of what a person waits for, best of three, in a fresh process each."""
    for args in (
        ["--help"],
        ["--version"],
        ["check"],
        ["devices"],
        ["learn", "example", "cached-bill"],
        ["verify", GOLDEN],
    ):
        times = []
        for _ in range(3):
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "servefit", *args], check=False, capture_output=True, cwd=ROOT, env=environment()
            )
            times.append(time.perf_counter() - began)
        print(f"  servefit {' '.join(args):30} {min(times):6.2f} s")


def environment() -> dict[str, str]:
    """The present one, with the checkout's sources first."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def header() -> str:
    """When, where and of what: what a figure is worth nothing without."""
    asked = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(asked, check=False, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"
    chip = chip_name() or "of an unknown chip"
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores {chip}, commit {commit}"


def main() -> int:
    """Run them all; the exit code is the number that ended with one of their own."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("names", nargs="*", metavar="NAME")
    asked.add_argument("--data", metavar="DIR")
    asked.add_argument("--out", metavar="DIR", type=Path)
    asked.add_argument("--for", metavar="SECONDS", dest="for_s")
    asked.add_argument("--rounds", metavar="N")
    given = asked.parse_args()
    more = [x for flag, value in (("--for", given.for_s), ("--rounds", given.rounds)) if value for x in (flag, value)]
    failed = 0
    print(header())
    if not given.names or "start-up" in given.names:
        print("\n== start-up")
        start_up()
    with tempfile.TemporaryDirectory() as scratch:
        for name, args in benches(given.data, given.out or Path(scratch), more):
            if given.names and name not in given.names:
                continue
            print(f"\n== {name}: python {' '.join(args)}", flush=True)
            began = time.perf_counter()
            done = subprocess.run([sys.executable, *args], check=False, cwd=ROOT, env=environment())
            print(f"-- {name} ended with {done.returncode} after {time.perf_counter() - began:.0f} s", flush=True)
            failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
