"""What people and machines see: tables, progress, JSON. Every figure is formatted here and in units, nowhere else."""

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click

from servefit import __version__
from servefit.errors import ServefitError
from servefit.units import parse_number


def plain(text: str) -> str:
    """`text` with control characters escaped: model output and file names are never trusted with the terminal."""
    return "".join(c if c == "\n" or (c.isprintable() and c != "\x1b") else repr(c)[1:-1] for c in text)


def emit_json(value: Any) -> None:
    """One JSON object on stdout; NaN and infinity become null, dataclasses their fields."""
    text = json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False)
    click.echo(
        text.encode("utf-8", "replace").decode("utf-8")
    )  # a server or a file name can hold half a surrogate pair


def jsonable(value: Any) -> Any:
    """`value` as plain JSON types."""
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, dict):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and (not math.isfinite(value)):
        return None
    return value


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    right: Sequence[int] = (),
    tight: bool = False,
) -> None:
    """A table for people; the columns named in `right` are figures and end at the same edge; `tight`: less air."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    padding = (0, 1, 0, 0) if tight else (0, 1)
    grid = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, show_edge=not tight, padding=padding
    )  # fmt: skip
    for index, header in enumerate(headers):
        grid.add_column(header, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_escape(plain(cell)) for cell in row))
    console = Console(
        width=None if sys.stdout.isatty() else 110, highlight=False, no_color="NO_COLOR" in os.environ or None
    )
    console.print(grid)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def status_lines() -> list[str]:
    """Three lines of status: what this is, what lies here, what to do next."""
    here = Path.cwd()
    runs = sorted({p.parent.name for p in [*here.glob("*/run.json"), *here.glob("runs/*/run.json")]})
    decisions = sorted(p.name for p in here.glob("**/decision.md") if len(p.relative_to(here).parts) <= 2)
    found = ", ".join(
        filter(None, [f"{len(runs)} runs" if runs else "", f"{len(decisions)} decisions" if decisions else ""])
    )
    return [
        f"servefit {__version__}: which device, batching policy and batch limit for your LLM traffic, and how sure.",
        f"here: {found or 'no runs, no decisions yet'} ({here})",
        "next: servefit tour (the whole loop, offline), servefit check (this machine), servefit --help",
    ]


def share(text: str, flag: str) -> float:
    """A share from 0 to 1 that a flag gives, written 20% or 0.2."""
    number, unit = parse_number(text)
    value = float(number) / (100 if unit == "%" else 1)
    if unit not in ("", "%") or not 0 <= value <= 1:
        raise ServefitError(f"{flag} {text} is no share.", hint="Write 20% or 0.2.")
    return value
