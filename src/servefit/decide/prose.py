"""Bits of Markdown: words in code spans, values in our own spelling, tables."""

import re
from collections.abc import Iterable, Iterator, Sequence

from servefit.decide.derive import Quantity
from servefit.decide.written import show

LONG_CHARS = 160


def spelled(quantity: Quantity) -> str:
    """A quantity's value in our own spelling: names in a code span, verdicts as words, numbers with their unit."""
    if quantity.dim != "text":
        assert not isinstance(quantity.value, str), f"{quantity.name} is a number"
        return show(quantity.value, quantity.dim, signed=quantity.signed)
    text = str(quantity.value) if quantity.value is not None else "-"
    return text if quantity.value is None else word(text) if _needs_ticks(text) else text


def _needs_ticks(text: str) -> bool:
    return bool(re.search(r"[^A-Za-z ]", text)) or " " in text


def flat(text: str) -> str:
    """Text on one line without anything that would open a comment."""
    return re.sub(r"\s+", " ", text.replace("<!--", "").replace("-->", "")).strip()


def shortened(text: str) -> str:
    """`text`, or its beginning with an ellipsis where it is long; the whole of it stands in the plan.

    >>> shortened("a short one")
    'a short one'
    """
    return text if len(text) <= LONG_CHARS else text[: text.rfind(" ", 0, LONG_CHARS)] + " ..."


def sentence(text: str) -> str:
    """`text` with its first letter large and nothing else changed."""
    return text[:1].upper() + text[1:]


def aside(text: str) -> str:
    """A long sentence with its first parenthesis in a code span: a citation in it is nobody's claim here.

    >>> aside("Short (1).")
    'Short (1).'
    """
    start = text.find(" (")
    if len(text) < LONG_CHARS or start < 0:
        return text
    depth = 0
    for at in range(start + 1, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return f"{text[: start + 2]}{word(shortened(text[start + 2 : at]))}{text[at:]}"
    return text


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table and the blank line after it."""
    yield f"| {' | '.join(headers)} |"
    yield f"|{'---|' * len(headers)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def word(text: str) -> str:
    """Text from a plan or a header in a code span, so that nothing in it is Markdown, a comment or a bare number."""
    flat = re.sub(r"\s+", " ", text.replace("`", "'").replace("|", "/").replace("<!--", "").replace("-->", "")).strip()
    return f"`{flat or '-'}`"
