"""`servefit check`, run as people run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
pytestmark = pytest.mark.slow


def check(*words, cwd=None):
    """The finished command."""
    env = {**os.environ, "PYTHONPATH": str(SRC), "COLUMNS": "120"}
    return subprocess.run([sys.executable, "-m", "servefit", "check", *words], check=False, capture_output=True, text=True,
                          env=env, cwd=cwd)  # fmt: skip


def test_this_machine(tmp_path):
    """C13: it leads with memory and bandwidth, says the kernel, works with no server, and cores are in no verdict."""
    done = check(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("memory ") and "GiB" in lines[0] and "GB" in lines[0]
    assert lines[1].startswith("bandwidth ") and "strnlen" in lines[2]
    assert "\nserver " in done.stdout and "never called unasked" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("next: servefit ")
    verdict = [line for line in lines if line.startswith(("biggest", "budget"))]
    assert verdict and not any("core" in line for line in verdict)


def test_json_is_one_object(tmp_path):
    """Everything is there for programs, with what follows from it."""
    found = json.loads(check("--json", cwd=tmp_path).stdout)
    place = found["places"][-1]
    assert place["kind"] == "cpu" and place["budget_bytes"] == pytest.approx(0.7 * place["memory_bytes"], abs=1)
    assert found["sweep"]["bytes_per_s"] == place["bandwidth_bytes_per_s"]
    assert found["machine"]["load"]["window_s"] > 0
    row = place["fits"][0]
    assert row["tpot_floor_s"] == pytest.approx(1 / row["ceiling_tok_per_s"])
    assert {s["state"] for s in found["servers"] if s["software"] == "hosted"} <= {"key set", "no key"}


def test_typed_machine_answers_both_questions(tmp_path):
    """C1 to C4, C9, C15 as printed, from a machine that was typed in."""
    out = check("--memory", "36GB", "--bandwidth", "273GB/s", cwd=tmp_path).stdout
    assert "budget     25.2 GB" in out and "70% of the memory (assumed" in out
    assert "about a 40B dense model at 4.9 bits a weight (0.61 GB a billion): 24.5 GB, typing at most 11.2 tok/s" in out
    assert "(rounded down: 41.2 billion weights fit)" in out
    assert "room left 0.7 GB" in out and "tokens of 128 KiB" in out
    assert "55.6" in out, "273 GB/s over the 4.913 GB that the catalogue's 8B takes; over 4.9 GB it is 55.7"
    assert "llama-3.1-8b is 4.9 GB, not the 4.0" in out


def test_box_size_is_said_in_both_units(tmp_path):
    """C7, C8: a 36 GB box is 38.7 GB, and both budgets are said."""
    out = check("--device", "m4-max-36gb", cwd=tmp_path).stdout
    assert "38.7 GB (36.0 GiB)" in out
    assert "25.2 GB, as 2^30 it is 27.1 GB" in out


def test_ambiguous_chip_shows_every_variant(tmp_path):
    """C12: both bandwidths stand in the table, with the memory sizes that tell them apart."""
    out = check("--device", "m4 max", cwd=tmp_path).stdout
    assert "410 GB/s" in out and "546 GB/s" in out and "36.0 GiB" in out and "48.0 GiB" in out


def test_a_model_that_does_not_fit_is_a_no(tmp_path):
    """Asked for a model, the answer is the exit code: 0 where it fits, 5 where not, 2 for a name that nobody knows."""
    assert check("--device", "l4", "--model", "llama-3.1-8b", cwd=tmp_path).returncode == 0
    done = check("--device", "l4", "--model", "llama-3.1-70b", cwd=tmp_path)
    assert done.returncode == 5
    assert done.stderr.startswith("servefit: llama-3.1-70b does not fit: its weights take 43.17 GB")
    unknown = check("--device", "l4", "--model", "llama-3.1-8", cwd=tmp_path)
    assert unknown.returncode == 2 and "llama-3.1-8b" in unknown.stderr
    assert check("--memory", "36GB", cwd=tmp_path).returncode == 2
    assert check("--memory", "0", "--bandwidth", "1", cwd=tmp_path).returncode == 2
