"""Traces: what real users asked, and when, from Azure's CSV, Mooncake's JSONL or one of our own runs."""

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from servefit.errors import ServefitError
from servefit.files import read_text
from servefit.records import load_run
from servefit.workload.requests import Request

_HINT = "A trace is Azure's CSV, Mooncake's JSONL, or the folder of a run."
_MAX_BYTES = 4 * 2**30


def load_trace(path: Path, n: int | None = None) -> tuple[Request, ...]:
    """The first `n` requests of a trace (None: all), in due order, the first due at 0.

    Azure LLM traces: TIMESTAMP,ContextTokens,GeneratedTokens. Mooncake: `timestamp` in ms, input_length, output_length
    and hash_ids of 512-token blocks, which become prefixes. A run: its load rows as they were due, with the lengths that
    were served where they are known. An answer of 0 tokens counts as 1. Raises ServefitError, with the line, where a
    file is empty or malformed.
    """
    if path.is_dir() or path.name == "run.json":
        rows = list(_run(path))
    elif path.suffix == ".csv":
        rows = list(_azure(path, n))
    else:
        rows = list(_mooncake(path, n))
    if not rows:
        raise ServefitError(f"{path} holds no requests.", hint=_HINT)
    rows.sort(key=lambda row: row.due_s)  # stable: ties keep the file's order
    start = rows[0].due_s
    kept = rows if n is None else rows[:n]
    return tuple(
        Request(
            id=index,
            due_s=round((row.due_s - start) * 1e6) / 1e6,
            isl=row.isl,
            osl=row.osl,
            prefix=row.prefix,
            prefix_block_tok=row.prefix_block_tok,
        )
        for index, row in enumerate(kept)
    )


def _azure(path: Path, n: int | None) -> Iterator[Request]:
    lines = read_text(path, max_bytes=_MAX_BYTES).splitlines()
    header = [name.strip().lower() for name in next(csv.reader(lines[:1]), [])]
    wanted = ["timestamp", "contexttokens", "generatedtokens"]
    if not set(wanted) <= set(header):
        got = lines[0][:80] if lines else "nothing"
        raise ServefitError(f"{path} line 1 is '{got}', not TIMESTAMP,ContextTokens,GeneratedTokens.", hint=_HINT)
    at, isl, osl = (header.index(name) for name in wanted)
    start: datetime | None = None
    for number, row in enumerate(csv.reader(lines[1:]), 2):
        if not row:
            continue
        if n is not None and number - 2 >= n:
            return
        try:
            text = row[at].strip()
            when = datetime.fromisoformat(text)
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
            start = start or when
            due_s = (when - start) / timedelta(seconds=1)
            yield _request(due_s, int(row[isl]), int(row[osl]))
        except (ValueError, IndexError, OverflowError) as error:
            raise _malformed(path, number, error) from None


def _mooncake(path: Path, n: int | None) -> Iterator[Request]:
    for number, line in enumerate(read_text(path, max_bytes=_MAX_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        if n is not None and number - 1 >= n:
            return
        try:
            row = json.loads(line)
            prefix = tuple(int(block) for block in row.get("hash_ids", ()))
            yield _request(float(row["timestamp"]) / 1e3, int(row["input_length"]), int(row["output_length"]), prefix)
        except KeyError as error:
            raise ServefitError(f"{path} line {number} has no {error}.", hint=_HINT) from None
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise _malformed(path, number, error) from None


def _run(path: Path) -> Iterator[Request]:
    for row in load_run(path).load_rows:
        isl, osl = row.isl or row.isl_asked, row.osl or row.osl_asked
        if isl and osl:
            try:
                yield _request(row.due_s, isl, osl)
            except ValueError as error:
                raise ServefitError(f"{path}, request {row.id}: {error}.", hint=_HINT) from None


def _request(due_s: float, isl: int, osl: int, prefix: tuple[int, ...] = ()) -> Request:
    if isl < 1 or osl < 0 or not due_s < float("inf"):
        raise ValueError(f"{isl} prompt and {osl} output tokens at {due_s} s cannot be asked")
    return Request(id=0, due_s=due_s, isl=isl, osl=max(osl, 1), prefix=prefix, prefix_block_tok=512 if prefix else 16)


def _malformed(path: Path, number: int, error: Exception) -> ServefitError:
    return ServefitError(f"{path} line {number} is malformed: {error}.", hint=_HINT)
