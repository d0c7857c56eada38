"""A plan to and from plan.json: floats as they are, so that loading and saving gives the same bytes."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from servefit.errors import ServefitError
from servefit.files import read_json, structure, write_json
from servefit.plan.plan import PLAN_SCHEMA_VERSION, Plan


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values, keys in the order of the dataclasses; an infinite p-norm is the word "inf"."""
    value = asdict(plan)
    for basis in value["bases"]:
        if math.isinf(basis["step"]["p_norm"]):
            basis["step"]["p_norm"] = "inf"
    return value


def plan_from_json(value: Any, *, where: str) -> Plan:
    """The plan in `value`; raises ServefitError where it is none or from a newer servefit."""
    if not isinstance(value, dict) or "schema_version" not in value or "candidates" not in value:
        raise ServefitError(f"{where} is not a plan.", hint="A plan is what `servefit plan --out plan.json` writes.")
    version = value["schema_version"]
    if not isinstance(version, int) or version > PLAN_SCHEMA_VERSION:
        raise ServefitError(
            f"{where} has schema version {version!r}; this servefit reads up to {PLAN_SCHEMA_VERSION}.",
            hint="Update servefit.",
        )
    return structure(_renewed(value) if version == 1 else value, Plan, where=where)


def _renewed(value: dict[str, Any]) -> dict[str, Any]:
    """A plan of version 1 as one of version 2: its what-ifs and trades were at p99, and said so in their fields' names."""

    def renamed(row: Any) -> Any:
        if not isinstance(row, dict):
            return row  # said by `structure`
        return {k.replace("_p99_s", "_s"): v for k, v in row.items()} | {"p": 99}

    lists = {k: [renamed(r) for r in value[k]] for k in ("what_ifs", "seat_trades") if isinstance(value.get(k), list)}
    return {**value, **lists, "schema_version": 2}


def save_plan(plan: Plan, path: Path | str) -> None:
    """Write plan.json whole or not at all."""
    write_json(Path(path), plan_to_json(plan))


def load_plan(path: Path | str) -> Plan:
    """The plan in the file, or in the folder's plan.json. Raises ServefitError where there is none."""
    path = Path(path)
    path = path / "plan.json" if path.is_dir() else path
    return plan_from_json(read_json(path), where=str(path))
