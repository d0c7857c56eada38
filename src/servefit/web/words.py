"""Glossary terms on a page: each opens where it stands, by tap or by keyboard, with no script (the popover attribute)."""

import re
from functools import cache
from html import escape

from markupsafe import Markup

from servefit.learn.glossary import Term, all_terms, find_term


class Words:
    """The terms of one page, in the order in which they were first marked."""

    def __init__(self, *, bare: bool = False) -> None:
        self._bare = bare
        self.used: dict[str, Term] = {}

    def mark(self, name: str, text: str = "") -> Markup:
        """`text` (or the term's name) as a button that opens the definition; as plain text in a fragment."""
        shown = escape(text or name)
        if self._bare:
            return Markup(shown)  # noqa: S704 - escaped above
        term = find_term(name)
        self.used[anchor(term)] = term
        return Markup(f'<button type="button" class="word" popovertarget="w-{anchor(term)}">{shown}</button>')  # noqa: S704

    def text(self, text: str) -> Markup:
        """`text` with the first occurrence of every term that was not marked on this page yet as a button."""
        parts, at = [], 0
        for found in _pattern().finditer(text):
            term = find_term(found.group())
            if anchor(term) in self.used:
                continue
            parts += [escape(text[at : found.start()]), self.mark(term.name, found.group())]
            at = found.end()
        return Markup("".join([*parts, escape(text[at:])]))  # noqa: S704 - every part is escaped


@cache
def _pattern() -> re.Pattern[str]:
    """Any term as a word of its own; acronyms as they are spelt, words in any case of their first letter."""
    names = sorted((t.name for t in all_terms()), key=len, reverse=True)
    spelt = [
        re.escape(n) if n[1:] != n[1:].lower() else f"[{n[0].upper()}{n[0].lower()}]{re.escape(n[1:])}" for n in names
    ]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(spelt)})(?![\w-])")


def anchor(term: Term) -> str:
    """The term's anchor in the glossary."""
    return "".join(c if c.isalnum() else "-" for c in term.name.lower())
