"""A measurement: from an endpoint and a workload to a run on disk, one row a request, each written as it ends."""

import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns
from typing import Any

from servefit import __version__
from servefit.errors import ServefitError
from servefit.files import read_json
from servefit.measure.health import CLIENT_CODES, judge_run, worst
from servefit.measure.kept import Kept
from servefit.measure.load import Load, Options, Prepared, Progress
from servefit.measure.overhead import own_overhead
from servefit.measure.plausible import about_physics, about_this_machine, known_shape
from servefit.measure.probe import (
    NO_NAME,
    Endpoint,
    accept,
    complain,
    discover,
    learn_tokens,
    told_context,
    with_context,
)
from servefit.measure.prompts import PromptMaker
from servefit.measure.server_side import ask_metrics, difference
from servefit.records import (
    Finding,
    RequestRecord,
    Run,
    RunHeader,
    RunWriter,
    header_from_json,
    iter_rows,
    refuse_used,
    row_from_json,
)
from servefit.wire.address import is_loopback
from servefit.workload.arrivals import LONGEST_S
from servefit.workload.drawn import Drawn, Ids, extent_of, left_of, requests_of
from servefit.workload.requests import Request
from servefit.workload.workload import Workload, workload_sha256

__all__ = ["Load", "Options", "Prepared", "Progress", "default_folder", "measure", "prepare"]

LONGEST_PROMPT_TOK = 20_000_000
"""Twice the longest context of any model of 2026; a longer prompt would only fill this machine's memory."""


def measure(
    endpoint: Endpoint,
    workload: Workload,
    options: Options,
    *,
    requests: Sequence[Request] | None = None,
    known: Prepared | None = None,
) -> Run:
    """The run of `workload` on `endpoint`, kept in `options.out` row by row.

    `requests` are sent instead of the workload's own schedule (the workload still says closed or open loop); `known` is
    what an earlier `prepare` learned of the endpoint, which is then not asked again.

    Raises CannotMeasure where the first request shows that there is nothing to measure; KeyboardInterrupt is passed on
    after what was measured is on disk with its header.
    """
    requests = requests_of(workload) if requests is None else requests
    refuse_second(options)
    refuse_parts(options)
    start_ns = options.zero_ns or options.begin_ns or monotonic_ns()
    if known is None:
        prepared = prepare(endpoint, workload, requests, options, start_ns)
    else:
        prepared = replace(known, rows=[], start_ns=start_ns)
    header = header_of(prepared, workload, requests)
    with RunWriter(options.out, header, resume=options.resume) as writer:
        done: Ids | None = None
        base_s = 0.0
        if options.resume:
            done, base_s = already(options.out, header)
        for row in prepared.rows:
            writer.append(moved(row, base_s))
            if options.settled is not None:
                options.settled(row)
        talks = _talks(requests)
        requests = left_of(requests, done.has if done else None)
        load = Load(prepared, workload, requests, options, writer, base_s=base_s, talks=talks)
        interrupted = False
        before = ask_metrics(prepared.endpoint)
        try:
            load.drive()
        except KeyboardInterrupt:
            interrupted = True
            load.cancel("cut off by Ctrl-C")
        finally:
            load.close()
        health = load.health()
        header = replace(header, server=difference(before, ask_metrics(prepared.endpoint)) if before else {})
        kept = load.kept or Kept(iter_rows(options.out), folder=options.out)
        final = judge_run(kept.run(header), health, workload, interrupted=interrupted)
        final = with_findings(final, physics_of(kept.run(header), prepared.endpoint, options))
        if load.capped:
            word = Finding(code="capped", level="note", message=f"The spend cap ended the load after {load.recorded} requests.",
                           hint="Raise [caps] in servefit.toml, or ask for less.")  # fmt: skip
            final = replace(final, findings=(*final.findings, word))
        if options.until is not None:
            final = replace(final, findings=(*final.findings, options.until.finding()))
        final = with_findings(final, said_before(options, final))
        final = replace(final, finished=not interrupted)
        writer.finish(final, finished=not interrupted)
    if interrupted:
        raise KeyboardInterrupt
    return kept.run(final)


def refuse_second(options: Options) -> None:
    """Raise ServefitError where the folder holds a run that is not to be resumed; said before anything is sent."""
    if not options.resume or not (options.out / "run.json").exists():
        refuse_used(options.out)


def parts_folder(out: Path) -> Path:
    """Where clients on this machine keep their rows until they are merged."""
    return out / "parts"


def refuse_parts(options: Options) -> None:
    """Raise ServefitError where one client would go on with what several were killed at: their rows are not merged yet."""
    if options.resume and any(parts_folder(options.out).glob("*/run.json")):
        raise ServefitError(
            f"{options.out} was measured by several workers, whose rows are not merged yet.",
            hint="Resume it with --workers, as it was begun.",
        )


def _talks(requests: Sequence[Request]) -> dict[int, list[Request]]:
    """The turns of each session, in order; empty where there are no sessions."""
    out: dict[int, list[Request]] = {}
    for request in () if isinstance(requests, Drawn) else requests:
        if request.session is not None:
            out.setdefault(request.session, []).append(request)
    return out


def prepare(
    endpoint: Endpoint, workload: Workload, requests: Sequence[Request], options: Options, start_ns: int
) -> Prepared:
    """Ask what there is to know: engine, accepted fields, the cold first request, tokens a word."""
    salt = secrets.token_hex(4)
    maker = PromptMaker(salt=salt) if options.prompt is None else PromptMaker(source="given", fixed=options.prompt)
    if not requests:
        raise ServefitError("The workload has no request.", hint="Set n to 1 or more.")
    extent = extent_of(requests)
    if extent.last_due_s > LONGEST_S:
        raise ServefitError(f"The last request would be due after {LONGEST_S:g} seconds.", hint="Raise the rate.")
    if extent.isl > LONGEST_PROMPT_TOK:
        raise ServefitError(f"A prompt of {extent.isl:,} tokens was asked for.",
                            hint=f"At most {LONGEST_PROMPT_TOK:,}: no context is longer.")  # fmt: skip
    if not options.probe:
        asked = replace(endpoint, model=endpoint.model or NO_NAME)
        return Prepared(endpoint=asked, maker=maker, start_ns=start_ns)
    _tell(options, Progress(step="looking at the server"))
    try:
        found = with_context(discover(endpoint), extent.context_tok)
        if workload.shared_prefix_tok or options.prompt is not None:  # caching is the subject: it is not switched off
            found = replace(found, fields={k: v for k, v in found.fields.items() if k != "cache_prompt"})
        first = replace(requests[0], id=-1)
        _tell(options, Progress(step="first request (cold)"))
        found, cold = accept(found, maker, first, limits=options.limits, seed=workload.seed, start_ns=start_ns)
        complain(found, cold)
        found = told_context(found)
        _tell(options, Progress(step="warming up"))
        maker, warm = learn_tokens(
            found, limits=options.limits, seed=workload.seed, start_ns=start_ns, fixed=options.prompt
        )
    except ServefitError:
        if not endpoint.expect_failure:
            raise
        return Prepared(endpoint=replace(endpoint, model=endpoint.model or NO_NAME), maker=maker, start_ns=start_ns)
    _tell(options, Progress(step="weighing our own overhead"))
    overhead = own_overhead(kernel_clock=options.kernel_clock)
    return Prepared(endpoint=found, maker=maker, overhead=overhead, rows=[cold, *warm], start_ns=start_ns)


def with_findings(header: RunHeader, found: Sequence[Finding]) -> RunHeader:
    """The header with more findings, its verdict the worst of all."""
    findings = (*header.findings, *found)
    return replace(header, findings=findings, verdict=worst(findings))


def said_before(options: Options, header: RunHeader) -> list[Finding]:
    """What a resumed run's header had against its client: the rows that it was about are still there."""
    if not options.resume:
        return []
    path = options.out / "run.json"
    now = {finding.code for finding in header.findings}
    old = header_from_json(read_json(path), path).findings
    return [f for f in old if f.code in CLIENT_CODES and f.level != "note" and f.code not in now]


def physics_of(run: Run, endpoint: Endpoint, options: Options) -> list[Finding]:
    """What cannot be true on the device that was named, where the model is one that we know."""
    device = options.device
    if device is None and not (is_loopback(endpoint.address) and options.probe):
        return []
    shape = known_shape([endpoint.model, endpoint.name])
    if device is None:
        return [] if shape is None else about_this_machine(run, shape, options.precision)
    if shape is None:
        return [Finding(code="physics_unknown", level="note",
                        message=f"'{endpoint.model}' is in no catalogue, so its times were not held against the device.")]  # fmt: skip
    return about_physics(run, device, shape, options.precision)


def _tell(options: Options, progress: Progress) -> None:
    if options.progress is not None:
        options.progress(progress)


def moved(row: RequestRecord, by_s: float) -> RequestRecord:
    """The row with its times moved: a resumed run goes on after its last end."""
    if not by_s:
        return row

    def later(at: float | None) -> float | None:
        return None if at is None else at + by_s

    return replace(
        row,
        id=f"{row.id}-resumed-{round(by_s)}",
        due_s=row.due_s + by_s,
        sent_s=later(row.sent_s),
        headers_s=later(row.headers_s),
        done_s=later(row.done_s),
        chunk_s=tuple(t + by_s for t in row.chunk_s),
    )


def already(folder: Path, header: RunHeader) -> tuple[Ids, float]:
    """Ids of the load rows that a run to be resumed holds, and when its last ended. Raises ServefitError."""
    _drop_cut_off(folder / "requests.jsonl")
    path = folder / "run.json"
    kept = header_from_json(read_json(path), path)
    for name in ("workload_sha256", "schedule_sha256", "model"):
        if getattr(kept, name) != getattr(header, name):
            raise ServefitError(
                f"{folder} holds another run: its {name.replace('_', ' ')} differs.",
                hint="Resume with the same target and load, or name another folder with --out.",
            )
    done = Ids()
    last_s: float | None = None
    for row in iter_rows(folder):
        end_s = row.done_s or row.due_s
        last_s = end_s if last_s is None else max(last_s, end_s)
        if row.phase == "load" and row.status != "cancelled":
            done.add(row.id)
    return done, (0.0 if last_s is None else last_s + 1.0)


def _drop_cut_off(path: Path) -> None:
    """Take out the rows whose requests were cut off by us: a resumed run sends them again.

    Those of one client stand at the end; several clients do not stop at the same moment, so others' rows may follow.
    """
    with path.open("r+b") as file:  # in place, as the run's writer has it open
        first: int | None = None
        after: list[bytes] = []
        at = 0
        for line in file:
            if _is_cut_off(line):
                first = at if first is None else first
            elif first is not None:
                after.append(line)
            at += len(line)
        if first is not None:
            file.seek(first)
            file.writelines(after)
            file.truncate()


def _is_cut_off(line: bytes) -> bool:
    if b'"cancelled"' not in line:
        return False
    try:
        return row_from_json(line.decode()).status == "cancelled"
    except (ValueError, TypeError):
        return False  # damaged: `load_run` says so


def header_of(prepared: Prepared, workload: Workload, requests: Sequence[Request]) -> RunHeader:
    """What is known of a run before its load begins."""
    endpoint = prepared.endpoint
    extent = extent_of(requests)
    load: dict[str, Any] = {
        "kind": "closed" if workload.concurrency is not None else "trace" if workload.trace else "open",
        "n": len(requests),
        "concurrency": workload.concurrency,
        "rate_req_per_s": workload.rate_req_per_s,
        "arrivals": workload.arrivals if workload.concurrency is None else None,
        "stages": [list(stage) for stage in workload.stages] or None,
        "isl": extent.isl_mean if workload.trace else workload.isl.mean,
        "osl": extent.osl_mean if workload.trace else workload.osl.mean,
        "prompt_source": prepared.maker.source,
        "prompt_salt": prepared.maker.salt,
        "tok_per_word": prepared.maker.tok_per_word,
        "overhead_tok": prepared.maker.overhead_tok,
    }
    return RunHeader(
        kind="measured",
        tool_version=__version__,
        started=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        target=endpoint.name,
        model=endpoint.model,
        engine={k: v for k, v in endpoint.engine.items() if v not in {None, ""}},
        endpoint={
            "url": endpoint.url.base,
            "dialect": endpoint.dialect.name,
            "accepted": sorted(endpoint.fields),
            "refused": list(endpoint.dropped),
            "paid": endpoint.paid,
            "connections": "fresh" if endpoint.fresh else "kept alive",
            "resolve_s": endpoint.address.resolve_s,
        },
        machine=_machine(),
        served_context_tok=endpoint.context_tok,
        load=load,
        workload_sha256=workload_sha256(workload),
        schedule_sha256=extent.sha256,
        seed=workload.seed,
    )


def _machine() -> dict[str, Any]:
    import os
    import platform

    out: dict[str, Any] = {"system": platform.system(), "cores": os.cpu_count(), "python": platform.python_version()}
    with contextlib.suppress(OSError, AttributeError):
        out["load_1min"] = os.getloadavg()[0]
    return out


def default_folder(target: str, root: Path) -> Path:
    """A new folder name below `root`: the time and the target, so that runs sort as they were made."""
    slug = "".join(c if c.isalnum() else "-" for c in target.removeprefix("http://").removeprefix("https://")).strip(
        "-"
    )
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{slug[:40] or 'run'}"
    folder, number = root / name, 2
    while folder.exists():
        folder, number = root / f"{name}-{number}", number + 1
    return folder
