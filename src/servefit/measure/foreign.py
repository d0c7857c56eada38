"""Result files of other tools as runs. What they do not record stays null, and the run says what that is.

Formats as of late 2026, learnt from each project's public source: vLLM bench serve (`--save-result --save-detailed`), guidellm
(benchmarks.json), aiperf (profile_export.jsonl), llama-bench (`-o json`, `-o jsonl`).
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from servefit import __version__
from servefit.errors import ServefitError
from servefit.files import read_text, sha256
from servefit.records import Finding, RequestRecord, Run, RunHeader

MAX_BYTES = 2 * 2**30
HINT = (
    "servefit reads vLLM bench serve (--save-result --save-detailed), guidellm (benchmarks.json), aiperf "
    "(profile_export.jsonl, or the summary beside it) and llama-bench (-o json)."
)
NOTES = {
    "no_start_times": "It does not record when each request began: all stand at 0, and nothing can be said of arrivals.",
    "gaps_not_recorded": "It does not record the gaps between tokens, only their mean: there is no ITL, and a stall does not show.",
    "no_due_times": "It does not record when a request was due: latencies count from sending, so a late client flatters them.",
    "parts_apart": "It times prompts and answers apart, without a server: there is no TTFT, only the two paces.",
}
"""Codes of what an imported run lacks, as its findings say it."""


def import_file(path: Path) -> tuple[Run, ...]:
    """The runs in the file: one, or one for each load that it holds. Raises ServefitError where it is none of these."""
    text = read_text(path, max_bytes=MAX_BYTES)
    value = _parse(text, path)
    if _is_aiperf_summary(value):
        return import_file(_beside_summary(path))
    for name, (is_it, read) in FORMATS.items():
        if is_it(value):
            try:
                runs = tuple(read(value))
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise ServefitError(f"{path} looks like a file of {name}, but {_said(error)}.", hint=HINT) from None
            if not runs or not any(run.rows for run in runs):
                raise ServefitError(f"{path} is a file of {name} without any request.", hint=_detail_hint(name))
            return tuple(_signed(run, name, path) for run in runs)
    raise ServefitError(f"{path} is no result file that servefit knows.", hint=HINT)


def _parse(text: str, path: Path) -> Any:
    """The JSON value, or the list of a JSONL file's values."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ServefitError(f"{path} is nested too deeply to be a result file.", hint=HINT) from None
    except ValueError:
        pass
    out = []
    lines = [line for line in text.splitlines() if line.strip()]
    for number, line in enumerate(lines, 1):
        try:
            out.append(json.loads(line))
        except (ValueError, RecursionError):
            if number == len(lines) and number > 1:
                break  # a torn last line: the tool was stopped while it wrote
            raise ServefitError(f"{path} is neither JSON nor JSONL: line {number} cannot be read.", hint=HINT) from None
    return out


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return str(error).rstrip(".") or type(error).__name__


def _detail_hint(name: str) -> str:
    return "Save it with --save-detailed: a summary alone is no run." if name == "vLLM bench serve" else HINT


def _signed(run: Run, name: str, path: Path) -> Run:
    header = replace(
        run.header, tool_version=__version__, client={"tool": name}, inputs={path.name: sha256(path)}, finished=True
    )
    return Run(header=header, rows=run.rows)


def _run(
    rows: Iterable[RequestRecord],
    *,
    notes: Sequence[str],
    load: dict[str, Any],
    duration_s: float | None = None,
    **fields: Any,
) -> Run:
    """A run with one finding for each thing that the tool does not record."""
    kept = tuple(sorted(rows, key=lambda row: row.done_s or row.due_s))
    findings = tuple(Finding(code=code, level="note", message=NOTES[code]) for code in notes)
    load = {"n": len(kept)} | {k: v for k, v in load.items() if v is not None}
    header = RunHeader(kind="measured", clock="imported", load=load, findings=findings, duration_s=duration_s, **fields)
    return Run(header=header, rows=kept)


def _number(value: Any) -> float | None:
    """A finite number, None where it is none: tools write NaN, infinity, and "inf" for no limit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < float("inf") else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else round(number)


# --- vLLM bench serve -------------------------------------------------------------------------------------------------


def _is_vllm(value: Any) -> bool:
    return isinstance(value, dict) and {"completed", "request_throughput", "total_output_tokens"} <= value.keys()


def _vllm(value: dict[str, Any]) -> Iterable[Run]:
    """One run: `ttfts` and `itls` (seconds) of each request; a request with an error, or no first token, failed."""
    ttfts = value.get("ttfts") or []
    starts = value.get("start_times") or []
    begin = min(starts, default=0.0)
    rows = []
    for i, ttft in enumerate(ttfts):
        error = _at(value, "errors", i) or None
        due = starts[i] - begin if i < len(starts) else 0.0
        ok = not error and bool(ttft)
        gaps = (_at(value, "itls", i) or []) if ok else []
        chunks = tuple(accumulate(gaps, initial=due + ttft)) if ok else ()
        osl = _whole(_at(value, "output_lens", i))
        rows.append(RequestRecord(
            id=str(i), status="ok" if ok else "http_error", due_s=due, sent_s=due, chunk_s=chunks,
            chunk_tok=_even(osl, len(chunks)), done_s=chunks[-1] if chunks else None,
            isl=_whole(_at(value, "input_lens", i)), isl_source="usage", osl=osl if ok else None, osl_source="usage" if ok else "none",
            error=None if ok else str(error or "no first token")[:500],
            findings=("several_tokens_a_chunk",) if ok and osl and osl > len(chunks) else (),
        ))  # fmt: skip
    rate = _number(value.get("request_rate"))
    users = _whole(value.get("max_concurrency"))
    kind = "closed" if users and rate is None else "open"
    notes = ["no_due_times"] + ([] if starts else ["no_start_times"])
    yield _run(
        rows, notes=notes, duration_s=_number(value.get("duration")), model=str(value.get("model_id") or ""),
        endpoint={"backend": value.get("backend") or value.get("endpoint_type")}, started=value.get("date"),
        load={"kind": kind, "concurrency": users if kind == "closed" else None, "rate_req_per_s": rate,
              "isl": _mean(r.isl for r in rows), "osl": _mean(r.osl for r in rows)},
    )  # fmt: skip


def _at(value: dict[str, Any], name: str, index: int) -> Any:
    found = value.get(name) or []
    return found[index] if index < len(found) else None


def _even(tok: int | None, chunks: int) -> tuple[int, ...] | None:
    """Tokens of each chunk where there are more tokens than chunks, as evenly as can be; None: one each.

    >>> _even(7, 3), _even(3, 3)
    ((3, 2, 2), None)
    """
    if not tok or not chunks or tok <= chunks:
        return None
    return tuple(tok // chunks + (i < tok % chunks) for i in range(chunks))


def _mean(values: Iterable[int | None]) -> int | None:
    seen = [v for v in values if v is not None]
    return round(sum(seen) / len(seen)) if seen else None


# --- guidellm ---------------------------------------------------------------------------------------------------------


def _is_guidellm(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("benchmarks"), list) and bool(value["benchmarks"])


def _guidellm(value: dict[str, Any]) -> Iterable[Run]:
    """A run for each benchmark: requests by status, with first and last token on a wall clock, tokens by `usage`."""
    for benchmark in value["benchmarks"]:
        by_status = benchmark["requests"]
        found = [(status, r) for status in ("successful", "errored", "incomplete") for r in by_status.get(status) or []]
        times = [_guidellm_times(r) for _, r in found]
        starts = [s for t in times if (s := _due(t)) is not None]
        begin = min(starts, default=0.0)
        rows = [
            _guidellm_row(i, status, r, t, begin) for i, ((status, r), t) in enumerate(zip(found, times, strict=True))
        ]
        strategy = ((benchmark.get("config") or {}).get("strategy") or {}) or (
            (benchmark.get("args") or {}).get("strategy") or {}
        )
        users = _whole(strategy.get("streams") or strategy.get("max_concurrency"))
        rate = _number(strategy.get("rate"))
        yield _run(
            rows, notes=["gaps_not_recorded", *([] if any("targeted_start" in t for t in times) else ["no_due_times"])],
            model=str(_deep(benchmark, "config", "backend", "model") or _deep(value, "args", "model") or ""),
            load={"kind": "closed" if users and rate is None else "open", "concurrency": users, "rate_req_per_s": rate,
                  "isl": _mean(r.isl for r in rows), "osl": _mean(r.osl for r in rows)},
        )  # fmt: skip


def _guidellm_times(request: dict[str, Any]) -> dict[str, float]:
    timings = _deep(request, "info", "timings") or _deep(request, "scheduler_info", "request_timings") or {}
    return {k: v for k, v in timings.items() if _number(v) is not None}


def _due(times: dict[str, float]) -> float | None:
    return times.get("targeted_start", times.get("request_start", times.get("resolve_start")))


def _guidellm_row(
    index: int, status: str, request: dict[str, Any], times: dict[str, float], begin: float
) -> RequestRecord:
    due = _due(times)
    due = begin if due is None else due
    sent, end = times.get("request_start"), times.get("request_end", times.get("resolve_end"))
    first = times.get("first_token_iteration", times.get("first_iteration"))
    last = times.get("last_token_iteration", times.get("last_iteration"))
    osl = _whole(request.get("output_tokens") or _deep(request, "output_metrics", "total_tokens"))
    ok = status == "successful" and first is not None
    chunks: tuple[float, ...] = ()
    if ok and first is not None:
        chunks = (first - begin, last - begin) if last is not None and (osl or 2) > 1 else (first - begin,)
    error = None if ok else str(_deep(request, "info", "error") or request.get("error") or status)[:500]
    return RequestRecord(
        id=str(index), status="ok" if ok else "cancelled" if status == "incomplete" else "http_error", due_s=due - begin,
        sent_s=None if sent is None else sent - begin, chunk_s=chunks, chunk_tok=(1, osl - 1) if len(chunks) == 2 and osl else None,
        done_s=None if end is None else end - begin,
        isl=_whole(request.get("prompt_tokens") or _deep(request, "input_metrics", "total_tokens")), isl_source="usage",
        osl=osl if ok else None, osl_source="usage" if ok and osl is not None else "none", error=error,
        findings=("gaps_not_recorded",) if ok else (),
    )  # fmt: skip


def _deep(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


# --- aiperf -----------------------------------------------------------------------------------------------------------


def _is_aiperf(value: Any) -> bool:
    rows = value if isinstance(value, list) else [value]
    return bool(rows) and isinstance(rows[0], dict) and "metadata" in rows[0] and "metrics" in rows[0]


def _is_aiperf_summary(value: Any) -> bool:
    """profile_export_aiperf.json: a block of statistics for each figure, and no request."""
    block = value.get("request_latency") if isinstance(value, dict) else None
    return isinstance(block, dict) and "unit" in block and "avg" in block


def _beside_summary(path: Path) -> Path:
    """The records that aiperf writes beside its summary. Raises ServefitError where they are not there."""
    records = path.with_name(path.stem.removesuffix("_aiperf") + ".jsonl")
    if not records.is_file():
        raise ServefitError(f"{path} is aiperf's summary: percentiles, and no request that they could be checked by.",
                            hint=f"Import the records that aiperf writes beside it: {records.name}.")  # fmt: skip
    return records


def _aiperf(value: Any) -> Iterable[Run]:
    """One run of the records: start and end on a wall clock, TTFT, chunk gaps where they were exported, counts."""
    records = [
        r for r in (value if isinstance(value, list) else [value]) if r["metadata"].get("benchmark_phase") != "warmup"
    ]
    begin = min(r["metadata"]["request_start_ns"] for r in records)
    rows = [_aiperf_row(i, r, begin) for i, r in enumerate(records)]
    notes = ["no_due_times"]
    if any("gaps_not_recorded" in row.findings for row in rows):
        notes.append("gaps_not_recorded")
    yield _run(rows, notes=notes, load={"isl": _mean(r.isl for r in rows), "osl": _mean(r.osl for r in rows)})


def _aiperf_row(index: int, record: dict[str, Any], begin_ns: int) -> RequestRecord:
    meta, metrics, error = record["metadata"], record.get("metrics") or {}, record.get("error")
    start = (meta["request_start_ns"] - begin_ns) / 1e9
    end = (meta["request_end_ns"] - begin_ns) / 1e9 if meta.get("request_end_ns") else None
    ttft, gap = _seconds(metrics, "time_to_first_token"), _seconds(metrics, "inter_token_latency")
    osl = _whole(_deep(metrics, "output_sequence_length", "value"))
    gaps = _deep(metrics, "inter_chunk_latency", "value")
    ok = not error and ttft is not None
    chunks: tuple[float, ...] = ()
    tok: tuple[int, ...] | None = None
    lacks: tuple[str, ...] = ()
    if ok and ttft is not None:
        chunks = (start + ttft,)
        if isinstance(gaps, list):
            scale = _scale(_deep(metrics, "inter_chunk_latency", "unit"))
            chunks = tuple(accumulate((g * scale for g in gaps), initial=start + ttft))
            tok = _even(osl, len(chunks))
        elif gap is not None and osl and osl > 1:
            chunks, tok, lacks = (start + ttft, start + ttft + gap * (osl - 1)), (1, osl - 1), ("gaps_not_recorded",)
    cancelled = bool(meta.get("was_cancelled"))
    said = None if ok else str(_deep(error, "message") or "no first token")[:500]
    return RequestRecord(
        id=str(index), status="ok" if ok else "cancelled" if cancelled else "http_error", due_s=start, sent_s=start, chunk_s=chunks,
        chunk_tok=tok, done_s=end, isl=_whole(_deep(metrics, "input_sequence_length", "value") or _deep(metrics, "error_isl", "value")),
        isl_source="usage", osl=osl if ok else None, osl_source="usage" if ok and osl is not None else "none", error=said,
        http_status=_whole(_deep(error, "code")) if not ok else None, findings=lacks,
    )  # fmt: skip


def _seconds(metrics: dict[str, Any], name: str) -> float | None:
    value = _number(_deep(metrics, name, "value"))
    return None if value is None else value * _scale(_deep(metrics, name, "unit"))


def _scale(unit: Any) -> float:
    known = {"ms": 1e-3, "milliseconds": 1e-3, "ns": 1e-9, "us": 1e-6, "s": 1.0, "sec": 1.0, "seconds": 1.0}
    if unit not in known:
        raise ValueError(f"a time has the unit {unit!r}")
    return known[unit]


# --- llama-bench ------------------------------------------------------------------------------------------------------


def _is_llama_bench(value: Any) -> bool:
    rows = value if isinstance(value, list) else [value]
    return bool(rows) and isinstance(rows[0], dict) and {"n_prompt", "n_gen", "samples_ns"} <= rows[0].keys()


def _llama_bench(value: Any) -> Iterable[Run]:
    """A run for each model and build: a row for each repetition, its time as the server's prefill or decode."""
    tests = value if isinstance(value, list) else [value]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for test in tests:
        key = tuple(
            str(test.get(k)) for k in ("model_filename", "build_commit", "backends", "n_gpu_layers", "n_threads")
        )
        groups.setdefault(key, []).append(test)
    for group in groups.values():
        first = group[0]
        rows = [row for test in group for row in _llama_bench_rows(test)]
        yield _run(
            rows, notes=["parts_apart", "no_start_times"], model=str(first.get("model_type") or first.get("model_filename") or ""),
            engine={"name": "llama.cpp", "build": str(first.get("build_number") or ""), "backend": first.get("backends")},
            machine={"cpu": first.get("cpu_info"), "gpu": first.get("gpu_info")}, started=first.get("test_time"),
            load={"kind": "closed", "concurrency": 1},
        )  # fmt: skip


def _llama_bench_rows(test: dict[str, Any]) -> Iterable[RequestRecord]:
    prompt, answer, depth = test["n_prompt"], test["n_gen"], test.get("n_depth") or 0
    name = f"pp{prompt}" * bool(prompt) + f"tg{answer}" * bool(answer) + f"@d{depth}" * bool(depth)
    part = "prefill_s" if not answer else "decode_s" if not prompt else "total_s"
    for i, ns in enumerate(test["samples_ns"]):
        yield RequestRecord(
            id=f"{name}-{i}", status="ok", due_s=0.0, isl=prompt or None, isl_source="usage" if prompt else "none",
            osl=answer or None, osl_source="usage" if answer else "none", done_s=ns / 1e9, server={part: ns / 1e9},
        )  # fmt: skip


FORMATS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Iterable[Run]]]] = {
    "vLLM bench serve": (_is_vllm, _vllm),
    "guidellm": (_is_guidellm, _guidellm),
    "aiperf": (_is_aiperf, _aiperf),
    "llama-bench": (_is_llama_bench, _llama_bench),
}
"""Name -> (whether a value is of it, how its runs are read)."""
