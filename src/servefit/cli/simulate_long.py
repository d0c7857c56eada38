"""`servefit simulate` where a row a request would not fit: counted piece by piece, the same figures, percentiles from bins."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli.progress import progress
from servefit.cli.show import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from servefit.engine.config import EngineConfig
    from servefit.objectives import Summary
    from servefit.physics.steptime import StepTime
    from servefit.records import Run
    from servefit.workload.columns import Columns
    from servefit.workload.workload import Workload

LONG = 50_000
"""Requests up to which every token's time is kept and every figure is exact: with answers of 256 tokens that takes 0.7 GB."""


def is_long(workload: "Workload", config: "EngineConfig", router: str) -> bool:
    """Whether this load has more requests than rows are kept of, and can be counted piece by piece."""
    from servefit.engine.flow import can_flow
    from servefit.engine.jump import kernel_compiled
    from servefit.workload.columns import expected, flows
    from servefit.workload.traces import has_more_lines

    if workload.trace is not None:
        long = workload.n > LONG and has_more_lines(Path(workload.trace), LONG)
    else:
        long = expected(workload) > LONG and flows(workload)
    if long and kernel_compiled() is None:
        _note(
            f"without servefit[fast] more than {LONG:,} requests are held in memory as a whole, "
            "some 0.8 kB and 54 bytes a token of its answer each."
        )
    return long and can_flow(config, router)


def _note(text: str) -> None:
    click.echo(plain(f"note: {text}"), err=True)


def run_long(
    workload: "Workload", config: "EngineConfig", step: "StepTime", given: dict[str, Any], labels: dict[str, Any]
) -> "tuple[Run, Summary, dict[str, dict[int, float | None]], int] | None":
    """A run without rows, its summary, its percentiles with failures as +inf, and how often memory was full.

    None, which is said on stderr, for a trace that turns out to need reading as a whole.
    """
    from servefit.workload.columns import NotInPieces

    try:
        return _run_long(workload, config, step, given, labels)
    except NotInPieces as why:
        _note(f"{workload.trace} {why}: all of it is held in memory.")
        return None


def _told(
    drawn: "Iterable[Columns]", everything: int, on_done: "Callable[[int, int], None] | None"
) -> "Iterator[Columns]":
    """The same pieces; how many requests were asked for so far is told as each is."""
    done = 0
    for piece in drawn:
        if on_done is not None:
            on_done(done, max(done, everything))
        done += len(piece)
        yield piece


def _run_long(
    workload: "Workload", config: "EngineConfig", step: "StepTime", given: dict[str, Any], labels: dict[str, Any]
) -> "tuple[Run, Summary, dict[str, dict[int, float | None]], int]":
    import hashlib

    from servefit import __version__
    from servefit.engine.flow import PIECE, simulate_flow
    from servefit.engine.simulate import findings_for, run_of
    from servefit.objectives import Summary
    from servefit.records import Finding
    from servefit.workload.columns import expected, hashed, pieces

    digest = hashlib.sha256()
    drawn = hashed(pieces(workload, PIECE), digest)
    with progress(quiet=not sys.stderr.isatty()) as on_done:
        seen = _told(drawn, round(expected(workload)), on_done)
        found = simulate_flow(seen, config, step, replicas=given["replicas"], router=given["router"])
    where = {"replicas": given["replicas"], "router": given["router"]} if given["replicas"] > 1 else {}
    labels = {**labels, "engine": where | labels.get("engine", {})}
    run = run_of((), (), workload, config, step, tool_version=__version__, **labels)
    binned = Finding(
        code="binned", level="note", message=f"Beyond {LONG:,} requests percentiles are from bins, within 0.003%.",
        hint="No rows are kept.",
    )  # fmt: skip
    header = replace(
        run.header,
        load=run.header.load | {"n": found.n},
        schedule_sha256=digest.hexdigest(),
        duration_s=found.duration_s,
        findings=(*findings_for(found.n, 0, found.rejected, step), binned),
    )
    run = replace(run, header=header)

    def rate(count: float) -> float | None:
        return count / found.duration_s if found.duration_s > 0 else None

    summary = Summary(
        n=found.n,
        ok=found.finished,
        failed=found.rejected,
        by_status={name: n for name, n in (("ok", found.finished), ("rejected", found.rejected)) if n},
        ttft_s=found.ttft_s,
        itl_s=found.itl_s,
        tpot_s=found.tpot_s,
        e2e_s=found.e2e_s,
        output_tok=found.output_tok,
        input_tok=found.input_tok,
        duration_s=found.duration_s,
        output_tok_per_s=rate(found.output_tok),
        req_per_s=rate(found.finished),
        goodput_req_per_s=rate(found.good),
        goodput_frac=found.good / found.n,
        verdict=header.verdict,
    )
    return run, summary, found.failures_as_inf, found.preemptions
