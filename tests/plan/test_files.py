"""plan.json goes out and comes back."""

import json
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.plan.files import load_plan, save_plan

GOLDEN = Path(__file__).parent.parent / "golden" / "plan-small.json"


def test_a_plan_comes_back_to_the_byte(tmp_path):
    """Loading and saving the golden plan gives the same file."""
    save_plan(load_plan(GOLDEN), tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_bytes() == GOLDEN.read_bytes()


def test_a_newer_or_foreign_file_is_one_sentence(tmp_path):
    """A plan from a newer servefit, and a JSON file that is no plan, are refused with a hint."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"schema_version": 99, "candidates": []}))
    with pytest.raises(ServefitError, match="schema version 99"):
        load_plan(path)
    path.write_text("[1]")
    with pytest.raises(ServefitError, match="is not a plan"):
        load_plan(path)


def test_a_plan_of_version_1_is_read(tmp_path):
    """Its what-ifs and trades were at p99 and said so in their fields' names; it is the same plan, written as version 2."""
    value = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert value["what_ifs"] and value["seat_trades"]
    for row in (*value["what_ifs"], *value["seat_trades"]):
        assert row.pop("p") == 99
        row["ttft_p99_s"], row["tpot_p99_s"] = row.pop("ttft_s"), row.pop("tpot_s")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**value, "schema_version": 1}), encoding="utf-8")
    assert load_plan(path) == load_plan(GOLDEN)
    path.write_text(json.dumps({**value, "schema_version": 1, "what_ifs": [1]}), encoding="utf-8")
    with pytest.raises(ServefitError, match="what_ifs"):
        load_plan(path)
