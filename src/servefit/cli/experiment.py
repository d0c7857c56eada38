"""servefit experiment: one question, one experiment, one sentence and one figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import amounts, names
from servefit.cli.show import emit_json, plain, table
from servefit.errors import AnswerIsNo, ServefitError
from servefit.explain import experiments
from servefit.explain.case import wall_of
from servefit.explain.experiments import Conclusion, Pace, Trial
from servefit.explain.pictures import bars
from servefit.files import read_json
from servefit.records import Run, load_run
from servefit.units import parse_bytes, parse_plain, parse_seconds

if TYPE_CHECKING:
    from servefit.charts.figures import Chart


@click.group(name="experiment")
def command() -> None:
    """One question, one experiment, one sentence and one figure, on any target."""


_figure = click.option("--figure", type=click.Path(path_type=Path), help="Draw it (.svg, .png).")


def _shared(function: Any) -> Any:
    """The options that every experiment on a target has."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout."),
        _figure,
        click.option("--quiet", is_flag=True, help="No progress."),
        click.option("--out", type=click.Path(path_type=Path), help="Folder for the runs.  [default: runs/<time>-...]"),
        click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key."),
        click.option("--model-name", help="Model to ask for; default: the one that the server lists."),
        click.option("--osl", type=amounts.TOK, default=32, show_default=True, help="Answer tokens."),
        click.option("--seed", type=amounts.SEED, default=0, show_default=True, help="Seed of the prompts."),
    ):
        function = option(function)
    return function


@command.command()
@click.argument("target")
@click.option("--stable-tok", type=amounts.ANY_TOK, default=1000, show_default=True, help="Tokens that never change.")
@click.option("--fresh-tok", type=amounts.ANY_TOK, default=50, show_default=True, help="Tokens that do.")
@click.option("-n", "n", type=amounts.REQUESTS, default=6, show_default=True, help="Requests of each kind.")
@_shared
def prefix(target: str, stable_tok: int, fresh_tok: int, n: int, **given: Any) -> None:
    """Does it pay to put the part of the prompt that never changes first?"""
    if min(stable_tok, fresh_tok) < 1 or n < 3:
        raise ServefitError(
            "The experiment needs 3 requests with tokens of both kinds.", hint="Raise -n, --stable-tok or --fresh-tok."
        )
    trials = experiments.prefix_trials(
        stable_tok=stable_tok, fresh_tok=fresh_tok, n=n, osl=given["osl"], seed=given["seed"]
    )
    (changing, stable), folders = _both(_run(target, trials, given, "prefix"))
    found = experiments.conclude_prefix(changing, stable, stable_tok=stable_tok)
    _tell(found, as_json=given["as_json"], figure=given["figure"], runs=folders)


@command.command()
@click.argument("target")
@click.option("--lengths", default="64,256,512,1024,1500", show_default=True, help="Prompt lengths, with commas.")
@click.option("-n", "n", type=amounts.REQUESTS, default=3, show_default=True, help="Requests of each length.")
@click.option("--model", shell_complete=names.models, help="A model of the catalogue, for its KV bytes.")
@_shared
def context(target: str, lengths: str, n: int, model: str | None, **given: Any) -> None:
    """What does a longer prompt cost, and where is the end of the context?"""
    ladder = [int(parse_plain(part, "tokens", "tok")) for part in lengths.split(",") if part.strip()]
    if len(ladder) < 2 or min(ladder) < 1:
        raise ServefitError(
            f"'{lengths}' is no ladder of prompt lengths.", hint="Write two or more: --lengths 64,256,1024."
        )
    trials = experiments.context_trials(lengths=ladder, n=n, osl=given["osl"], seed=given["seed"])
    done = _run(target, trials, given, "context", may_refuse=True)
    runs = [(asked, run, said) for asked, (_, run, said) in zip(sorted(ladder), done, strict=True)]
    found = experiments.conclude_context(runs, kv_bytes_per_tok=wall_of(model, None).kv_bytes_per_tok)
    folders = [folder for folder, run, _ in done if run]
    _tell(found, as_json=given["as_json"], figure=given["figure"], runs=folders)


@command.command()
@click.argument("target")
@click.option("--weights", help="The whole model's size, e.g. 12.1GB (its file).")
@click.option("--bandwidth", help="Memory bandwidth, e.g. 273GB/s.")
@click.option("--device", shell_complete=names.devices, help="Or a device of the catalogue.")
@click.option("--users", type=amounts.USERS, default=4, show_default=True, help="Users in the second run.")
@click.option("--isl", type=amounts.TOK, default=64, show_default=True, help="Prompt tokens.")
@click.option("-n", "n", type=amounts.REQUESTS, default=4, show_default=True, help="Requests of each user.")
@_shared
def moe(  # noqa: PLR0917 - click passes them by name
    target: str,
    weights: str | None,
    bandwidth: str | None,
    device: str | None,
    users: int,
    isl: int,
    n: int,
    **given: Any,
) -> None:
    """How much of the model does one token read? (A mixture of experts, seen from outside.)"""
    speed = _bandwidth(bandwidth, device)
    if weights is None or speed is None:
        raise ServefitError(
            "The model's size and the memory's bandwidth are needed.",
            hint="Add --weights 12.1GB and --bandwidth 273GB/s (or --device).",
        )
    trials = experiments.moe_trials(isl=isl, osl=given["osl"], n=n, users=users, seed=given["seed"])
    (one, many), folders = _both(_run(target, trials, given, "moe"))
    found = experiments.conclude_moe(
        one, many, users=users, bandwidth_bytes_per_s=speed, total_bytes=float(parse_bytes(weights, bare="gb"))
    )
    _tell(found, as_json=given["as_json"], figure=given["figure"], runs=folders)


@command.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--run",
    "runs",
    multiple=True,
    help="FOLDER=SIZE: one of your runs and the bytes its model reads, e.g. runs/q4=4.9GB.",
)
@click.option("--bandwidth", help="Memory bandwidth, e.g. 273GB/s.")
@click.option("--device", shell_complete=names.devices, help="Or a device of the catalogue.")
@_figure
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def ceiling(  # noqa: PLR0917 - click passes them by name
    file: Path | None,
    runs: tuple[str, ...],
    bandwidth: str | None,
    device: str | None,
    figure: Path | None,
    as_json: bool,
) -> None:
    """How near to the ceiling, and what is the wall where it is far? From llama-bench JSON (-o json) or your own runs."""
    paces = list(experiments.read_llama_bench(read_json(file))) if file else []
    for text in runs:
        folder, _, size = text.rpartition("=")
        if not folder:
            raise ServefitError(f"'{text}' is not FOLDER=SIZE.", hint="Write --run runs/q4=4.9GB.")
        paces.append(_pace(Path(folder), float(parse_bytes(size, bare="gb"))))
    if not paces:
        raise ServefitError(
            "Nothing to compare was named.", hint="Name a llama-bench JSON file, or --run FOLDER=SIZE twice or more."
        )
    found = experiments.conclude_ceiling(paces, bandwidth_bytes_per_s=_bandwidth(bandwidth, device))
    _tell(found, as_json=as_json, figure=figure)


def _pace(folder: Path, size: float) -> Pace:
    from servefit.objectives import summarize

    gap = summarize(load_run(folder)).tpot_s.p50
    if gap is None:
        raise ServefitError(f"{folder} has no request with two tokens or more.", hint="Measure with --osl 32 or more.")
    return Pace(label=folder.name, bytes_per_tok=size, tok_per_s=1 / gap)


@command.command()
@click.argument("off", required=False, type=click.Path(path_type=Path))
@click.argument("on", required=False, type=click.Path(path_type=Path))
@click.option("--draft-tok", type=amounts.DRAFT_TOK, default=4, show_default=True, help="Tokens drafted a step.")
@click.option(
    "--draft-cost",
    type=amounts.TIMES,
    default=0.1,
    show_default=True,
    help="A draft token's time as a share of a step.",
)
@click.option("--itl", help="Without runs: the gap now, e.g. 22ms, to see what theory promises.")
@_figure
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def speculation(  # noqa: PLR0917 - click passes them by name
    off: Path | None,
    on: Path | None,
    draft_tok: int,
    draft_cost: float,
    itl: str | None,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Does speculative decoding pay here? OFF and ON: two runs of the same workload, without and with it."""
    if not 1 <= draft_tok <= 64 or not 0 <= draft_cost <= 10:
        raise ServefitError(
            f"{draft_tok} drafted tokens at {draft_cost} of a step cannot be.",
            hint="Write --draft-tok 4 --draft-cost 0.1.",
        )
    if off is not None and on is not None:
        found = experiments.conclude_speculation(
            load_run(off), load_run(on), draft_tok=draft_tok, draft_cost=draft_cost
        )
    elif itl is not None and off is None:
        found = experiments.predict_speculation(
            itl_s=parse_seconds(itl, bare="ms"), draft_tok=draft_tok, draft_cost=draft_cost
        )
    else:
        raise ServefitError(
            "Two runs are needed, one without and one with speculation.",
            hint="Or --itl 22ms, for what theory promises.",
        )
    _tell(found, as_json=as_json, figure=figure)


# --- running and telling --------------------------------------------------------------------------------------------


def _bandwidth(text: str | None, device: str | None) -> float | None:
    if text:
        return float(parse_bytes(text.removesuffix("/s"), bare="gb"))
    return wall_of(None, device).bandwidth_bytes_per_s if device else None


def _both(done: list[tuple[Path, Run | None, str]]) -> tuple[tuple[Run, Run], list[Path]]:
    """The two runs of an experiment that needs both, and their folders."""
    first, second = (run for _, run, _ in done)
    assert first is not None and second is not None, "only a ladder may have a rung refused"
    return (first, second), [folder for folder, _, _ in done]


def _run(
    target: str, trials: tuple[Trial, ...], given: dict[str, Any], name: str, *, may_refuse: bool = False
) -> list[tuple[Path, Run | None, str]]:
    """Each trial measured on the target: folder, run, ""; with `may_refuse`, a refused one has no run but what was said."""
    from servefit.cli.measure import endpoint_of
    from servefit.cli.measure_show import watcher
    from servefit.cli.spend import capped
    from servefit.measure.run import Options, default_folder, measure

    endpoint = endpoint_of(target, model=given["model_name"], api_key_env=given["api_key_env"])
    if endpoint.paid:
        click.echo(f"{endpoint.name} is a paid target: these requests cost money.", err=True)
    root: Path = given["out"] or default_folder(f"{name}-{endpoint.name}", Path("runs"))
    done: list[tuple[Path, Run | None, str]] = []
    for number, trial in enumerate(trials, 1):
        if not given["quiet"]:
            click.echo(f"{number} of {len(trials)}: {trial.label}", err=True)
        folder = root / "".join(c if c.isalnum() else "-" for c in trial.label)
        try:
            with (
                watcher(quiet=given["quiet"]) as progress,
                capped(Options(out=folder, progress=progress), endpoint, trial.workload) as options,
            ):
                done.append((folder, measure(endpoint, trial.workload, options), ""))
        except ServefitError as error:
            if isinstance(error, AnswerIsNo) or not may_refuse or not any(run for _, run, _ in done):
                raise
            done.append((folder, None, error.message))
    return done


def _tell(found: Conclusion, *, as_json: bool, figure: Path | None, runs: Sequence[Path] = ()) -> None:
    """The table, the sentence and the figure; `runs` are the folders behind them."""
    if figure is not None:
        from servefit.charts.embed import save_image

        save_image(chart_of(found), figure)
    if as_json:
        emit_json({"question": found.question, "sentence": found.sentence, "values": found.values, "columns": found.columns,
                   "rows": found.rows, "figure": found.figure, "notes": found.notes, "runs": [str(r) for r in runs]})  # fmt: skip
        return
    click.echo(found.question)
    table(found.columns, found.rows, right=range(1, len(found.columns)))
    for note in found.notes:
        click.echo(plain(note))
    click.echo(plain(found.sentence))
    for line in bars(found.figure):
        click.echo(plain(line))
    after = (
        f"explain {plain(str(runs[-1]))} (the causes behind this run)" if runs else "measure URL (a run of your own)"
    )
    click.echo(f"\nnext: servefit {after}")


def chart_of(found: Conclusion) -> "Chart":
    """The conclusion's figure as a chart; times are drawn in milliseconds."""
    from servefit.charts.figures import Point, lines

    axis = str(found.figure["y"])
    scale, axis = (1e3, axis.replace("(s)", "(ms)")) if "(s)" in axis else (1.0, axis)
    points = [
        Point(series=name, x=x, y=y * scale) for name, series in found.figure["series"].items() for x, y in series
    ]
    return lines(points, name="experiment", title=found.figure["title"], x=found.figure["x"], y=axis, places=2)
