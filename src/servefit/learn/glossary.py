"""The glossary: one definition per term, used by the page, the command line and the docs."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from servefit.errors import ServefitError
from servefit.files import structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word of the field, in words that need no other book."""

    name: str
    text: str
    long: str = ""
    """The name spelled out, or its other names."""
    see: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    term: tuple[Term, ...]


@cache
def all_terms() -> tuple[Term, ...]:
    """Every term, in the file's order."""
    text = (files("servefit.learn") / "data" / "glossary.toml").read_text(encoding="utf-8")
    return structure(tomllib.loads(text), _File, where="glossary.toml").term


def find_term(name: str) -> Term:
    """The term called `name`, or whose spelled-out name holds it, in any case.

    Raises ServefitError with the nearest term as its hint.

    >>> find_term("ttft").long
    'Time to first token'
    """
    wanted = name.strip().lower()
    for term in all_terms():
        if wanted == term.name.lower() or wanted in [part.strip().lower() for part in term.long.split(",")]:
            return term
    import difflib

    names = {t.name.lower(): t.name for t in all_terms()}
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    hint = f"Did you mean '{names[near[0]]}'?" if near else "servefit learn glossary lists them all."
    raise ServefitError(f"'{name}' is not in the glossary.", hint=hint)
