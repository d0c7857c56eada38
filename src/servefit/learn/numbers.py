"""The learner's own numbers: from runs and checks where there are any, typed by hand where wanted, else examples.

Every figure that a card or an example prints is computed from these, and says which of the three it stands on.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from servefit.errors import ServefitError
from servefit.expressions import evaluate, names_in
from servefit.files import read_json, structure
from servefit.objectives import summarize
from servefit.records import RunHeader, load_run
from servefit.units import fmt, parse_number

Origin = Literal["example", "run", "check", "typed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One number a learner can have: what it means (a line for `tell`), its unit, and an example with its source."""

    name: str
    title: str
    meaning: str
    unit: str
    example: float | None = None
    source: str = ""
    step: str = ""
    places: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A field's value and where it came from; `origin` "run" and "check" carry the path in `link`."""

    field: Field
    value: float | None
    origin: Origin
    link: str = ""

    @property
    def said(self) -> str:
        """As in 145 ms (runs/short), 36 GB (example), 22.4 ms (typed by you); "-" where there is nothing."""
        if self.value is None:
            return "-"
        whence = {"example": "example", "run": self.link, "check": self.link, "typed": "typed by you"}[self.origin]
        return f"{fmt(self.value, self.field.places)} {self.field.unit} ({whence})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    field: tuple[Field, ...]


@cache
def all_fields() -> tuple[Field, ...]:
    """Every field, in the order of the day's page."""
    text = (files("servefit.learn") / "data" / "numbers.toml").read_text(encoding="utf-8")
    return structure(tomllib.loads(text), _File, where="numbers.toml").field


def typed_value(field: Field, text: str) -> float:
    """What a person typed for `field`, in the field's unit: "4,210", "4.21 s" and "4210 ms" are the same TTFT.

    Raises ServefitError with the text in it.
    """
    from servefit.units import parse_bytes, parse_seconds

    number, unit = parse_number(text)
    if not unit or unit == field.unit:
        value = float(number)
    elif field.unit == "ms":
        value = parse_seconds(text) * 1e3
    elif field.unit == "GB":
        value = parse_bytes(text) / 1e9
    elif field.unit == "GB/s" and unit.lower().endswith("/s"):
        value = parse_bytes(f"{number} {unit[:-2]}") / 1e9
    else:
        raise ServefitError(f"'{text}' is not in {field.unit}.", hint=f"Write it as 4,210 or 4,210 {field.unit}.")
    if value <= 0:
        raise ServefitError(f"'{text}' is not above zero.", hint=f"{field.title} is a positive number of {field.unit}.")
    return value


def collect(folder: Path, *, typed: Mapping[str, float] | None = None) -> dict[str, Number]:
    """Every field's number: typed where typed, else from the newest fitting run or check below `folder`, else its example.

    A short prompt is below 100 tokens, a long one 1,000 or more; a damaged run is passed over (the page shows it as such).
    """
    found: dict[str, tuple[float | None, Origin, str]] = {}
    for path, told in _runs(folder):
        found.update({name: (number, "run", path) for name, number in told.items()})
    found.update({name: (number, "check", "check.json") for name, number in _check(folder / "check.json").items()})
    for name, number in (typed or {}).items():
        found[name] = (number, "typed", "")
    out: dict[str, Number] = {}
    for field in all_fields():
        value, origin, link = found.get(field.name) or (field.example, "example", "")
        out[field.name] = Number(field=field, value=value, origin=origin, link=link)
    return _with_ceiling(out)


def _with_ceiling(numbers: dict[str, Number]) -> dict[str, Number]:
    """The ceiling follows bandwidth and model size, wherever those came from, unless it was typed."""
    bandwidth, weights, ceiling = (numbers[name] for name in ("bandwidth_gb_per_s", "weights_gb", "ceiling_tok_per_s"))
    if ceiling.origin == "typed" or not bandwidth.value or not weights.value:
        return numbers
    base = bandwidth if bandwidth.origin != "example" else weights
    computed = Number(field=ceiling.field, value=bandwidth.value / weights.value, origin=base.origin, link=base.link)
    return {**numbers, "ceiling_tok_per_s": computed}


def _runs(folder: Path) -> list[tuple[str, dict[str, float]]]:
    """What each measured run below `folder` tells, oldest first, so that the newest wins."""
    headers = sorted(
        [*folder.glob("*/run.json"), *folder.glob("*/*/run.json")], key=lambda p: (p.stat().st_mtime, str(p))
    )
    found = ((str(h.parent.relative_to(folder)), _told(h.parent, _stamp(h.parent))) for h in headers)
    return [(name, values) for name, values in found if values]


def _stamp(run: Path) -> tuple[tuple[int, int], ...]:
    """What changes when the run does."""
    stats = [p.stat() for p in (run / "run.json", run / "requests.jsonl") if p.exists()]
    return tuple((s.st_mtime_ns, s.st_size) for s in stats)


@lru_cache(maxsize=4096)
def _told(folder: Path, stamp: tuple[tuple[int, int], ...]) -> dict[str, float]:  # noqa: ARG001
    """What one run tells; read again only when its stamp changes. Nothing where it is damaged or simulated."""
    try:
        run = load_run(folder)
        if run.header.kind != "measured":
            return {}
        s = summarize(run)
    except (ServefitError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError):
        return {}
    shape = [r.isl for r in run.load_rows if r.ok and r.isl]
    values: dict[str, float] = {}
    if shape and s.ttft_s.p50 is not None and s.ttft_s.p95 is not None:
        if is_hosted(run.header):
            return {"hosted_ttft_ms": s.ttft_s.p50 * 1e3} if s.ttft_s.p50 > 0 else {}
        length = sorted(shape)[len(shape) // 2]
        if length < 100:
            values |= {"ttft_short_ms": s.ttft_s.p50 * 1e3, "ttft_short_p95_ms": s.ttft_s.p95 * 1e3}
            values |= {"itl_ms": s.itl_s.p50 * 1e3} if s.itl_s.p50 is not None else {}
        elif length >= 1000:
            values |= {"ttft_long_ms": s.ttft_s.p50 * 1e3, "isl_long_tok": float(length)}
            values |= {"itl_long_ms": s.itl_s.p50 * 1e3} if s.itl_s.p50 is not None else {}
    return {name: value for name, value in values.items() if value > 0}


def is_hosted(header: RunHeader) -> bool:
    """Whether the server that was measured stood elsewhere than on this machine."""
    try:
        host = urlsplit(str(header.endpoint.get("url", ""))).hostname or ""
    except ValueError:
        return True
    return header.kind == "measured" and host not in ("localhost", "::1", "") and not host.startswith("127.")


def _check(path: Path) -> dict[str, float]:
    """Memory and bandwidth from a saved `check --json`; empty where there is none or it is damaged."""
    try:
        value = read_json(path)
    except ServefitError:
        return {}
    if not isinstance(value, dict):
        return {}
    machine, places = value.get("machine"), value.get("places")
    place = places[0] if isinstance(places, list) and places and isinstance(places[0], dict) else {}
    found = {
        "memory_gb": machine.get("memory_bytes") if isinstance(machine, dict) else place.get("memory_bytes"),
        "bandwidth_gb_per_s": place.get("bandwidth_bytes_per_s"),
    }
    return {k: float(v) / 1e9 for k, v in found.items() if isinstance(v, int | float) and v > 0}


# --- text with numbers in it ----------------------------------------------------------------------------------------

_HOLE = re.compile(r"\{([^{}]+)\}")
FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "abs": abs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A line with its numbers filled in, and which of them are the learner's own."""

    text: str
    examples: tuple[str, ...]
    """Titles of the fields that stand at their example value."""
    own: tuple[str, ...]


def tell(line: str, values: Mapping[str, Number], extra: Mapping[str, float] | None = None, *, where: str = "") -> Told:
    """`line` with each {expression|places} computed; {expression|s} and the like are not needed: units stand in the text.

    >>> tell("0.7 x {memory_gb|0} GB = {0.7 * memory_gb|1} GB", collect(Path("/nonexistent"))).text
    '0.7 x 36 GB = 25.2 GB'
    """
    known = {name: n.value for name, n in values.items() if n.value is not None} | dict(extra or {})
    used: list[str] = []

    def fill(match: re.Match[str]) -> str:
        text, _, places = match.group(1).partition("|")
        if places and not places.isdecimal():
            raise ServefitError(f"{where}: '{places}' is no number of decimals.", hint="Write {expression|2}.")
        used.extend(names_in(text))
        return fmt(float(evaluate(text, known, FUNCTIONS, where=where)), int(places or 0))

    told = _HOLE.sub(fill, line)
    fields = [values[name] for name in dict.fromkeys(used) if name in values]
    return Told(
        text=told,
        examples=tuple(n.field.title for n in fields if n.origin == "example"),
        own=tuple(n.said for n in fields if n.origin != "example"),
    )
