"""`servefit simulate`: what would this one configuration do under this load?"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from servefit.cli import amounts, names
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.engine.config import EngineConfig
    from servefit.objectives import Summary
    from servefit.physics.steptime import StepTime
    from servefit.records import Run
    from servefit.workload.workload import Workload


@click.command(name="simulate")
@click.option("--device", shell_complete=names.devices, help="Catalogue name or device TOML. See servefit devices.")
@click.option("--calibration", type=click.Path(path_type=Path), help="Step time as measured, instead of a device.")
@click.option("--model", shell_complete=names.models, help="Catalogue name, config.json or .gguf. See servefit models.")
@click.option("--precision", help="bf16, fp8, awq, q4_k_m ...  [default: the model's own]")
@click.option("--kv-bits", type=amounts.BITS, default=16, show_default=True, help="Bits of a KV cache value.")
@click.option("--tp", type=amounts.SPREAD, default=1, show_default=True, help="GPUs that one copy is spread over.")
@click.option(
    "--engine", "constants", help="Published engine constants, or 'datasheet' for none.  [default: the device's]"
)
@click.option(
    "--policy",
    help="none, static, dynamic, continuous, chunked.  [default: chunked; with --calibration, as the server batched]",
)
@click.option(
    "--seats",
    type=amounts.SEATS,
    help="Requests in the running batch.  [default: 64; with --calibration, as it was seen]",
)
@click.option(
    "--budget-tok", type=amounts.TOK, help="Tokens of one step.  [default: 2048; with --calibration, as it was seen]"
)
@click.option(
    "--kv-blocks", type=amounts.BLOCKS, help="KV blocks of the engine.  [default: what the device's memory leaves]"
)
@click.option(
    "--block-tok", type=amounts.TOK, help="Tokens of one KV block.  [default: 16; with --calibration, the server's]"
)
@click.option(
    "--timeout", "timeout_s", type=amounts.SECONDS, help="dynamic: seconds to wait for company.  [default: 0.05]"
)
@click.option("--prefix-cache", is_flag=True, help="Shared prefixes, and what was preempted, are found again.")
@click.option("--draft-tok", type=amounts.DRAFT_TOK, help="Speculative decoding: tokens drafted per step.")
@click.option(
    "--accept",
    type=amounts.FRAC,
    help="Speculative decoding: chance that one is right.  [default: 0.7]",
)
@click.option("--replicas", type=amounts.COPIES, default=1, show_default=True, help="Copies behind a router.")
@click.option(
    "--router", default="round-robin", show_default=True, help="round-robin, least-outstanding, prefix-aware."
)
@click.option(
    "--workload", "workload_file", type=click.Path(path_type=Path), help="A workload file; flags win over it."
)
@click.option("--rate", type=amounts.PER_S, help="Requests per second, arriving whatever happens.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant", "gamma", "burst"]),
    help="How they arrive.  [default: poisson]",
)
@click.option("--concurrency", type=amounts.USERS, help="Users, each sending again when answered.")
@click.option("--trace", type=click.Path(), help="Azure CSV, Mooncake JSONL or a run folder.")
@click.option("-n", "n", type=amounts.REQUESTS, help="Requests.  [default: 100, or the whole trace]")
@click.option("--isl", type=amounts.TOK, help="Prompt tokens.  [default: 256]")
@click.option("--osl", type=amounts.TOK, help="Output tokens.  [default: 64]")
@click.option("--seed", type=amounts.SEED, help="[default: 0]")
@click.option(
    "--horizon", "horizon_s", type=amounts.WAIT_S, help="Stop after so many seconds; what is not finished is a miss."
)
@click.option("--out", type=click.Path(path_type=Path), help="Save the run in this folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(*, out: Path | None, as_json: bool, horizon_s: float | None, **given: Any) -> None:  # fmt: skip
    """What would this one configuration do under this load? The same rows and the same summary as a measurement.

    For example

    servefit simulate --device rtx-4090 --model llama-3.1-8b --seats 64 --rate 3 -n 1000 --isl 512 --osl 256
    """
    from servefit.cli.simulate_long import is_long, run_long
    from servefit.objectives import failures_as_inf, summarize
    from servefit.records import save_run

    if horizon_s is not None and not horizon_s > 0:
        raise ServefitError(f"--horizon is {horizon_s}.", hint="Seconds above 0.")
    workload = _workload(given)
    step, config, labels = read_engine(given)
    if out is None and horizon_s is None and is_long(workload, config, given["router"]):
        counted = run_long(workload, config, step, given, labels)
        if counted is not None:
            run, summary, as_inf, preemptions = counted
            return _emit(run, summary, as_inf, None) if as_json else _show(run, summary, preemptions, None)
    run = run_one(workload, config, step, given, horizon_s=horizon_s, labels=labels)
    if labels["engine"].get("budget_source") == "assumed":
        run = _with_assumed_budget(run, config)
    if out is not None:
        save_run(run, out)
    if as_json:
        names: tuple[Literal["ttft_s", "tpot_s", "e2e_s"], ...] = ("ttft_s", "tpot_s", "e2e_s")
        as_inf = {name: {p: failures_as_inf(run, name, p) for p in (50, 95, 99)} for name in names}
        _emit(run, summarize(run), as_inf, out)
    else:
        _show(run, summarize(run), sum(row.preempted or 0 for row in run.rows), out)
    return None


def _workload(given: dict[str, Any]) -> "Workload":
    """The load: a file where there is one, flags over it."""
    from servefit.workload.arrivals import check_workload
    from servefit.workload.workload import Lengths, Workload, load_workload

    file = given["workload_file"]
    base = load_workload(file) if file else Workload()
    changes: dict[str, Any] = {
        "rate_req_per_s": given["rate"],
        "concurrency": given["concurrency"],
        "trace": given["trace"],
        "arrivals": given["arrivals"],
        "seed": given["seed"],
        "n": given["n"],
        "isl": None if given["isl"] is None else Lengths(mean=given["isl"]),
        "osl": None if given["osl"] is None else Lengths(mean=given["osl"]),
    }
    if any(given[key] is not None for key in ("rate", "concurrency", "trace")):
        base = replace(base, rate_req_per_s=None, concurrency=None, trace=None, stages=())
    if given["trace"] is not None and given["n"] is None:
        changes["n"] = 1 << 40
    workload = replace(base, **{key: value for key, value in changes.items() if value is not None})
    check_workload(workload)
    return workload


def read_engine(given: dict[str, Any]) -> tuple["StepTime", "EngineConfig", dict[str, Any]]:
    """The step time, the settings, and what the run's header says about both."""
    from servefit.engine.config import EngineConfig, Speculation, check_config

    blocks = given["kv_blocks"]
    if given["calibration"] is not None:
        if given["device"] is not None:
            raise ServefitError("A device and a calibration were both given.", hint="Leave one of them out.")
        step, config, labels = _from_calibration(given["calibration"], given["model"], _switches(given, blocks))
    else:
        given = {**given, **{name: value for name, value in _DEFAULTS.items() if given[name] is None}}
        step, labels, pool = _from_catalogue(given)
        config = EngineConfig(**_switches(given, pool if blocks is None else blocks))
    if given["draft_tok"] is not None:
        accept = _ACCEPT_FRAC if given["accept"] is None else given["accept"]
        config = replace(config, speculation=Speculation(draft_tok=given["draft_tok"], accept_frac=accept))
    elif given["accept"] is not None:
        raise ServefitError(
            f"--accept {given['accept']:g} says nothing without --draft-tok.",
            hint="Add --draft-tok 4, or leave it out.",
        )
    check_config(config)
    return step, config, labels


_ACCEPT_FRAC = 0.7
_DEFAULTS = {"policy": "chunked", "seats": 64, "budget_tok": 2048, "block_tok": 16, "timeout_s": 0.05}


def _switches(given: dict[str, Any], blocks: int | None) -> dict[str, Any]:
    """The engine's settings that were said."""
    said = {name: given[name] for name in _DEFAULTS} | {
        "kv_blocks": blocks,
        "prefix_cache": given["prefix_cache"] or None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _from_calibration(
    path: Path, model: str | None, switches: dict[str, Any]
) -> tuple["StepTime", "EngineConfig", dict[str, Any]]:
    """The step time on average, and the server as it ran, with what was said otherwise."""
    from servefit.calibrate.calibration import load_calibration, mean_step
    from servefit.calibrate.recognise import server_config
    from servefit.files import sha256

    found = load_calibration(path)
    step = mean_step(found)
    labels: dict[str, Any] = {
        "target": str(found.device),
        "model": model or str(found.model),
        "inputs": {str(path): sha256(path)},
        "engine": {"step_source": step.source, "step_origin": step.origin},
    }
    config = server_config(found, **switches)
    if (
        config.policy in ("chunked", "continuous")
        and "budget_tok" not in switches
        and found.batching.budget_tok is None
    ):
        labels["engine"]["budget_source"] = "assumed"
    return step, config, labels


def _with_assumed_budget(run: "Run", config: "EngineConfig") -> "Run":
    """The run with a note that nobody knows the budget of a step: the calibration did not see it, nor was it said."""
    from servefit.records import Finding

    note = Finding(
        code="budget_assumed",
        level="note",
        message=f"The calibration does not know how many tokens a step may hold: {config.budget_tok:,} are assumed.",
        hint="Name the server's with --budget-tok.",
    )
    return replace(run, header=replace(run.header, findings=(*run.header.findings, note)))


def _from_catalogue(given: dict[str, Any]) -> tuple["StepTime", dict[str, Any], int]:
    from servefit.facts.devices import find_device
    from servefit.facts.models import find_model
    from servefit.physics.constants import constants_for, find_constants
    from servefit.physics.memory import kv_pool
    from servefit.physics.roofline import roofline_step

    if given["device"] is None or given["model"] is None:
        missing = "device" if given["device"] is None else "model"
        raise ServefitError(
            f"No {missing} was named.", hint=f"--{missing} NAME (see servefit {missing}s), or --calibration FILE."
        )
    device, model = find_device(given["device"]), find_model(given["model"])
    name = given["constants"]
    constants = None if name == "datasheet" else find_constants(name) if name else constants_for(device)
    step = roofline_step(model, device, given["precision"], given["kv_bits"], given["tp"], constants)
    pool = kv_pool(
        model, device, given["precision"], given["budget_tok"], seats=given["seats"], kv_bits=given["kv_bits"],
        block_tok=given["block_tok"], tp=given["tp"], logged_blocks=given["kv_blocks"],
    )  # fmt: skip
    engine = {
        "step_source": step.source,
        "step_origin": step.origin,
        "precision": given["precision"],
        "tp": given["tp"],
    }
    return step, {"target": device.name, "model": model.name, "engine": engine}, pool.blocks


def run_one(
    workload: "Workload",
    config: "EngineConfig",
    step: "StepTime",
    given: dict[str, Any],
    *,
    horizon_s: float | None,
    labels: dict[str, Any],
) -> "Run":
    from servefit import __version__
    from servefit.engine.fleet import check_router, simulate_fleet_run
    from servefit.engine.simulate import simulate_run

    check_router(given["router"])
    if given["replicas"] == 1:
        return simulate_run(workload, config, step, horizon_s=horizon_s, tool_version=__version__, **labels)
    return simulate_fleet_run(
        workload, config, step, replicas=given["replicas"], router=given["router"], horizon_s=horizon_s,
        tool_version=__version__, **labels,
    )  # fmt: skip


def _emit(run: "Run", summary: "Summary", as_inf: Mapping[str, dict[int, float | None]], out: Path | None) -> None:
    from servefit.cli.show import emit_json, jsonable

    header = run.header
    figures = jsonable(summary)
    figures["findings"] = [asdict(f) for f in header.findings]
    figures["failures_as_inf"] = {name: {f"p{p}": at for p, at in found.items()} for name, found in as_inf.items()}
    emit_json({
        "run": None if out is None else str(out),
        "target": header.target,
        "model": header.model,
        "engine": header.engine,
        "load": header.load,
        "clock": header.clock,
        "inputs": header.inputs,
        "workload_sha256": header.workload_sha256,
        "schedule_sha256": header.schedule_sha256,
        "summary": figures,
    })  # fmt: skip


def _show(run: "Run", summary: "Summary", preempted: int, out: Path | None) -> None:
    from servefit.cli.show import plain, table
    from servefit.units import fmt, fmt_percent, fmt_s

    header, engine = run.header, run.header.engine
    blocks = "unlimited KV" if engine["kv_blocks"] is None else f"{engine['kv_blocks']:,} KV blocks"
    click.echo(plain(
        f"{header.target}: {header.model}, {engine['policy']}, {engine['seats']} seats, {blocks}, {summary.n:,} requests"
    ))  # fmt: skip
    rows = []
    for name in ("TTFT", "ITL", "TPOT", "E2E"):
        values = getattr(summary, f"{name.lower()}_s")
        rows.append(
            [name, *(fmt_s(getattr(values, key)) for key in ("p50", "p95", "p99", "mean", "max")), fmt(values.n)]
        )
    table(["", "p50", "p95", "p99", "mean", "max", "n"], rows, right=(1, 2, 3, 4, 5, 6))
    click.echo(
        f"{fmt(summary.output_tok_per_s, 1)} output tok/s, {fmt(summary.req_per_s, 2)} req/s over {fmt_s(summary.duration_s)}; "
        f"finished {summary.ok:,} of {summary.n:,} ({fmt_percent(summary.ok / summary.n if summary.n else None)})"
    )
    if preempted:
        click.echo(f"{preempted:,} preemptions: the KV cache was full; what users had seen stayed seen.")
    click.echo(plain(f"step time: {engine.get('step_source')}, {engine.get('step_origin')}"))
    for finding in header.findings:
        click.echo(plain(f"{finding.level}: {finding.message} {finding.hint}"))
    if out is not None:
        click.echo(plain(f"run: {out}"))
    click.echo("next: servefit plan (every device, policy and batch limit against your targets)")
