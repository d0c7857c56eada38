"""`import servefit`: small, typed, fast to import; and the notebook in the docs runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import servefit
from servefit import api

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden" / "plan-small.json"


def test_every_name_is_there():
    """Each promised name is the one in servefit.api, and asking for another is an AttributeError."""
    for name in set(servefit.__all__) - {"__version__"}:
        assert getattr(servefit, name) is getattr(api, name)
    assert set(servefit.__all__) <= set(dir(servefit))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        servefit.nothing  # noqa: B018


def test_import_is_light():
    """`import servefit` alone brings in none of what the names need."""
    heavy = "cattrs click rich numpy servefit.api asyncio"
    code = f"import sys, servefit; sys.exit(','.join(m for m in '{heavy}'.split() if m in sys.modules) or 0)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src")}
    )
    assert done.returncode == 0, done.stderr


def test_no_name_hides_a_package():
    """A name of the API that is also a package of servefit would be one or the other, depending on what was imported."""
    packages = {p.name for p in (ROOT / "src" / "servefit").iterdir() if p.is_dir()}
    assert not packages & set(servefit.__all__)


def test_decision_from_python(tmp_path):
    """A decision written from Python is the one that the command line writes, and it verifies."""
    plan = tmp_path / "plan.json"
    plan.write_text(GOLDEN.read_text(encoding="utf-8"), encoding="utf-8")
    own = ("Half of the users write in bursts.",)
    servefit.write_decision(plan, tmp_path / "decision.md", deciders=["Ada"], assume=own)
    report = servefit.verify(tmp_path / "decision.md")
    assert report.checked > 50
    assert [f.code for f in report.findings if f.level == "error"] in ([], ["SOURCE"])
    assert "Half of the users" in (tmp_path / "decision.md").read_text(encoding="utf-8")


def test_a_plan_in_memory_is_one_sentence(tmp_path):
    """A decision is bound to a file: a Plan object is told to be saved first."""
    with pytest.raises(servefit.api.ServefitError, match="a plan in memory") as caught:
        servefit.write_decision(servefit.load_plan(GOLDEN), tmp_path / "decision.md")
    assert "save_plan" in caught.value.hint


def test_notebook_runs(tmp_path, monkeypatch, capsys):
    """The code cells of docs/notebook.ipynb run in order, and what they print is what stands in the notebook."""
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    ran = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        capsys.readouterr()
        exec(compile("".join(cell["source"]), "notebook", "exec"), space)
        shown = "".join(line for out in cell["outputs"] for line in out["text"])
        assert capsys.readouterr().out == shown
        ran += 1
    assert ran >= 4


def test_stub_agrees():
    """What can be imported is what servefit.api lists, and the stub that type checkers read has its names from there."""
    stub = (ROOT / "src" / "servefit" / "__init__.pyi").read_text(encoding="utf-8")
    assert "from servefit.api import *" in stub and " as " not in stub
    assert {*api.__all__, "__version__"} == set(servefit.__all__)


def test_a_path_may_be_a_string(tmp_path):
    """Each function that takes a path takes its text as well."""
    plan, home = str(tmp_path / "plan.json"), str(tmp_path)
    servefit.save_plan(servefit.load_plan(str(GOLDEN)), plan)
    servefit.save_run(
        servefit.simulate(servefit.Workload(n=3, concurrency=1), model="llama-3.1-8b", device="rtx-4090"),
        f"{home}/run",
    )
    assert len(servefit.load_run(f"{home}/run").rows) == 3
    servefit.write_decision(plan, f"{home}/decision.md", deciders=["Ada"], assume=["Half of it is chat."])
    assert servefit.verify(home).checked > 50
