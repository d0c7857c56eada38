"""A data folder as a user has one: runs of all kinds, a plan, a decision, a calibration."""

import json
import random
from pathlib import Path

from servefit.calibrate.calibration import Calibration, save_calibration
from servefit.physics.steptime import StepTime
from servefit.records import Finding, RequestRecord, Run, RunHeader, RunWriter, header_to_json, row_to_json

SCRIPT = '<script>document.title="owned"</script><img src=x onerror="document.title=1">'


def rows(
    n: int, *, isl: int = 12, osl: int = 24, ttft_s: float = 0.145, itl_s: float = 0.0224, seed: int = 0, text=None
):
    """`n` requests that went well, one every 100 ms, with jitter from a seed."""
    rng = random.Random(seed)
    out = []
    for i in range(n):
        due = i * 0.1
        at = due + ttft_s * rng.uniform(0.9, 1.4)
        chunks = [at]
        for _ in range(osl - 1):
            at += itl_s * rng.uniform(0.9, 1.15) * (6 if rng.random() < 0.01 else 1)
            chunks.append(at)
        out.append(
            RequestRecord(
                id=str(i), status="ok", due_s=due, sent_s=due, chunk_s=tuple(chunks), done_s=at, isl_asked=isl, isl=isl,
                isl_source="usage", osl_asked=osl, osl=osl, osl_source="usage", finish_reason="length", http_status=200,
                text=text,
            )
        )  # fmt: skip
    return out


def failed(id_: str, status: str, error: str, *, expected: bool = False) -> RequestRecord:
    """A request that failed."""
    return RequestRecord(
        id=id_, status=status, due_s=0.0, sent_s=0.0, done_s=0.2, error=error, expected_failure=expected
    )


def header(target: str, *, url: str = "http://127.0.0.1:8080", started: str = "2026-11-30T10:00:00+00:00", **more):
    """The header of a measured run."""
    values = {
        "kind": "measured", "tool_version": "0.1.0", "started": started, "target": target, "model": "llama-3.1-8b",
        "endpoint": {"url": url, "dialect": "openai-chat", "paid": not url.startswith("http://127")},
        "load": {"kind": "closed", "concurrency": 2, "n": 20, "isl": 12, "osl": 24}, "workload_sha256": "a" * 64,
        "finished": True,
    }  # fmt: skip
    return RunHeader(**(values | more))


def put(run: Run, folder: Path) -> None:
    """The run in its folder, without the syncing to disk that a measurement needs."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(header_to_json(run.header)))
    (folder / "requests.jsonl").write_text("".join(row_to_json(row) + "\n" for row in run.rows))


def make(folder: Path, *, extra: int = 0) -> Path:
    """Fill `folder`: short and long, local and hosted, failures expected and not, a script tag, a damaged run."""
    runs = folder / "runs"
    put(Run(header=header("laptop"), rows=tuple(rows(20))), runs / "short")
    long = header("laptop", started="2026-11-30T10:05:00+00:00", workload_sha256="b" * 64, verdict="suspect", findings=(
        Finding(code="prompt_cut", level="suspect", message="The prompt was cut.", hint="Raise the context."),),
        load={"kind": "closed", "concurrency": 1, "n": 10, "isl": 8000, "osl": 24})  # fmt: skip
    put(Run(header=long, rows=tuple(rows(10, isl=8000, ttft_s=4.21, itl_s=0.0241, seed=1))), runs / "long")
    hosted = header("gpt-oss-20b", url="https://api.example.test/v1", started="2026-11-30T10:10:00+00:00")
    put(Run(header=hosted, rows=(*rows(8, seed=2), failed("8", "rate_limited", "429: slow down"))), runs / "hosted")
    gone = header("old-model", url="https://api.example.test/v1", started="2026-11-30T10:11:00+00:00")
    put(Run(header=gone, rows=(failed("0", "not_found", "no such model", expected=True),)), runs / "expected")
    evil = header(SCRIPT, model=SCRIPT, started="2026-11-30T10:12:00+00:00")
    put(
        Run(header=evil, rows=(*rows(3, seed=3, text=SCRIPT), failed("9", "bad_stream", SCRIPT))),
        runs / f"{SCRIPT[:8]}x y&z",
    )
    broken = runs / "broken"
    put(Run(header=header("laptop"), rows=tuple(rows(2))), broken)
    (broken / "requests.jsonl").write_text('{"id": nonsense}\n{"id":"1","status":"ok","due_s":0}\n')
    (runs / "headless").mkdir()
    (runs / "headless" / "run.json").write_text("{")
    for i in range(extra):
        put(Run(header=header(f"many-{i}"), rows=tuple(rows(1, osl=2))), folder / "many" / f"{i:04}")
    step = StepTime(const_s=0.012, per_seq_s=0.0002, per_kv_tok_s=2e-7, per_prefill_tok_s=2e-4, source="measured")
    save_calibration(
        Calibration(step=step, device="a100-80gb", engine="llama.cpp", model="llama-3.1-8b"),
        folder / "cal" / "calibration.json",
    )
    (folder / "check.json").write_text(json.dumps({"memory_bytes": 36e9, "bandwidth_bytes_per_s": 273e9}))
    return folder


def growing(folder: Path, n: int = 40) -> RunWriter:
    """A run that is being measured: the writer of a run with three of `n` rows."""
    head = header("laptop", finished=False, load={"kind": "closed", "concurrency": 2, "n": n, "isl": 12, "osl": 24})
    writer = RunWriter(folder / "runs" / "now", head)
    for row in rows(3, seed=4):
        writer.append(row)
    return writer
