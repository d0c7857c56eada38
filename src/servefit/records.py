"""A run: one header and one row a request. Measured and simulated runs are the same type.

On disk a run is a folder: `run.json` (the header) and `requests.jsonl` (one line a request, appended and flushed as each
ends). Raw rows are kept, summaries are computed. All times are seconds since the run's start.

Schema history
    1   2026-11-30   first
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from servefit.errors import ServefitError
from servefit.files import read_json, write_json
from servefit.packed import Packed, Store
from servefit.stats import Tally

SCHEMA_VERSION = 1

STATUSES = {
    "ok": "complete, with evidence: a finish reason or a terminal event",
    "truncated": "the stream ended without a finish reason or a terminal event",
    "prompt_cut": "the server read fewer prompt tokens than were sent: it cut the prompt to its context setting",
    "short": "fewer tokens than asked, though the end-of-text token was switched off",
    "empty": "complete, but no token carried text",
    "stream_error": "an error object inside a stream that had begun with 200",
    "http_error": "an HTTP status of 400 or more that is none of the below",
    "rate_limited": "429: rate limited, not slow",
    "unauthorized": "401 or 403",
    "not_found": "404: no such route or model",
    "unprocessable": "422 or 400: the server refused the request's fields",
    "unavailable": "502, 503 or 504",
    "redirected": "a redirect, which is not followed",
    "not_an_llm": "an answer that is no completion (HTML, or JSON of another kind)",
    "refused": "connection refused",
    "reset": "the connection was reset or closed before or inside the answer",
    "timeout": "no headers, or no further byte, within the limit",
    "too_long": "the answer passed the limit of bytes or tokens",
    "bad_stream": "bytes that are not HTTP or not the dialect",
    "cancelled": "cut off by us (Ctrl-C, a cap, the end of the run)",
    "unfinished": "simulated: not finished at the horizon",
    "rejected": "simulated: never fits in memory",
}
"""Every status a row can have. Only "ok" counts as a success, and a success is the only source of latency figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, as asked and as served. Times in seconds since the run's start; None where it did not happen."""

    id: str
    status: str
    phase: Literal["load", "warmup", "cold"] = "load"
    """Only "load" rows enter the figures; "cold" is the first request to a fresh server, shown apart."""
    expected_failure: bool = False
    due_s: float
    """When the schedule wanted it sent: the start of TTFT and E2E."""
    sent_s: float | None = None
    connect_s: float | None = None
    """How long connecting took (a duration); None on a connection that was open already."""
    headers_s: float | None = None
    chunk_s: tuple[float, ...] = ()
    """Arrival of each chunk that carries text (content, reasoning or tool-call text)."""
    chunk_tok: tuple[int, ...] | None = None
    """Tokens in each of those chunks, where known; None means one each."""
    answer_chunk: int | None = None
    """Index in `chunk_s` of the first chunk of the visible answer, where reasoning came first."""
    done_s: float | None = None
    """The terminal event, or the moment of failure."""
    isl_asked: int | None = None
    isl: int | None = None
    """Prompt tokens by the server's own count; falls back to the asked number with `isl_source` saying so."""
    isl_source: Literal["usage", "asked", "simulated", "none"] = "none"
    osl_asked: int | None = None
    osl: int | None = None
    osl_source: Literal["usage", "chunks", "simulated", "none"] = "none"
    cached_tok: int | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    error: str | None = None
    findings: tuple[str, ...] = ()
    """Codes of what was odd about this request, e.g. "several_tokens_a_chunk"."""
    server: dict[str, float] | None = None
    """The server's own times and counts, where it tells: queue_s, prefill_s, decode_s, load_s ..."""
    user: int | None = None
    """Closed loop: which of the C users."""
    replica: int | None = None
    preempted: int | None = None
    text: str | None = None
    """The model's output, kept only on request and never trusted."""

    @property
    def ok(self) -> bool:
        """Whether the request completed with evidence."""
        return self.status == "ok"

    @property
    def token_s(self) -> tuple[float, ...]:
        """Arrival of every token: a chunk of k tokens after a gap g counts as k tokens g/k apart.

        The first chunk's tokens all stand at its arrival, since nothing is known of the time before.
        """
        if self.chunk_tok is None:
            return self.chunk_s
        times: list[float] = []
        before: float | None = None
        for at, k in zip(self.chunk_s, self.chunk_tok, strict=True):
            if before is None:
                times.extend([at] * k)
            else:
                times.extend(before + (at - before) * (i + 1) / k for i in range(k))
            before = at
        return tuple(times)

    @property
    def ttft_s(self) -> float | None:
        """Due to the first token that carries text."""
        return self.chunk_s[0] - self.due_s if self.chunk_s else None

    @property
    def ttft_from_send_s(self) -> float | None:
        """Sent to the first token that carries text: without the client's or the schedule's lateness."""
        return self.chunk_s[0] - self.sent_s if self.chunk_s and self.sent_s is not None else None

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Every gap between token arrivals. Tokens that came in the first chunk have no gap of their own.

        None at all where only first and last token were recorded, as in some imported runs.
        """
        if "gaps_not_recorded" in self.findings:
            return ()
        times = self.token_s
        first = self.chunk_tok[0] if self.chunk_tok else 1
        return tuple(b - a for a, b in zip(times[first - 1 :], times[first:], strict=False))

    @property
    def tpot_s(self) -> float | None:
        """(last token - first token) / (tokens - 1); None below two tokens.

        Where the first chunk carried k tokens, the time from first to last was that of tokens - k, so k stands for the 1:
        four tokens an event, one event every 200 ms, is a TPOT of 50 ms at any length.
        """
        first = self.chunk_tok[0] if self.chunk_tok else 1
        tokens = sum(self.chunk_tok) if self.chunk_tok else self.osl if self.osl is not None else len(self.chunk_s)
        if tokens <= first or len(self.chunk_s) < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) / (tokens - first)

    @property
    def e2e_s(self) -> float | None:
        """Due to the last token."""
        return self.chunk_s[-1] - self.due_s if self.chunk_s else None


def without_gaps(row: RequestRecord) -> RequestRecord:
    """The row with its first and its last token alone, so that it takes as little memory however long its answer: TTFT, TPOT and E2E
    stay what they are, the gaps between tokens are gone.
    """
    if len(row.chunk_s) <= 2 or "gaps_not_recorded" in row.findings:
        return row
    first = row.chunk_tok[0] if row.chunk_tok else 1
    tokens = sum(row.chunk_tok) if row.chunk_tok else row.osl if row.osl is not None else len(row.chunk_s)
    return replace(
        row, chunk_s=(row.chunk_s[0], row.chunk_s[-1]), chunk_tok=(first, max(tokens - first, 0)),
        answer_chunk=None, findings=(*row.findings, "gaps_not_recorded"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about a run that its reader must know: which fact, and what to do about it."""

    code: str
    level: Literal["note", "suspect", "invalid"]
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """What was run, on what, how. Dictionaries hold what is recorded and never computed with by name outside its room."""

    kind: Literal["measured", "simulated"]
    schema_version: int = SCHEMA_VERSION
    tool_version: str = ""
    started: str | None = None
    """ISO 8601 with zone; None for a simulated run, whose bytes depend on its seed alone."""
    target: str = ""
    """The name or URL that was measured, without secrets; for a simulated run the device."""
    model: str = ""
    engine: dict[str, Any] = field(default_factory=dict)
    """name, build, policy, seats, budget_tok, prefix_cache ... as far as known."""
    endpoint: dict[str, Any] = field(default_factory=dict)
    """url, dialect, accepted fields, paid."""
    machine: dict[str, Any] = field(default_factory=dict)
    served_context_tok: int | None = None
    load: dict[str, Any] = field(default_factory=dict)
    """kind ("closed" with concurrency, "open" with rate and arrivals, "trace"), n, isl, osl."""
    workload_sha256: str = ""
    schedule_sha256: str = ""
    seed: int = 0
    clock: Literal["kernel", "user", "simulated", "imported"] = "user"
    client: dict[str, Any] = field(default_factory=dict)
    """The client's own health: event-loop lag, late sends, tokens sharing a read, overhead against a null server."""
    server: dict[str, Any] = field(default_factory=dict)
    """Server-side truth, where there is any: /metrics before and after."""
    inputs: dict[str, str] = field(default_factory=dict)
    """For a simulated run: what it rests on, path -> sha256."""
    window_s: tuple[float, float] | None = None
    """The steady window, where one was found."""
    duration_s: float | None = None
    """Wall (or simulated) time from the first due to the last row's end."""
    finished: bool = False
    verdict: Literal["valid", "suspect", "invalid"] = "valid"
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A header and its rows, in the order they ended."""

    header: RunHeader
    rows: Sequence[RequestRecord]
    """A tuple, or `Packed` where they are very many: then each is built when it is looked at, equal and not the same."""
    gaps: Tally | None = None
    """Of a run too long to be held: the gaps between tokens, counted; its rows then hold the first and the last token alone."""

    @property
    def load_rows(self) -> Sequence[RequestRecord]:
        """The rows that count: neither warm-up nor cold start."""
        return self.in_phase("load")

    def in_phase(self, phase: Literal["load", "warmup", "cold"]) -> Sequence[RequestRecord]:
        """The rows of one phase, in the order they ended."""
        if isinstance(self.rows, Packed):
            return self.rows.where("phase", phase)
        return tuple(row for row in self.rows if row.phase == phase)


# --- to and from disk -----------------------------------------------------------------------------------------------

_DEFAULTS = {f.name: f.default for f in fields(RequestRecord)}
_TUPLES = {"chunk_s": frozenset({int, float}), "chunk_tok": frozenset({int}), "findings": frozenset({str})}
_KNOWN = frozenset(_DEFAULTS)
_WORDS = frozenset({"status", "phase", "isl_source", "osl_source", "finish_reason"})
"""Of few values each, so that all rows of a run can share them."""


def row_store(folder: Path | None = None) -> Store[RequestRecord]:
    """An empty store of rows: some 140 bytes each where an answer's first and last token are kept, instead of 900; in a
    temporary file in `folder` where that is much.
    """
    return Store(RequestRecord, _DEFAULTS, shared=_WORDS | {"findings", "http_status"}, folder=folder)


def _kinds(hint: Any) -> tuple[type, ...]:
    """The JSON types that a field of type `hint` may have in a file."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return tuple(kind for arg in args for kind in _kinds(arg))
    if origin is Literal:
        return (str,)
    return {tuple: (list,), dict: (dict,)}.get(origin or hint, (int, float) if hint is float else (hint,))


_ROW_KINDS = {name: _kinds(hint) for name, hint in get_type_hints(RequestRecord).items()}
_HEADER_KINDS = {name: _kinds(hint) for name, hint in get_type_hints(RunHeader).items()}


_BLOCK_BYTES = 1 << 20
"""What is read of a file at once."""

LARGEST = 1e30
"""No second, token or byte of a run comes near it; sums of larger ones overflow, and one such row would end a whole list."""


BOUNDS = {"chunk_s": (-LARGEST, LARGEST), "chunk_tok": (0, 1_000_000)}
"""Each time, and the tokens of one chunk: a file that claims more would fill the memory."""


def _check_kinds(value: dict[str, Any], kinds: dict[str, tuple[type, ...]]) -> None:
    """Raises TypeError naming the first field that holds something of another type."""
    for name, held in value.items():
        if type(held) not in kinds[name]:
            raise TypeError(f"{name} is {str(held)[:40]!r}")
        if isinstance(held, int | float) and not -LARGEST < held < LARGEST:
            raise TypeError(f"{name} is too large to calculate with")


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def row_to_json(row: RequestRecord) -> str:
    """One line of JSON for a row, times rounded to the nanosecond, fields at their default left out."""
    out: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(row, name)
        if value == default and type(value) is type(default):
            continue
        if isinstance(value, float):
            value = round(value, 9)
        elif name == "chunk_s":
            value = [round(t, 9) for t in value]
        out[name] = value
    return json.dumps(out, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def row_from_json(line: str) -> RequestRecord:
    """The row of one line; raises ValueError where it is none. Fields of a newer schema are passed over."""
    try:
        value = _DECODER.decode(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict) or not {"id", "status", "due_s"} <= value.keys():
        raise ValueError("not a request row")
    kept = {k: v for k, v in value.items() if k in _KNOWN}
    _check_kinds(kept, _ROW_KINDS)
    for name, member in _TUPLES.items():
        if kept.get(name) is not None:
            kept[name] = tuple(kept[name])
            if not member.issuperset(map(type, kept[name])):
                raise TypeError(f"{name} holds something else than {' or '.join(sorted(t.__name__ for t in member))}")
            if name in BOUNDS and kept[name]:
                low, high = BOUNDS[name]
                if not low <= min(kept[name]) <= max(kept[name]) <= high:
                    raise ValueError(f"{name} holds what no measurement leaves")
    for name in _WORDS & kept.keys():  # a decoder makes each anew: a quarter of a short row
        if kept[name] is not None:
            kept[name] = sys.intern(kept[name])
    return RequestRecord(**kept)


def header_to_json(header: RunHeader) -> dict[str, Any]:
    """The header as plain JSON values."""
    return asdict(header)


def header_from_json(value: Any, path: Path) -> RunHeader:
    """The header in `value`; raises ServefitError where it is none or from a newer servefit."""
    if not isinstance(value, dict) or "schema_version" not in value or "kind" not in value:
        raise ServefitError(
            f"{path} is not the header of a run.", hint="A run is a folder with run.json and requests.jsonl."
        )
    version = value["schema_version"]
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ServefitError(
            f"{path} has schema version {version!r}; this servefit reads up to {SCHEMA_VERSION}.",
            hint="Update servefit.",
        )
    names = {f.name for f in fields(RunHeader)}
    kept = {k: v for k, v in value.items() if k in names}
    try:
        _check_kinds(kept, _HEADER_KINDS)
        kept["findings"] = tuple(Finding(**f) for f in kept.get("findings") or ())
        if kept.get("window_s") is not None:
            start, end = kept["window_s"]
            kept["window_s"] = (float(start), float(end))
        return RunHeader(**kept)
    except (TypeError, ValueError) as error:
        raise ServefitError(f"{path} is damaged: {error}.", hint="Measure again, or restore the file.") from None


def save_run(run: Run, folder: Path | str) -> None:
    """Write a finished run to `folder` at once (simulated and imported runs; measured ones use RunWriter)."""
    with RunWriter(Path(folder), run.header) as writer:
        for row in run.rows:
            writer.append(row, flush=False)
        writer.finish(run.header)


LONG = 20_000
"""Rows that are held as they are, up to 1 kB each; of more, all are packed."""


def load_run(folder: Path | str, *, packed: bool = False) -> Run:
    """The run in `folder` (or whose run.json is named). A torn last line is dropped, and a finding says so.

    With `packed` very many rows take no memory and each look at one takes longer: for who goes through them once or twice.

    Raises ServefitError where there is no run, or a line other than the last is damaged.
    """
    folder = Path(folder)
    folder = folder.parent if folder.name == "run.json" else folder
    if folder.is_file():
        raise ServefitError(f"{folder} is a file, not a run.", hint="Name a run's folder: run.json lies in it.")
    header = header_from_json(read_json(folder / "run.json"), folder / "run.json")
    path = folder / "requests.jsonl"
    rows: list[RequestRecord] = []
    store: Store[RequestRecord] | None = None
    torn = False
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.removesuffix(b"\n")
                try:
                    if text:
                        rows.append(row_from_json(text.decode("utf-8-sig" if number == 1 else "utf-8")))
                    if packed and len(rows) > (LONG if store is None else 0):
                        store = store or row_store()
                        for row in rows:
                            store.add(row)
                        rows.clear()
                except (ValueError, TypeError):
                    if text != line:
                        raise _damaged(path, number) from None
                    torn = True
    except FileNotFoundError:
        pass  # killed before its first row
    except OSError as error:
        raise ServefitError(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from None
    if torn:
        word = Finding(
            code="torn_line", level="note", message="The last line of requests.jsonl was torn and is left out."
        )
        header = replace(header, findings=(*header.findings, word))
    return Run(header=header, rows=tuple(rows) if store is None else Packed(store))


def iter_rows(folder: Path) -> Iterator[RequestRecord]:
    """The rows of a run one at a time, so that a day-long run needs no memory; a torn last line is passed over.

    Raises ServefitError where another line is damaged.
    """
    path = folder / "requests.jsonl"
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n") or line == b"\n":
                continue
            try:
                row = row_from_json(line.decode())
            except (ValueError, TypeError):
                raise _damaged(path, number) from None
            yield row


def _damaged(path: Path, number: int) -> ServefitError:
    return ServefitError(f"{path} is damaged in line {number}.", hint="Restore it, or measure again.")


def refuse_used(folder: Path) -> None:
    """Raise ServefitError where the folder holds a run, or the rows of one whose header is gone."""
    rows = folder / "requests.jsonl"
    if (folder / "run.json").exists():
        raise ServefitError(
            f"{folder} holds a run already.", hint="Name another folder with --out, or go on with --resume."
        )
    if rows.exists() and rows.stat().st_size:
        raise ServefitError(
            f"{folder} holds the rows of a run without its run.json.",
            hint="Name another folder with --out, or restore run.json.",
        )


def content_sha256(path: Path) -> str:
    """Hex SHA-256 of a file, or of a run folder: the hash of its run.json's bytes and then its requests.jsonl's."""
    digest = hashlib.sha256()
    parts = [path / "run.json", path / "requests.jsonl"] if path.is_dir() else [path]
    for part in parts:
        try:
            with part.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
        except OSError as error:
            raise ServefitError(f"{part} cannot be read: {error.strerror}.", hint="Was it moved or deleted?") from None
    return digest.hexdigest()


class RunWriter:
    """Appends rows to a run folder, each flushed as it ends; killed at any moment, what was flushed can be read.

    A second writer on the same folder is refused. A full disk raises ServefitError and leaves what was written.
    """

    def __init__(self, folder: Path, header: RunHeader, *, resume: bool = False) -> None:
        self.folder = folder
        self._lock: int | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(folder)
            existing = (folder / "run.json").exists()
            if not resume or not existing:
                refuse_used(folder)
            _drop_torn_line(folder / "requests.jsonl")
            self._file = (folder / "requests.jsonl").open("ab", buffering=1 << 16)
        except OSError as error:
            self._unlock()
            raise ServefitError(
                f"{folder} cannot be written: {error.strerror}.", hint="Choose another --out."
            ) from None
        except BaseException:
            self._unlock()
            raise
        if not existing:
            write_json(folder / "run.json", header_to_json(header))

    def append(self, row: RequestRecord, *, flush: bool = True) -> None:
        """Append one row; with `flush` it is in the file when this returns."""
        try:
            self._file.write(row_to_json(row).encode(errors="replace") + b"\n")  # a server can send half a surrogate
            if flush:
                self._file.flush()
        except OSError as error:
            raise ServefitError(
                f"{self.folder} cannot be written: {error.strerror}.", hint="What was measured before is kept."
            ) from None

    def finish(self, header: RunHeader, *, finished: bool = True) -> None:
        """Write the final header, with the run's findings and verdict; an interrupted run is not `finished`."""
        self._file.flush()
        write_json(self.folder / "run.json", header_to_json(replace(header, finished=finished)))

    def close(self) -> None:
        """Close the file and let others write."""
        try:
            self._file.close()
        except OSError:
            pass  # the row that did not fit was reported by append
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            (self.folder / ".lock").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock(folder: Path) -> int:
    """An exclusive lock on the folder, held by the open file and so released when the process dies."""
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise ServefitError(
            f"{folder} is being written by another servefit.", hint="Wait for it, or choose another --out."
        ) from None
    return handle


def _drop_torn_line(path: Path) -> None:
    """Cut a last line that has no newline: its request is measured again on --resume."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:  # block by block from the end: a day's log is larger than what memory is for
            start = max(0, end - _BLOCK_BYTES)
            file.seek(start)
            at = file.read(end - start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        if end < size:
            file.truncate(end)
