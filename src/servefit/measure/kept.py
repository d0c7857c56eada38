"""The rows of a run while it is measured: whole as long as they are few, then without what grows with every token."""

from collections.abc import Iterable

from servefit.records import RequestRecord, Run, RunHeader, without_gaps
from servefit.stats import Tally

WHOLE_TOK = 2_000_000
"""Token times held in memory, about 32 bytes each; beyond, gaps are counted and the log alone has them all."""


class Kept:
    """What is kept in memory of the rows written so far: at most `whole_tok` token times, then under 1 kB a request."""

    def __init__(self, rows: Iterable[RequestRecord] = (), *, whole_tok: int = WHOLE_TOK) -> None:
        self._whole_tok = whole_tok
        self._rows: list[RequestRecord] = []
        self._tok = 0
        self._gaps: Tally | None = None
        for row in rows:
            self.add(row)

    def add(self, row: RequestRecord) -> None:
        """Keep one more row."""
        self._tok += len(row.chunk_s)
        self._rows.append(row if self._gaps is None else self._slim(row, self._gaps))
        if self._gaps is None and self._tok > self._whole_tok:
            gaps = self._gaps = Tally()
            self._rows = [self._slim(row, gaps) for row in self._rows]

    def _slim(self, row: RequestRecord, gaps: Tally) -> RequestRecord:
        if row.ok and row.phase == "load":
            gaps.add(row.itl_s)
        return without_gaps(row)

    def run(self, header: RunHeader) -> Run:
        """The run of these rows."""
        return Run(header=header, rows=tuple(self._rows), gaps=self._gaps)
