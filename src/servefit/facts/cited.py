"""A figure and where it comes from: nobody has to believe a number that this project prints."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["seen", "secondary", "disputed", "unverified", "measured", "given", "assumed"]
"""seen: read at its source; secondary: read where somebody quotes the source; disputed: sources disagree; unverified:
nobody here has read it at a source; measured: by a run; given: typed by the user; assumed: a convention, not a fact."""

DOUBTFUL: frozenset[Status] = frozenset({"disputed", "unverified", "assumed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cited:
    """One figure in the unit of its name, with source, date (of the look-up) and status."""

    value: float
    source: str
    date: str = ""
    status: Status = "seen"
    note: str = ""

    @property
    def doubtful(self) -> bool:
        """Whether the status must be said where the figure is printed."""
        return self.status in DOUBTFUL

    def mark(self) -> str:
        """The status in brackets where it is doubtful, else nothing: printed right after the figure.

        >>> Cited(value=209.5e12, source="press", status="unverified").mark()
        ' (unverified)'
        """
        return f" ({self.status})" if self.doubtful else ""
