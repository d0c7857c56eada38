"""`servefit sweep`: raise the load until the targets break: where is the knee, and how many replicas does a peak need?"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import amounts, names, show
from servefit.cli.promises import goodput, goodput_option, latencies, latency_options
from servefit.errors import ServefitError
from servefit.units import fmt, fmt_percent, fmt_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from servefit.objectives import Targets
    from servefit.plan.sweep import LoadKind, Step, Sweep
    from servefit.records import Run
    from servefit.workload.workload import Workload

    OneRun = Callable[[Workload, Path], Run]

ENGINE_DEFAULTS: dict[str, Any] = {
    "kv_bits": 16, "constants": None, "block_tok": 16, "timeout_s": 0.05, "prefix_cache": False,
    "draft_tok": None, "accept": None, "router": "round-robin",
}  # fmt: skip
"""What `simulate` can set and a sweep leaves as it is."""


@click.command(name="sweep", context_settings={"show_default": True})
@click.argument("target", required=False)
@click.option("--users", metavar="LOADS", help="Closed loop, C users each: auto, 4..64, or 1,2,4,8.")
@click.option("--rates", metavar="LOADS", help="Open loop, requests a second: auto, 0.5..8, or 1,2,4.")
@latency_options(95)
@goodput_option(rate=False)
@click.option(
    "--peak", type=amounts.USD, metavar="LOAD", help="Users (or requests a second) at the peak: how many replicas?"
)
@click.option("--headroom", default="20%", help="The peak may turn out so much higher.")
@click.option(
    "-n", "n", type=amounts.REQUESTS, help="Requests at each load.  [default: 10 a user, or 20 seconds' worth]"
)
@click.option("--isl", type=amounts.TOK, help="Prompt tokens.  [default: 256]")
@click.option("--osl", type=amounts.TOK, help="Output tokens.  [default: 64]")
@click.option("--arrivals", type=click.Choice(["poisson", "constant", "gamma"]), help="How an open loop arrives.")
@click.option(
    "--workload", "workload_file", type=click.Path(path_type=Path), help="A workload file; its load is replaced."
)
@click.option("--seed", type=amounts.SEED, help="[default: 0]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the sweep.  [default: sweeps/<time>-<target>]")
@click.option("--resume", is_flag=True, help="Go on with the sweep in --out: finished loads are not asked again.")
@click.option(
    "--figure", type=click.Path(path_type=Path), help="Draw the first latency target against load (.svg, .png)."
)
@click.option(
    "--model",
    shell_complete=names.models,
    help="Measured: model to ask for. Simulated: catalogue name, config.json or .gguf.",
)
@click.option("--dialect", default="", help="Measured: as for servefit measure.")
@click.option("--api-key-env", metavar="NAME", help="Measured: environment variable that holds the API key.")
@click.option(
    "--timeout", "silent_s", type=amounts.WAIT_S, default=300.0, help="Measured: give up after so many silent seconds."
)
@click.option("--no-probe", is_flag=True, help="Measured: ask nothing first.")
@click.option("--calibration", type=click.Path(path_type=Path), help="Simulated: step time as measured.")
@click.option("--device", shell_complete=names.devices, help="Simulated: catalogue name or device TOML.")
@click.option("--precision", help="Simulated: bf16, fp8, awq, q4_k_m ...")
@click.option("--policy", default="chunked", help="Simulated: none, static, dynamic, continuous, chunked.")
@click.option("--seats", type=amounts.SEATS, default=64, help="Simulated: requests in the running batch.")
@click.option("--budget-tok", type=amounts.TOK, default=2048, help="Simulated: tokens of one step.")
@click.option("--kv-blocks", type=amounts.BLOCKS, help="Simulated: KV blocks of the engine.")
@click.option("--tp", type=amounts.SPREAD, default=1, help="Simulated: GPUs that one copy is spread over.")
@click.option("--replicas", type=amounts.COPIES, default=1, help="Simulated: copies behind a router.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(target: str | None, *, as_json: bool, figure: Path | None, **given: Any) -> int | None:
    """Raise the load on TARGET until the targets break. Without TARGET, on a simulated configuration. For example

    servefit sweep http://127.0.0.1:8080 --users auto --ttft 500ms --tpot 50ms --peak 120

    servefit sweep --calibration calibration.json --seats 16 --rates auto --ttft 500ms

    Each load is a run in the sweep's folder. Exit code 5: the smallest load breaks a target already.
    """
    from servefit.plan.sweep import conclude, search
    from servefit.workload.workload import workload_sha256

    kind, listed, most = _loads(given)
    targets = read_targets(given)
    headroom = show.share(given["headroom"], "--headroom")
    if given["peak"] is not None and not given["peak"] > 0:
        raise ServefitError(f"--peak is {given['peak']:g}.", hint="Name the users, or requests a second, at the peak.")
    base = _base(given)
    if target is None and given["calibration"] is None and given["device"] is None:
        raise ServefitError("Neither a target nor a configuration is named.",
                            hint="servefit sweep http://127.0.0.1:8080, or --calibration FILE, or --device and --model.")  # fmt: skip
    if target is not None and (given["calibration"] is not None or given["device"] is not None):
        raise ServefitError(f"Both the target {target} and a configuration to simulate are named.", hint="Choose one.")
    name, model, one_run = _measured(target, given, base) if target is not None else _simulated(given)
    folder = _folder(given, name)
    question = {"kind": kind, "target": name, "model": model, "workload_sha256": workload_sha256(base)}
    _keep_question(folder, question, resume=given["resume"])
    steps: list[Step] = []

    def holds(load: float) -> bool:
        if target is not None and not given["quiet"]:
            click.echo(_how_long(kind, load, given["n"], steps), err=True)
        steps.append(_step(kind, load, base, given=given, targets=targets, folder=folder, one_run=one_run))
        return steps[-1].holds

    try:
        if listed and not most:
            all(holds(load) for load in listed)
        else:
            search(kind, holds, start=listed[0] if listed else 1, most=most)
    except KeyboardInterrupt:
        if not steps:
            raise
        click.echo(f"interrupted; go on with --resume --out {folder}", err=True)
    swept = conclude(
        kind, steps, targets=targets, target=name, model=model, workload_sha256=workload_sha256(base),
        simulated=target is None, peak=given["peak"], headroom_frac=headroom,
    )  # fmt: skip
    _finish(swept, folder, question, figure=figure, as_json=as_json)
    return 5 if swept.up_to is None else None


def _how_long(kind: "LoadKind", load: float, n: int | None, steps: "Sequence[Step]") -> str:
    """How many requests this load asks, and how long that takes at most: by the rate, or by what the load before it did."""
    from servefit.plan.sweep import at_load, show_load
    from servefit.workload.workload import Workload

    count = at_load(Workload(), kind, load, n).n
    before = steps[-1].req_per_s if steps else None
    takes = count / load if kind == "rate" else count / before if before else None
    about = "; this one tells how long the others take" if takes is None else f", about {fmt_s(takes)}"
    return f"{show_load(kind, load)}: {fmt(count)} requests{about}"


def _step(
    kind: "LoadKind",
    load: float,
    base: "Workload",
    *,
    given: dict[str, Any],
    targets: "Targets",
    folder: Path,
    one_run: "OneRun",
) -> "Step":
    """One load, run into its own folder; one that is finished there is read, not asked again."""
    from servefit.plan.sweep import at_load, make_step, show_load
    from servefit.records import load_run

    at = folder / (f"users-{round(load):05d}" if kind == "users" else f"rate-{load:09.3f}")
    if not (at / "run.json").exists() or not load_run(at).header.finished:
        one_run(at_load(base, kind, load, given["n"]), at)
    step = make_step(load_run(at), targets, load, at.name)
    if not given["quiet"]:
        click.echo(f"{show_load(kind, load)}: {'holds' if step.holds else 'breaks'}, {step.n} requests", err=True)
    return step


def _loads(given: dict[str, Any]) -> tuple["LoadKind", tuple[float, ...], float]:
    """Users or rates; the loads listed (none for auto, two ends for a range); the most to go to (0 for a list)."""
    if given["users"] is not None and given["rates"] is not None:
        raise ServefitError("Both --users and --rates are given.", hint="Choose one: closed loop or open loop.")
    kind: LoadKind = "rate" if given["rates"] is not None else "users"
    flag, text = ("--rates", given["rates"]) if kind == "rate" else ("--users", given["users"] or "auto")
    if text == "auto":
        return kind, (), 1024.0
    parts = text.split("..") if ".." in text else text.split(",")
    try:
        values = tuple(float(part) for part in parts)
    except ValueError:
        raise ServefitError(f"{flag} {text} is no list of loads.", hint="Write auto, 4..64, or 1,2,4,8.") from None
    if any(not 0 < v < 1e6 for v in values) or (kind == "users" and any(v != int(v) for v in values)):
        raise ServefitError(
            f"{flag} {text} has a load that cannot be.", hint="Users are whole and at least 1; rates are above 0."
        )
    if ".." in text:
        if len(values) != 2 or values[0] >= values[1]:
            raise ServefitError(f"{flag} {text} is no range.", hint="The smallest first: 4..64.")
        return kind, values, values[1]
    return kind, tuple(sorted(set(values))), 0.0


def read_targets(given: dict[str, Any]) -> "Targets":
    """The promises of flags, else of servefit.toml. Raises ServefitError where there is none to break."""
    from servefit.objectives import Targets
    from servefit.settings import load_settings

    changes: dict[str, Any] = latencies(given)
    p = {"p": changes.pop("p")} if "p" in changes else {}
    if given["goodput"] is not None:
        changes |= goodput(given["goodput"], rate=False)
    if not changes:
        wanted = {k: v for k, v in asdict(load_settings().objectives).items() if v is not None}
        changes = {k: v for k, v in wanted.items() if k in ("ttft_s", "tpot_s", "e2e_s", "goodput_frac", "p")}
    if not {"ttft_s", "tpot_s", "e2e_s"} & changes.keys():
        raise ServefitError(
            "No latency target is stated, so nothing can break.", hint="Add --ttft 500ms or --tpot 50ms."
        )
    return replace(Targets(p=95), **changes | p)


def _base(given: dict[str, Any]) -> "Workload":
    """What is asked, without how much of it at once."""
    from servefit.workload.workload import Lengths, Workload, load_workload

    base = load_workload(given["workload_file"]) if given["workload_file"] else Workload()
    if base.trace is not None:
        raise ServefitError(
            "The workload replays a trace, whose load is its own.", hint="Sweep a workload with isl and osl."
        )
    if given["n"] is not None and given["n"] < 1:
        raise ServefitError(f"-n is {given['n']}.", hint="At least 1 request at each load.")
    changes: dict[str, Any] = {k: given[k] for k in ("arrivals", "seed") if given[k] is not None}
    changes |= {k: Lengths(mean=given[k]) for k in ("isl", "osl") if given[k] is not None}
    return replace(base, **changes, rate_req_per_s=None, concurrency=None, stages=(), n=1)


def _measured(target: str, given: dict[str, Any], base: "Workload") -> tuple[str, str, "OneRun"]:
    """The target, asked once what it is, and a function that measures it under a load."""
    import secrets
    import time

    from servefit.cli.measure import endpoint_of
    from servefit.cli.measure_show import watcher
    from servefit.cli.spend import capped
    from servefit.measure.run import Options, measure, prepare
    from servefit.plan.sweep import at_load
    from servefit.wire.client import Limits
    from servefit.workload.arrivals import schedule

    endpoint = endpoint_of(target, model=given["model"], dialect=given["dialect"], api_key_env=given["api_key_env"])
    if endpoint.paid:
        click.echo(f"{endpoint.name} is a paid target: these requests cost money.", err=True)
    options = Options(out=Path(), probe=not given["no_probe"], limits=Limits(silent_s=given["silent_s"]))
    first = at_load(base, "users", 1, 1)
    known = prepare(endpoint, first, schedule(first), options, time.monotonic_ns())

    def one_run(workload: "Workload", folder: Path) -> "Run":
        # the same requests at every load, in words that no cache has seen
        fresh = replace(known, maker=replace(known.maker, salt=secrets.token_hex(4)), rows=[])
        with watcher(quiet=given["quiet"]) as progress:
            asked = replace(options, out=folder, progress=progress, resume=(folder / "run.json").exists())
            with capped(asked, known.endpoint, workload) as limited:
                return measure(known.endpoint, workload, limited, known=fresh)

    return known.endpoint.name, known.endpoint.model, one_run


def _simulated(given: dict[str, Any]) -> tuple[str, str, "OneRun"]:
    """The configuration, and a function that simulates it under a load."""
    from servefit.cli.simulate import read_engine, run_one
    from servefit.records import save_run

    asked = ENGINE_DEFAULTS | given
    step, config, labels = read_engine(asked)

    def one(workload: "Workload", folder: Path) -> "Run":
        run = run_one(workload, config, step, asked, horizon_s=None, labels=labels)
        save_run(run, folder)
        return run

    return labels["target"], labels["model"], one


def _folder(given: dict[str, Any], name: str) -> Path:
    from servefit.measure.run import default_folder

    if given["resume"] and given["out"] is None:
        raise ServefitError("--resume needs the folder of the sweep.", hint="Name it with --out.")
    return given["out"] or default_folder(name, Path("sweeps"))


def _keep_question(folder: Path, question: dict[str, Any], *, resume: bool) -> None:
    """Write down what is asked, so that a resumed sweep cannot mix two. Raises ServefitError."""
    from servefit.files import read_json, write_json

    path = folder / "sweep.json"
    if path.exists():
        if not resume:
            raise ServefitError(f"{folder} holds a sweep already.", hint="Name another --out, or go on with --resume.")
        kept = read_json(path)
        for key, value in question.items():
            if not isinstance(kept, dict) or kept.get(key) != value:
                raise ServefitError(f"{folder} holds another sweep: its {key.replace('_', ' ')} differs.",
                                    hint="Resume with the same target and workload, or name another --out.")  # fmt: skip
        return
    if resume:
        raise ServefitError(f"{folder} holds no sweep.", hint="Leave --resume out, or name the right --out.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, question)


def _finish(swept: "Sweep", folder: Path, question: dict[str, Any], *, figure: Path | None, as_json: bool) -> None:
    """Write the answer beside the runs; show it."""
    from servefit.cli.show import emit_json, jsonable, plain
    from servefit.files import write_json
    from servefit.plan.sweep import sentences

    value = question | jsonable(swept)
    for step, out in zip(swept.steps, value["steps"], strict=True):
        out |= {"holds": step.holds, "clear": step.clear}
    value |= {"folder": str(folder), "sentences": list(sentences(swept))}
    write_json(folder / "sweep.json", value)
    if figure is not None:
        from servefit.charts.embed import save_image
        from servefit.charts.sweeps import latency_against_load

        save_image(latency_against_load(swept, swept.limits[0].name), figure)
    if as_json:
        emit_json(value)
        return
    _show(swept)
    click.echo(f"sweep: {plain(str(folder))}" + (f"; figure: {plain(str(figure))}" if figure else ""))
    worst = next((s for s in swept.steps if not s.holds), swept.steps[-1])
    click.echo(f"next: servefit explain {plain(str(folder / worst.run))} (why it is slow there)")


def _show(swept: "Sweep") -> None:
    from servefit.charts.sweeps import as_text
    from servefit.cli.show import plain, table
    from servefit.plan.sweep import sentences

    p = swept.targets.p
    click.echo(plain(f"{swept.target}: {swept.model}{', simulated' if swept.simulated else ''}"))
    rows = []
    for s in swept.steps:
        unsure = "holds, too few to be sure" if s.few else "holds, too close to call"
        word = "holds" if s.clear else unsure if s.holds else "breaks"
        word += "; queue grows" if s.grows else ""
        word += f"; run {s.run_verdict}" if s.run_verdict != "valid" else ""
        rows.append([
            fmt(s.load, 0 if float(s.load).is_integer() else 2), fmt_s(s.ttft_s), fmt_s(s.tpot_s), fmt(s.output_tok_per_s, 1),
            fmt(s.req_per_s, 2), fmt(s.goodput_req_per_s, 2), fmt_percent(s.goodput_frac), fmt(s.failed), fmt(s.n), word,
        ])  # fmt: skip
    unit = "users" if swept.kind == "users" else "req/s asked"
    heads = [unit, f"TTFT p{p}", f"TPOT p{p}", "tok/s", "req/s", "goodput", "good", "failed", "n", ""]
    table(heads, rows, right=tuple(range(9)))
    click.echo("throughput (# kept every target, . too late):")
    for line in as_text(swept):
        click.echo(f"  {line}")
    for line in sentences(swept):
        click.echo(line)
