"""Build the wheel, install it in a fresh environment with base dependencies only, try it: `python -m bench.install`.

Prints the installed size (limit 60 MB), what the wheel lacks (nothing, or exit code 1), and how long import and `--help`
take, as medians of 7. Everything happens in a folder that is removed at the end.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMIT_MB = 60
GOLDEN = ROOT / "tests" / "golden" / "plan-small.json"


def main() -> int:
    """Build, install, try; exit code 0 where all of it worked and the size keeps its limit."""
    with tempfile.TemporaryDirectory(prefix="servefit-install-") as name:
        home = Path(name)
        wheel = build(home)
        lacking = missing_from(wheel)
        python = install(home, wheel)
        faults = [f"not in the wheel: {path}" for path in lacking] + tried(home, python)
        mb, servefit_mb = sizes(home)
        print(f"wheel {wheel.stat().st_size / 1e6:.1f} MB; installed {mb:.1f} MB, servefit {servefit_mb:.1f} MB of it")
        print(
            f"import servefit {timed(python, ['-c', 'import servefit'], bare=['-c', '']) * 1e3:.0f} ms beyond Python's own"
        )
        print(f"servefit --help {timed(python, ['-m', 'servefit', '--help']) * 1e3:.0f} ms")
        if mb > LIMIT_MB:
            faults.append(f"installed size is over {LIMIT_MB} MB")
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


def build(home: Path) -> Path:
    """The wheel of this checkout."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home / "dist")],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return next((home / "dist").glob("*.whl"))


def missing_from(wheel: Path) -> list[str]:
    """Files under src/servefit that git knows and the wheel lacks: data, templates, scripts, stubs."""
    known = subprocess.run(["git", "ls-files", "src/servefit"], cwd=ROOT, check=True, capture_output=True, text=True)
    packed = set(zipfile.ZipFile(wheel).namelist())
    return [p for p in known.stdout.split() if p.removeprefix("src/") not in packed]


def install(home: Path, wheel: Path) -> Path:
    """The interpreter of a fresh environment with the wheel and its locked base dependencies."""
    venv.create(home / "venv", with_pip=True)
    python = home / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "--require-hashes", "-r", str(ROOT / "requirements" / "base.txt")], check=True)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    return python


def sizes(home: Path) -> tuple[float, float]:
    """MB of everything that was installed (pip and setuptools apart, compiled files apart), and of servefit."""
    site = next((home / "venv" / "lib").glob("python*/site-packages"))
    every = [f for f in site.rglob("*") if f.is_file() and f.suffix != ".pyc"]
    ours = [
        f for f in every if not f.relative_to(site).parts[0].startswith(("pip", "setuptools", "_distutils", "pkg_res"))
    ]
    servefit = [f for f in ours if f.relative_to(site).parts[0] == "servefit"]
    return sum(f.stat().st_size for f in ours) / 1e6, sum(f.stat().st_size for f in servefit) / 1e6


def tried(home: Path, python: Path) -> list[str]:
    """What does not work there: the verbs that base dependencies are enough for, on files."""
    work = home / "work"
    work.mkdir()
    (work / "plan.json").write_text(GOLDEN.read_text(encoding="utf-8"), encoding="utf-8")
    simulate = "--device rtx-4090 --model llama-3.1-8b --concurrency 4 -n 40 --isl 256 --osl 32 --out runs/a"
    commands = [
        "--help", "check --no-sweep --no-servers", "devices h100-sxm", "models llama-3.1-8b --on rtx-4090", f"simulate {simulate}",
        "explain runs/a", "explain --ttft 780ms --itl 22ms --isl 6200 --osl 300",
        "plan --model llama-3.1-8b --device rtx-4090 --policy chunked --seats 8,16 --rate 2 -n 60 --isl 256 --osl 32 --ttft-p99 2s --tpot-p99 50ms --seeds 1 --jobs 1 --out mine.json",
        "decide mine.json --decider Ada --assume x --out mine.md --html mine.html", "decide plan.json --decider Ada --assume x --bundle bundle.zip",
        "verify mine.md", "learn cards --json", "learn glossary", "config schema plan", "completion bash",
        "bill cost --isl 6200 --osl 300 --price-in 0.15 --price-out 0.6",
    ]  # fmt: skip
    faults = []
    env = {"PATH": os.environ["PATH"], "HOME": str(work)}
    for line in commands:
        done = subprocess.run([str(python), "-I", "-m", "servefit", *line.split()], cwd=work, env=env, check=False, capture_output=True, text=True)  # fmt: skip
        answered = done.returncode in {0, 5} or (line.startswith("verify") and done.returncode == 4 and done.stdout)
        if not answered or "Traceback" in done.stderr:
            faults.append(f"servefit {line}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    web = subprocess.run([str(python), "-I", "-m", "servefit", "web"], cwd=work, env=env, check=False, capture_output=True, text=True)  # fmt: skip
    if web.returncode != 2 or "servefit[web]" not in web.stderr:
        faults.append(f"servefit web without its extra: exit code {web.returncode}: {web.stderr.strip()[-300:]}")
    print(f"{len(commands) + 1} commands tried with base dependencies only, {len(faults)} faults")
    return faults


def timed(python: Path, args: list[str], *, bare: list[str] | None = None) -> float:
    """Median seconds of 7 calls; less those of `bare` where it is given."""
    took = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([str(python), *args], check=True, capture_output=True)
        took.append(time.perf_counter() - began)
    return statistics.median(took) - (timed(python, bare) if bare else 0.0)


if __name__ == "__main__":
    sys.exit(main())
