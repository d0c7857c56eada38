"""The drill: cards over the whole field, from data files with a schema, to which a learner can add a deck.

A card's numbers are expressions, computed from the learner's own runs; see `numbers.tell`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from servefit.errors import ServefitError
from servefit.files import read_text, real, structure
from servefit.learn.glossary import find_term
from servefit.learn.numbers import Number, collect, tell

TOPICS = {
    "machine": "The machine",
    "latency": "TTFT and ITL",
    "phases": "Prefill and decode",
    "kv": "The KV cache",
    "batching": "Batching",
    "percentiles": "Percentiles",
    "goodput": "Goodput",
    "caching": "Caching",
    "speculation": "Speculation",
    "quantisation": "Quantisation",
    "cost": "Cost",
    "benchmarking": "Benchmarking",
    "deciding": "Deciding",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One question and its answer on several levels."""

    id: str
    topic: str
    question: str
    plain: str
    """The answer in plain words."""
    picture: str
    """Something to picture it by."""
    numbers: tuple[str, ...]
    """Lines with {expression|places}, computed."""
    words: tuple[str, ...]
    """Glossary terms to know."""
    deeper: str
    """The engineer's version."""
    source: str
    step: str = ""
    """The command that gives the learner this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    card: tuple[Card, ...]


def built_in_decks() -> list[Path]:
    """The decks that come with servefit."""
    return sorted(
        Path(str(f)) for f in (files("servefit.learn") / "data" / "decks").iterdir() if f.name.endswith(".toml")
    )


def own_decks(folder: Path) -> list[Path]:
    """The learner's own decks: every TOML file in learn/decks below the data folder."""
    return sorted((folder / "learn" / "decks").glob("*.toml"))


def load_deck(path: Path) -> tuple[Card, ...]:
    """The cards of one deck. Raises ServefitError with file and line for whatever is wrong in it."""
    text = read_text(path)
    try:
        value = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise ServefitError(
            f"{path.name} is not TOML: {error}.", hint="Cards are [[card]] tables; see the built-in decks."
        ) from None
    _check_each(value, text, path)
    cards = structure(value, _File, where=path.name).card
    values = collect(Path("/nonexistent"))
    for card in cards:
        try:
            _check(card, values)
        except ServefitError as error:
            line = _line_of(text, f'id = "{card.id}"')
            raise ServefitError(
                f"{path.name}, line {line}, card '{card.id}': {error.message}", hint=error.hint
            ) from None
    return cards


def _check_each(value: dict[str, Any], text: str, path: Path) -> None:
    """Name the line of the first card whose fields do not fit, which the structuring below cannot know."""
    tables = value.get("card")
    if not isinstance(tables, list):
        return
    starts = [n for n, line in enumerate(text.splitlines(), 1) if line.strip() == "[[card]]"]
    for number, table in enumerate(tables):
        line = starts[number] if number < len(starts) else 1
        structure(table, Card, where=f"{path.name}, line {line}")


def load_cards(decks: Sequence[Path] = ()) -> tuple[Card, ...]:
    """All built-in cards and those of `decks`; an id that stands twice is refused."""
    cards: dict[str, Card] = {}
    for path in dict.fromkeys(real(p) for p in [*built_in_decks(), *decks]):
        for card in load_deck(path):
            if card.id in cards:
                raise ServefitError(
                    f"{path.name}: the card id '{card.id}' stands twice.", hint="Give the card another id."
                )
            cards[card.id] = card
    return tuple(cards.values())


def _check(card: Card, values: Mapping[str, Number]) -> None:
    if card.topic not in TOPICS:
        raise ServefitError(f"'{card.topic}' is no topic.", hint=f"Topics: {', '.join(TOPICS)}.")
    for text in (card.question, card.plain, card.picture, card.deeper, card.source):
        if not text.strip():
            raise ServefitError("a field is empty.", hint="Every field but `step` needs text.")
    for word in card.words:
        find_term(word)
    for line in card.numbers:
        tell(line, values, where="numbers")


def _line_of(text: str, needle: str) -> int:
    return next((n for n, line in enumerate(text.splitlines(), 1) if line.strip() == needle), 1)


def to_anki(cards: Sequence[Card], values: Mapping[str, Number]) -> str:
    """The cards as a text file that Anki imports: front, back and topic, separated by tabs, HTML on."""
    from html import escape

    lines = ["#separator:tab", "#html:true", "#columns:front\tback\ttags", "#tags column:3"]
    for card in cards:
        told = [tell(line, values, where=card.id).text for line in card.numbers]
        back = "<br><br>".join(
            [
                escape(card.plain),
                escape(card.picture),
                "<br>".join(escape(t) for t in told),
                escape(card.deeper),
                f"<i>{escape(card.source)}</i>",
            ]
        )
        lines.append(
            "\t".join(
                part.replace("\t", " ").replace("\n", "<br>") for part in (escape(card.question), back, card.topic)
            )
        )
    return "\n".join(lines) + "\n"
