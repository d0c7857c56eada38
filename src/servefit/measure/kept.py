"""The rows of a run while it is measured: whole as long as they are few, then packed, and without what grows with every token."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from servefit.files import read_json
from servefit.packed import Packed
from servefit.records import RequestRecord, Run, RunHeader, header_from_json, iter_rows, row_store, without_gaps
from servefit.stats import Tally

WHOLE_TOK = 2_000_000
"""Token times held in memory, about 32 bytes each; beyond, gaps are counted and the log alone has them all."""
WHOLE_ROWS = 20_000
"""Rows held in memory as they are, up to 1 kB each; beyond, all of them are packed."""
_AT_ONCE = 2
"""Rows that are packed for each that comes: all of them at once would hold up the load for a tenth of a second."""


class Kept:
    """What is kept of the rows written so far: in memory as they are up to `whole_rows` rows and `whole_tok` token times, then
    packed in a temporary file in `folder`, some 100 bytes a request.
    """

    def __init__(
        self,
        rows: Iterable[RequestRecord] = (),
        *,
        whole_tok: int = WHOLE_TOK,
        whole_rows: int = WHOLE_ROWS,
        folder: Path | None = None,
    ) -> None:
        self._whole_tok = whole_tok
        self._whole_rows = whole_rows
        self._plain: deque[RequestRecord] = deque()
        """The rows that are not packed, the last to come."""
        self._packed = row_store(folder)
        self._tok = 0
        self._gaps = Tally(exact=10_000)
        self._many = False
        for row in rows:
            self.add(row)

    def add(self, row: RequestRecord) -> None:
        """Keep one more row."""
        self._tok += len(row.chunk_s)
        self._plain.append(row)
        self._many = self._many or self._counted or len(self._plain) > self._whole_rows
        if self._many:
            for _ in range(min(_AT_ONCE, len(self._plain))):
                self._pack()

    def _pack(self) -> None:
        """Pack the first row that is not, and count its gaps: once, and in a short run never."""
        row = self._plain.popleft()
        if row.ok and row.phase == "load":
            self._gaps.add(row.itl_s)
        self._packed.add(without_gaps(row) if self._counted else row)

    @property
    def _counted(self) -> bool:
        """Whether there are too many tokens for each gap to be kept."""
        return self._tok > self._whole_tok

    def run(self, header: RunHeader) -> Run:
        """The run of these rows."""
        if not self._many:
            return Run(header=header, rows=tuple(self._plain))
        while self._plain:
            self._pack()
        if not self._counted:
            return Run(header=header, rows=Packed(self._packed))
        # the rows before the limit are packed as they were
        return Run(header=header, rows=Packed(self._packed, through=without_gaps), gaps=self._gaps)


def kept_run(folder: Path) -> Run:
    """The run in `folder` as it would have been kept while it was measured: for its figures, in as little memory."""
    path = folder / "run.json"
    return Kept(iter_rows(folder), folder=folder).run(header_from_json(read_json(path), path))
