"""Traces: what real users asked, and when, from Azure's CSV, Mooncake's JSONL or one of our own runs."""

import csv
import json
import math
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path

from servefit.errors import ServefitError
from servefit.files import read_lines
from servefit.records import load_run
from servefit.workload.requests import PREFIX_BLOCK_TOK, Request

_HINT = "A trace is Azure's CSV, Mooncake's JSONL, or the folder of a run."


Row = tuple[float, int, int, tuple[int, ...]]
"""When it was asked in seconds (from any start), prompt tokens, output tokens, hashes of its blocks."""


def load_trace(path: Path, n: int | None = None) -> tuple[Request, ...]:
    """The first `n` requests of a trace (None: all), in due order, the first due at 0.

    Azure LLM traces: TIMESTAMP,ContextTokens,GeneratedTokens. Mooncake: `timestamp` in ms, input_length, output_length
    and hash_ids of 512-token blocks, which become prefixes. A run: its load rows as they were due, with the lengths that
    were served where they are known. An answer of 0 tokens counts as 1. Raises ServefitError, with the line, where a
    file is empty or malformed.
    """
    rows = sorted(read_rows(path, n), key=itemgetter(0))  # stable: ties keep the file's order
    start = rows[0][0]
    return tuple(
        Request(
            id=index,
            due_s=round((due_s - start) * 1e6) / 1e6,
            isl=isl,
            osl=osl,
            prefix=prefix,
            prefix_block_tok=512 if prefix else PREFIX_BLOCK_TOK,
        )
        for index, (due_s, isl, osl, prefix) in enumerate(rows if n is None else rows[:n])
    )


def read_rows(path: Path, n: int | None = None) -> Iterator[Row]:
    """The first `n` rows of a trace as they stand in it (of a run: all), read line by line. Raises ServefitError."""
    rows = _run(path) if _is_run(path) else _azure(path, n) if path.suffix == ".csv" else _mooncake(path, n)
    first = next(rows, None)
    if first is None:
        raise ServefitError(f"{path} holds no requests.", hint=_HINT)
    yield first
    yield from rows


def has_more_lines(path: Path, n: int) -> bool:
    """Whether it is a file of more than `n` rows, a line each; no more of it is read than that takes."""
    if _is_run(path) or not path.is_file() or not os.access(path, os.R_OK):
        return False  # whoever reads it says why it cannot be
    left = n + (path.suffix == ".csv")  # its header
    with path.open("rb") as file:
        while left >= 0 and (data := file.read(1 << 20)):
            left -= data.count(b"\n")
            ended = data.endswith(b"\n")
    return left < 0 or (left == 0 and not ended)


def _is_run(path: Path) -> bool:
    return path.is_dir() or path.name == "run.json"


def _azure(path: Path, n: int | None) -> Iterator[Row]:
    lines = read_lines(path)
    first = next(lines, "")
    header = [name.strip().lower() for name in _cells(path, 1, first)]
    wanted = ["timestamp", "contexttokens", "generatedtokens"]
    if not set(wanted) <= set(header):
        got = first[:80] or "nothing"
        raise ServefitError(f"{path} line 1 is '{got}', not TIMESTAMP,ContextTokens,GeneratedTokens.", hint=_HINT)
    at, isl, osl = (header.index(name) for name in wanted)
    start: datetime | None = None
    for number, line in enumerate(lines, 2):
        if not (row := _cells(path, number, line)):
            continue
        if n is not None and number - 2 >= n:
            return
        try:
            text = row[at].strip()
            when = datetime.fromisoformat(text)
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            start = start or when
            due_s = (when - start) / timedelta(seconds=1)
            yield _row(due_s, int(row[isl]), int(row[osl]))
        except (ValueError, IndexError, OverflowError) as error:
            raise _malformed(path, number, error) from None


def _cells(path: Path, number: int, line: str) -> list[str]:
    """The cells of one line: no cell of a trace goes over its end, so a quote that is not closed spoils no more than its line."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error as error:
        raise _malformed(path, number, error) from None


def _mooncake(path: Path, n: int | None) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        if n is not None and number - 1 >= n:
            return
        try:
            row = json.loads(line)
            prefix = tuple(int(block) for block in row.get("hash_ids", ()))
            yield _row(float(row["timestamp"]) / 1e3, int(row["input_length"]), int(row["output_length"]), prefix)
        except KeyError as error:
            raise ServefitError(f"{path} line {number} has no {error}.", hint=_HINT) from None
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _malformed(path, number, error) from None


def _run(path: Path) -> Iterator[Row]:
    for row in load_run(path, packed=True).load_rows:
        isl, osl = row.isl or row.isl_asked, row.osl or row.osl_asked
        if isl and osl:
            try:
                yield _row(row.due_s, isl, osl)
            except ValueError as error:
                raise ServefitError(f"{path}, request {row.id}: {error}.", hint=_HINT) from None


def _row(due_s: float, isl: int, osl: int, prefix: tuple[int, ...] = ()) -> Row:
    if isl < 1 or osl < 0 or not math.isfinite(due_s):
        raise ValueError(f"{isl} prompt and {osl} output tokens at {due_s} s cannot be asked")
    return due_s, isl, max(osl, 1), prefix


def _malformed(path: Path, number: int, error: Exception) -> ServefitError:
    return ServefitError(f"{path} line {number} is malformed: {error}.", hint=_HINT)
