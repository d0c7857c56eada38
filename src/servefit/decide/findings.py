"""Findings, each with its line, the name, what is written and what recomputing gives:

STALE       a bound number or word is not what it is bound to
SIDE        a target is written with words for the other side: "at least" where it is "at most"
UNKNOWN     bound to a name that is no quantity, or an expression that cannot be evaluated
BARE        a number that is not bound and is no date, code or quotation with its source
FAILS       a check of the decided configuration does not pass
THIN        a check's margin lies inside its interval: too close to call
SOURCE      an input, the seed or the configuration is not the one that was recorded
ORDER       the sections are not in their order
MISSING     a section, or something that a section must say, is not there
UNMEASURED  nothing measured stands behind it
COVERAGE    nothing is bound at all
"""

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something in the file that does not hold."""

    code: str
    level: Level
    line: int
    """1-based line in the file."""
    name: str
    written: str
    recomputed: str
    message: str
