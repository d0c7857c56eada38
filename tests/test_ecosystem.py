"""The GitHub Action, the pre-commit hook and the container file do what they say, as far as that can be tried here."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from servefit import write_decision

ROOT = Path(__file__).parent.parent


@pytest.fixture
def repo(tmp_path):
    """A folder with two decisions, one of which was edited, and a `servefit` on the path."""
    for name in ("good", "bad"):
        home = tmp_path / "decisions" / name
        home.mkdir(parents=True)
        shutil.copy(ROOT / "tests" / "golden" / "plan-small.json", home / "plan.json")
        write_decision(home / "plan.json", home / "decision.md", deciders=["Ada"], assume=["Half of it is chat."])
    bad = tmp_path / "decisions" / "bad" / "decision.md"
    text = bad.read_text(encoding="utf-8")
    edited = re.sub(r"(\d+)<!--seats-->", "999<!--seats-->", text, count=1)
    assert edited != text
    bad.write_text(edited, encoding="utf-8")
    program = tmp_path / "bin" / "servefit"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT / "src"} exec {sys.executable} -m servefit "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return tmp_path


def _bash(script: str, repo: Path, **env: str) -> subprocess.CompletedProcess:
    path = f"{repo / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--norc", "-eo", "pipefail", "-c", script],
        cwd=repo, check=False, capture_output=True, text=True, env={"PATH": path, **env},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_action_verifies(repo):
    """The Action's own script, run as GitHub runs it: annotations and exit code 4 for the edited one, 0 for the other."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    script = action["runs"]["steps"][-1]["run"]
    bad = _bash(script, repo, DECISIONS="decisions/*/decision.md", RERUN="false")
    assert bad.returncode == 4, bad.stderr
    assert re.search(r"^::error file=decisions/bad/decision.md,line=\d+,title=STALE", bad.stdout, re.MULTILINE)
    assert _bash(script, repo, DECISIONS="decisions/good/decision.md", RERUN="false").returncode == 0
    none = _bash(script, repo, DECISIONS="nothing/*.md", RERUN="false")
    assert (none.returncode, "no decision matches" in none.stdout) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_hook_verifies(repo):
    """The hook's entry, given the files that its pattern picks, refuses the edited decision and no other file."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    names = [str(p.relative_to(repo)) for p in sorted(repo.rglob("*.*"))]
    picked = [n for n in names if re.search(hook["files"], n)]
    assert picked == ["decisions/bad/decision.md", "decisions/good/decision.md"]
    done = _bash(f"{hook['entry']} {' '.join(picked)}", repo)
    assert done.returncode == 4
    assert "STALE" in done.stdout
    assert _bash(f"{hook['entry']} {picked[1]}", repo).returncode == 0


def test_container_file_copies_what_is_there():
    """Each file that the Containerfile copies or installs from exists."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split())
    assert all((ROOT / name).exists() for name in re.findall(r"-r (\S+)", text))
