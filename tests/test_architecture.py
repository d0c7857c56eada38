"""The house keeps its shape: imports point toward the facts, modules and functions stay readable."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "servefit").rglob("*.py"))


def test_layers_hold():
    """import-linter finds no arrow that points away from the facts, and no module outside the layers."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        check=False, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_sizes_are_steered():
    """No module passes 600 lines and no function 90: the sizes to steer by are 400 and 50."""
    too_big = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 600:
            too_big.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno > 90:
                too_big.append(
                    f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno} lines"
                )
    assert not too_big, "\n".join(too_big)


def test_nothing_is_there_that_nobody_calls():
    """Every function and class of a module is named somewhere else in the product; what only a test calls is no product."""
    read = [*SOURCES, *(ROOT / "bench").glob("*.py"), *(ROOT / "src" / "servefit").glob("*.pyi")]
    words = Counter(re.findall(r"\w+", "\n".join(p.read_text(encoding="utf-8") for p in read)))
    uncalled = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.decorator_list  # a command, a pytest fixture, a rule: whoever decorates it calls it
        and not node.name.startswith("__")
        and words[node.name] == 1
    ]
    assert not uncalled, "\n".join(uncalled)


def test_every_module_says_what_it_is():
    """Each module opens with a docstring: the line in the tree."""
    silent = [
        str(p.relative_to(ROOT))
        for p in SOURCES
        if p.name != "__init__.py" and not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))
    ]
    assert not silent
