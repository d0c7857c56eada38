"""The whiteboard: worked examples with the numbers as inputs, and the sentences to say out loud."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from servefit.expressions import evaluate
from servefit.files import structure
from servefit.learn.numbers import FUNCTIONS, tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One input of an example."""

    name: str
    label: str
    value: float
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: what it computes (a name for later steps) and the line that shows it."""

    text: str
    name: str = ""
    value: str = ""
    """An expression over the inputs and the names of earlier steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A question worked through by hand, with inputs that a reader can change."""

    id: str
    title: str
    question: str
    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    answer: str
    picture: str
    careful: str
    source: str
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """An example with its steps computed."""

    example: Example
    steps: tuple[str, ...]
    answer: str
    careful: str
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A part of what is said, and what it means."""

    said: str
    means: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying:
    """A question to answer out loud in `seconds_s`, one clear answer, and its meaning phrase by phrase."""

    id: str
    question: str
    answer: str
    phrases: tuple[Phrase, ...]
    seconds_s: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Examples:
    example: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sayings:
    saying: tuple[Saying, ...]


@cache
def all_examples() -> tuple[Example, ...]:
    """Every worked example."""
    text = (files("servefit.learn") / "data" / "examples.toml").read_text(encoding="utf-8")
    return structure(tomllib.loads(text), _Examples, where="examples.toml").example


@cache
def all_sayings() -> tuple[Saying, ...]:
    """Every question to answer out loud."""
    text = (files("servefit.learn") / "data" / "sayings.toml").read_text(encoding="utf-8")
    return structure(tomllib.loads(text), _Sayings, where="sayings.toml").saying


def work(example: Example, inputs: Mapping[str, float] | None = None) -> Worked:
    """The example's steps computed with `inputs` in place of its own where given. Raises ServefitError."""
    values = {g.name: g.value for g in example.given} | dict(inputs or {})
    lines = []
    for step in example.steps:
        if step.name:
            values[step.name] = float(evaluate(step.value, values, FUNCTIONS, where=example.id))
        lines.append(tell(step.text, {}, values, where=example.id).text)
    answer = tell(example.answer, {}, values, where=example.id).text
    careful = tell(example.careful, {}, values, where=example.id).text
    return Worked(example=example, steps=tuple(lines), answer=answer, careful=careful, values=values)
