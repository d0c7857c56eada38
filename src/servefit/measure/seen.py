"""What the verdict on a run looks at, counted row by row: the rows of a long run are never all there at once."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Self

from servefit.records import RequestRecord


@dataclass(slots=True)
class Span:
    """From the least to the greatest of some moments, in seconds."""

    first_s: float = inf
    last_s: float = -inf

    def add(self, at_s: float) -> None:
        """Take in one more."""
        self.first_s, self.last_s = min(self.first_s, at_s), max(self.last_s, at_s)

    @property
    def s(self) -> float:
        """How long it is; only where there was a moment."""
        return self.last_s - self.first_s


@dataclass(slots=True)
class Seen:
    """The counts over a run's load rows."""

    by_status: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    """What was odd about single requests."""
    meant_to_fail: int = 0
    passed_unexpectedly: int = 0
    span: Span = field(default_factory=Span)
    """From the first due time to the last end."""
    sent: int = 0
    sent_span: Span = field(default_factory=Span)
    sent_due_span: Span = field(default_factory=Span)
    """When those that were sent should have been."""
    told_cached: int = 0
    """Successes whose server said how much of the prompt came from a cache."""
    cached_tok: int = 0
    cacheable_tok: int = 0
    told_isl: int = 0
    """Successes whose prompt was counted by the server and whose asked length is known."""
    told_isl_tok: int = 0
    asked_isl_tok: int = 0
    isl_off: int = 0
    """Those of them that differ by more than 2 tokens and 2%."""

    @classmethod
    def of(cls, rows: Iterable[RequestRecord]) -> Self:
        """What is seen of these rows."""
        seen = cls()
        for row in rows:
            seen.add(row)
        return seen

    @property
    def n(self) -> int:
        """How many rows there were."""
        return self.by_status.total()

    @property
    def ok(self) -> int:
        """How many of them completed."""
        return self.by_status["ok"]

    def add(self, row: RequestRecord) -> None:
        """Count one more."""
        self.by_status[row.status] += 1
        self.codes.update(row.findings)
        self.meant_to_fail += row.expected_failure
        self.span.add(row.due_s)
        self.span.add(max(row.done_s or 0.0, row.due_s))
        if row.sent_s is not None:
            self.sent += 1
            self.sent_span.add(row.sent_s)
            self.sent_due_span.add(row.due_s)
        if row.ok:
            self._add_success(row)

    def _add_success(self, row: RequestRecord) -> None:
        self.passed_unexpectedly += row.expected_failure
        if row.cached_tok is not None and row.isl:
            self.told_cached += 1
            self.cached_tok += row.cached_tok
            self.cacheable_tok += row.isl
        if row.isl_source == "usage" and row.isl_asked and row.isl:
            self.told_isl += 1
            self.told_isl_tok += row.isl
            self.asked_isl_tok += row.isl_asked
            self.isl_off += abs(row.isl - row.isl_asked) > max(2, row.isl_asked // 50)
