"""The main job, from the first command to the last, on the real engine: what a newcomer sees is what the README shows."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from servefit.files import read_json
from servefit.plan.files import load_plan
from servefit.plan.plan import Plan
from servefit.records import load_run

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """One tour: its folder and everything that it printed."""
    folder = tmp_path_factory.mktemp("newcomer") / "tour"
    done = subprocess.run(
        [sys.executable, "-m", "servefit", "tour", "--out", str(folder)],
        check=False, capture_output=True, text=True, timeout=900, env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "COLUMNS": "110"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder, done.stdout


def verify(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`servefit verify` in that folder."""
    command = [sys.executable, "-m", "servefit", "verify", "decision.md", *args]
    return subprocess.run(
        command,
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )


def shape(line: str) -> str:
    """A line with its numbers, their units and its verdicts taken out: what stays the same from machine to machine."""
    line = re.sub(r"[+-]?\d[\d,.]*(e-?\d+)?", "#", line)
    line = re.sub(r"# ?(ms|s|µs|min)\b", "#", line)
    line = re.sub(r"\b(none|static|continuous|chunked)\b", "POLICY", line)
    line = re.sub(
        r"\b(valid|suspect|pass|fail|too close to call|confirmed|OVERTURNED|proposed|overturned)\b", "VERDICT", line
    )
    # whether the read sweep saw a cache, and its end, depends on the machine and the moment
    line = re.sub(r", # GB/s from the cache|, past the reported last cache level of # MiB", "", line)
    line = re.sub(r"^(this-machine|raspberry-pi# never passes|\$ servefit decide plan.json)\b.*", r"\1", line)
    return re.sub(r"[─\s]+", " ", line).strip()


def without_rows_of(verbs: tuple[str, ...], lines: list[str]) -> list[str]:
    """The transcript's lines less what these verbs print; their own command lines stay."""
    kept, verb = [], ""
    for line in lines:
        command = line.startswith("$ servefit")
        verb = line.split()[2] if command else verb
        if command or verb not in verbs:
            kept.append(line)
    return kept


def never(plan: Plan, device: str) -> bool:
    """Whether every setting of the device surely fails."""
    verdicts = {c.verdict for c in plan.candidates if c.device == device}
    assert verdicts, f"{device} was not planned for"
    return verdicts == {"fail"}


def test_the_readme_shows_the_tour_that_runs(tour):
    """Every line of the README's transcript stands in the real output, numbers apart, in the same order.

    Where nothing clearly passes on this machine, `plan` and `decide` print other rows: of those two the commands alone are compared.
    The targets go by what this machine does, and a slow one leaves room for the Raspberry Pi.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    transcript = re.search(r"```console\n(.*?)```", text, re.DOTALL).group(1)
    shown = [shape(line) for line in transcript.splitlines() if line.strip() and line.strip() != "..."]
    assert len(shown) >= 20
    plan = load_plan(tour[0] / "plan.json")
    pick = plan.recommended
    if not never(plan, "raspberry-pi-4"):
        shown.remove("raspberry-pi# never passes")
    if pick is None or not pick.id.startswith("this-machine"):
        shown = without_rows_of(("plan", "decide"), shown)
    printed = iter([shape(line) for line in tour[1].splitlines()])
    for line in shown:
        assert any(real.startswith(line) for real in printed), (
            f"not printed by the tour, or not in this order: {line!r}"
        )


def test_the_decision_is_one_configuration_with_four_checks(tour):
    """What "done" looks like: four checks with margins, both edges with the target that sets each, the CPU that never passes."""
    folder, _ = tour
    plan = load_plan(folder / "plan.json")
    text = (folder / "decision.md").read_text(encoding="utf-8")
    chosen = re.search(r'candidate: "(.+?)"', text).group(1)
    candidate = next(c for c in plan.candidates if c.id == chosen)
    assert candidate.device == "this-machine" and plan.basis(candidate.basis).source == "measured"
    assert {c.name for c in candidate.checks} == {"ttft", "tpot", "memory", "goodput"}
    assert all(c.value is not None for c in candidate.checks)
    assert (
        text.index("## Decision")
        < text.index("## Evidence")
        < text.index("## Assumptions")
        < text.index("## Trade-offs")
        < text.index("## What would change it")
    )
    assert not never(plan, "raspberry-pi-4") or ("raspberry-pi-4" in text and "never" in text)
    assert "made up for the tour" in text
    assert "What extra seats cost and buy" in text


def test_the_real_run_decides_whether_it_stands(tour):
    """The chosen policy and seats ran on the real engine, and the file records confirmed or overturned with the run's hash."""
    folder, printed = tour
    run = load_run(folder / "runs" / "final")
    assert run.header.kind == "measured" and len(run.load_rows) == load_plan(folder / "plan.json").spec.workload.n in (
        48,
        64,
        80,
        96,
    )
    assert all(r.ok for r in run.load_rows)
    text = (folder / "decision.md").read_text(encoding="utf-8")
    assert re.search(r"result: (confirmed|overturned)", text)
    assert "measured - predicted" in printed


def test_every_number_holds_wherever_the_folder_goes(tour, tmp_path):
    """Moved as a whole, it verifies; with one byte of a run changed, it does not; a changed number is found."""
    moved = tmp_path / "elsewhere"
    shutil.copytree(tour[0], moved)
    done = verify(moved)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    assert "it holds" in done.stdout
    path = moved / "decision.md"
    text = path.read_text(encoding="utf-8")
    seats = re.search(r"batch limit of (\d+)<!--seats-->", text).group(1)
    path.write_text(
        text.replace(f"batch limit of {seats}<!--seats-->", f"batch limit of {int(seats) + 1}<!--seats-->"),
        encoding="utf-8",
    )
    assert verify(moved).returncode == 4
    path.write_text(text, encoding="utf-8")
    calibration = moved / "calibration.json"
    calibration.write_bytes(calibration.read_bytes().replace(b"0", b"1", 1))
    assert verify(moved).returncode == 4


def test_the_tour_leaves_what_the_page_reads(tour):
    """check.json, a question, an answer and a report that asks nobody."""
    folder, _ = tour
    assert read_json(folder / "check.json")["machine"]["memory_bytes"] > 2**30
    assert json.loads((folder / "calibration.json").read_text())["runs"]
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert (
        "<title>" in report
        and 'src="http' not in report
        and 'href="http' not in report.split("</style>")[-1][:200000].split("<script")[0]
    )
