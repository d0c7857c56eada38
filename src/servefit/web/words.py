"""Glossary terms on a page: each opens where it stands, by tap or by keyboard, with no script (the popover attribute)."""

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

    def all(self) -> None:
        """Every term is used on this page."""
        self.used |= {anchor(t): t for t in all_terms()}


def anchor(term: Term) -> str:
    """The term's anchor in the glossary."""
    return "".join(c if c.isalnum() else "-" for c in term.name.lower())
