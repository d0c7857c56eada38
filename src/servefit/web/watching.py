"""A measurement in progress: its rows read as they are appended, each once, however often a page asks."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from servefit.records import RequestRecord, row_from_json

MOST_AT_ONCE_BYTES = 8 << 20
"""Bytes that one look reads at most; the next look goes on from there."""
MOST_WATCHED = 64


@dataclass(slots=True)
class Watched:
    """The rows of one run so far, and how far the file has been read."""

    offset: int = 0
    inode: int = 0
    rows: list[RequestRecord] = field(default_factory=list)
    damaged: int = 0
    """Lines that are no rows."""


class Watcher:
    """All runs that pages are looking at."""

    def __init__(self) -> None:
        self._runs: dict[Path, Watched] = {}
        self._one = threading.Lock()

    def look(self, run: Path) -> tuple[tuple[RequestRecord, ...], int]:
        """The run's rows so far, and how many lines were none.

        Only what was appended since the last look is read; a torn last line is left for later.
        """
        with self._one:
            seen = self._look(run)
            return tuple(seen.rows), seen.damaged

    def _look(self, run: Path) -> Watched:
        path = run / "requests.jsonl"
        seen = self._runs.pop(run, None) or Watched()
        self._runs[run] = seen  # the one looked at last stands last
        while len(self._runs) > MOST_WATCHED:
            del self._runs[next(iter(self._runs))]
        try:
            stat = path.stat()
            if stat.st_ino != seen.inode or stat.st_size < seen.offset:  # another run under the same name
                seen.offset, seen.inode, seen.damaged = 0, stat.st_ino, 0
                seen.rows.clear()
            with path.open("rb") as file:
                file.seek(seen.offset)
                data = file.read(MOST_AT_ONCE_BYTES)
        except OSError:
            return seen
        whole = data[: data.rfind(b"\n") + 1]
        seen.offset += len(whole)
        for line in whole.splitlines():
            try:
                seen.rows.append(row_from_json(line.decode("utf-8")))
            except (ValueError, TypeError):
                seen.damaged += 1
        return seen
