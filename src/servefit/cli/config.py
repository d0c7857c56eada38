"""`servefit config show | schema`: what is set, and where it comes from."""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click

from servefit import settings as s
from servefit.cli.show import emit_json, plain, table
from servefit.errors import ServefitError
from servefit.settings import SCHEMA_URL, Settings, Target
from servefit.workload.workload import Workload


@click.group()
def command() -> None:
    """What is set, and where it comes from: flag > environment > servefit.toml > default."""


@command.command()
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option("--file", "path", type=click.Path(path_type=Path), help="Another servefit.toml.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def show(*, origin: bool, path: Path | None, as_json: bool) -> None:
    """Every setting with its value."""
    settings = s.load_settings(path=path)
    if as_json:
        values = {p: {"value": s.value_of(settings, p), "origin": settings.origins[p]} for p in s.scalar_paths()}
        emit_json({"file": settings.file, "settings": values, "targets": dict(settings.targets),
                   "workloads": dict(settings.workloads)})  # fmt: skip
        return
    headers = ["setting", "value", *(["from", "environment variable"] if origin else [])]
    rows = []
    for name in s.scalar_paths():
        value = s.value_of(settings, name)
        rows.append([name, "-" if value is None else str(value), *([settings.origins[name], s.env_name(name)] if origin else [])])  # fmt: skip
    table(headers, rows)
    for name, target in settings.targets.items():
        click.echo(f"target {name}: {target.url}{' (paid)' if target.paid else ''}")
    for name, workload in settings.workloads.items():
        click.echo(f"workload {name}: {workload.n} requests, {workload.isl.mean} in, {workload.osl.mean} out")
    for sentence in s.unknown_variables():
        click.echo(sentence, err=True)
    click.echo(f"file: {settings.file or 'none found (servefit.toml here or above)'}")
    click.echo("next: servefit config show --origin" if not origin else "next: servefit check")


@command.command()
@click.argument("name", required=False)
def schema(*, name: str | None) -> None:
    """The JSON Schema of servefit.toml, for editors; with NAME that of a verb's --json: plan, bill-cost, learn-cards ..."""
    emit_json(json_schema() if name is None else output_schema(name))


def output_schema(name: str) -> dict[str, Any]:
    """The published JSON Schema of what `servefit NAME --json` prints (`bill-cost` for `servefit bill cost`)."""
    names = sorted(entry.name.removesuffix(".json") for entry in (files("servefit") / "schemas").iterdir())
    if name not in names:
        raise ServefitError(f"There is no schema '{plain(name)}'.", hint=f"There are {', '.join(names)}.")
    read: dict[str, Any] = json.loads((files("servefit") / "schemas" / f"{name}.json").read_text(encoding="utf-8"))
    return read


def json_schema() -> dict[str, Any]:
    """The JSON Schema of servefit.toml, made from the types that read it."""
    top = _object(Settings, leave_out=("origins", "file"))
    properties = top["properties"]
    properties["targets"] = {"type": "object", "additionalProperties": _object(Target, leave_out=("name", "origin"))}
    properties["workloads"] = {"type": "object", "additionalProperties": _object(Workload)}
    properties["objectives"] = _object(s.Objectives, times=True)
    properties["caps"] = _object(s.Caps, times=True)
    properties["$schema"] = {"type": "string"}
    return {"$schema": SCHEMA_URL, "title": "servefit.toml", **top}


def _object(kind: type, *, leave_out: tuple[str, ...] = (), times: bool = False) -> dict[str, Any]:
    hints = get_type_hints(kind)
    assert is_dataclass(kind), "settings are dataclasses"
    properties: dict[str, Any] = {}
    for f in fields(kind):
        if f.name in leave_out:
            continue
        properties[f.name] = _type(hints[f.name])
        if f.name in ("isl", "osl"):
            properties[f.name] = {"anyOf": [{"type": "integer", "minimum": 1}, properties[f.name]]}
        if times and f.name.endswith("_s") and not f.name.endswith("per_s"):
            properties[f.name.removesuffix("_s")] = {
                "type": ["number", "string"],
                "description": 'seconds, or "500 ms"',
            }
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING and f.name not in leave_out]  # fmt: skip
    return {"type": "object", "properties": properties, "additionalProperties": False, **({"required": required} if required else {})}  # fmt: skip


def _type(hint: Any) -> dict[str, Any]:
    args = get_args(hint)
    if get_origin(hint) in (typing.Union, types.UnionType):
        return _type(next(a for a in args if a is not type(None)))
    if get_origin(hint) is typing.Literal:
        return {"enum": list(args)}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _type(args[0])}
    if get_origin(hint) is Mapping:
        return {"type": "object"}
    if is_dataclass(hint):
        return _object(typing.cast("type", hint))
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[hint]}
