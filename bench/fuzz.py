"""Coverage-guided fuzzing of every parser: `python bench/fuzz.py [NAME...] [--seconds 60]`. Needs `pip install atheris` (Linux).

The parsers and a good file for each are those of tests/test_fuzz.py. A parser answers any bytes with a value or with a
ServefitError of one sentence; a crash, one input that takes over 10 s, or over 2 GiB of memory ends it, and the input that did
it is kept in --out. Each runs in a process of its own; the exit code is the number of parsers that fell.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]


def fuzz(name: str, seconds: int, out: Path) -> None:
    """Fuzz one parser; atheris ends the process, with 0 only when nothing was found."""
    import atheris

    with atheris.instrument_imports(include=["servefit"]):
        import parsers

    corpus = Path(tempfile.mkdtemp())
    (corpus / "good").write_bytes(parsers.good(name))
    read = parsers.reader(name, Path(tempfile.mkdtemp()))
    out.mkdir(parents=True, exist_ok=True)
    atheris.Setup(
        [sys.argv[0], str(corpus), f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048",
         f"-artifact_prefix={out}/{name}-", "-print_final_stats=1", "-verbosity=0"],
        lambda data: parsers.holds(read, data),
    )  # fmt: skip
    atheris.Fuzz()


def main() -> int:
    """Fuzz what is named, or all of it, one after another."""
    if sys.argv[1:2] == ["--one"]:  # before any parser is imported: atheris must see it happen
        fuzz(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    import parsers

    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(parsers.names())}")
    asked.add_argument("--seconds", type=int, default=60)
    asked.add_argument("--out", type=Path, default=Path("fuzz-found"))
    args = asked.parse_args()
    fell = 0
    for name in args.names or parsers.names():
        command = [sys.executable, __file__, "--one", name, str(args.seconds), str(args.out)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        runs = [line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line]
        print(
            f"{name:24} {runs[0] if runs else '?':>9} inputs  {'held' if done.returncode == 0 else 'FELL'}", flush=True
        )
        if done.returncode:
            print(done.stderr[-2500:])
            fell += 1
    return fell


if __name__ == "__main__":
    sys.exit(main())
