"""`servefit calibrate`: what does one engine step cost here?"""

import difflib
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import amounts
from servefit.cli.keep import check_not_decided_on, check_not_read
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.calibrate.calibration import Calibration
    from servefit.physics.steptime import StepTime
    from servefit.records import Run


@click.command(name="calibrate", context_settings={"show_default": True})
@click.argument("sources", nargs=-1, metavar="[TARGET] [RUN]...")
@click.option("--out", type=click.Path(path_type=Path), default=Path("calibration.json"), help="File to write.")
@click.option(
    "--runs",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder for the probes' runs.  [default: runs/calibrate-<time>]",
)
@click.option("--quick", is_flag=True, help="Ask a third as much: wider intervals.")
@click.option(
    "--rounds",
    type=amounts.ROUNDS,
    default=1,
    help="Probe so often: the average of a machine whose pace wanders.",
)
@click.option("--budget", "budget_s", type=amounts.WAIT_S, default=280.0, help="Seconds that probing may take.")
@click.option("--device", default="", help="What it runs on, as a catalogue name; default: this machine's chip.")
@click.option("--model", help="Model to ask for; default: the one that the server lists.")
@click.option("--dialect", default="", help="openai-chat, openai-completions, ollama-chat, ollama-generate, anthropic.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key.")
@click.option(
    "--force",
    is_flag=True,
    help="Keep a calibration that would be refused, marked invalid; write over one that a decision rests on.",
)
@click.option("--export", "export_to", type=click.Path(path_type=Path), help="Also write it without names, to pass on.")
@click.option(
    "--import", "import_from", type=click.Path(path_type=Path), help="Take a calibration that a colleague exported."
)
@click.option(
    "--prior",
    type=click.Path(path_type=Path),
    help="A calibration that stands in for what is not learned.  [default: the datasheet's floor, where device and model are known]",
)
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(sources: tuple[str, ...], out: Path, *, as_json: bool, **given: Any) -> None:
    """Learn the step time of a server from outside: probe a TARGET (URL or name), use RUN folders, or both.

    \b
    One step =  constant + requests x a + context read x b + prompt tokens x c + positions x d  (+ a bend, + a change of size)
    TTFT     =  front end + the steps that read the prompt
    """  # noqa: D301 - click's mark for "keep these lines" is a real backspace
    from servefit.calibrate.calibration import save_calibration
    from servefit.calibrate.files import anonymous, imported
    from servefit.files import check_writable

    for path, option in ((out, "--out"), (given["export_to"], "--export")):
        check_not_read(path, [*sources, given["import_from"], given["prior"]], option=option)
    if not given["force"]:
        check_not_decided_on(out, what="this calibration", force=True)
        if given["export_to"] is not None:
            check_not_decided_on(given["export_to"], what="this calibration", option="--export", force=True)
    if given["import_from"] is not None:
        if sources:
            raise ServefitError("Both --import and a source are given.", hint="Choose one.")
        calibration = imported(given["import_from"])
    elif not sources:
        raise ServefitError("No target and no run is named.", hint="servefit calibrate http://127.0.0.1:8080")
    else:
        check_writable(out)
        calibration = _calibrate(sources, given)
    save_calibration(calibration, out)
    if given["export_to"] is not None:
        save_calibration(anonymous(calibration), given["export_to"])
    _show(calibration, out, given["export_to"], as_json=as_json)


def _calibrate(sources: tuple[str, ...], given: dict[str, Any]) -> "Calibration":
    from servefit import __version__
    from servefit.calibrate.learn import learn
    from servefit.calibrate.prior import passed_on
    from servefit.records import content_sha256, load_run

    # a wrong file is said before anything is probed
    prior = None if given["prior"] is None else passed_on(given["prior"])
    folders = [Path(s).parent if Path(s).name == "run.json" else Path(s) for s in sources if _is_run(s)]
    runs = [load_run(f) for f in folders]
    targets = [s for s in sources if not _is_run(s)]
    hosted, local = False, False
    for name in targets:
        _no_typo(name)
    if len(targets) > 1:
        raise ServefitError(
            f"'{targets[-1]}' is no run, and only one target can be probed at a time.",
            hint="Name runs, or one target, or one target and runs of it.",
        )
    if targets:
        probed, measured, hosted, local = _probe(targets[0], given)
        folders, runs = probed + folders, measured + runs
    found = learn(
        runs, names=_names(folders), hashes=[content_sha256(f) for f in folders], hosted=hosted,
        force=given["force"], prior=prior or _datasheet(runs, given, local=local),
    )  # fmt: skip
    return replace(
        found,
        device=given["device"] or found.device or (_this_chip() if local else ""),
        created=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        tool_version=__version__,
    )


def _datasheet(runs: "list[Run]", given: dict[str, Any], *, local: bool) -> "StepTime | None":
    """The floor of the device and model that the runs are of, where both are known: it stands in for what they do not tell."""
    from servefit.calibrate.prior import datasheet

    device = given["device"] or next((str(d) for r in runs if (d := r.header.machine.get("device"))), "")
    model = given["model"] or next((r.header.model for r in runs if r.header.model), "")
    return datasheet(model, device or (_this_chip() if local else "")) if model else None


def _is_run(source: str) -> bool:
    return (Path(source) / "run.json").is_file() or Path(source).name == "run.json"


def _no_typo(source: str) -> None:
    """Raise ServefitError where `source` can be no target either: a run folder that is not there, most likely."""
    from servefit.servers.engines import ENGINES
    from servefit.servers.targets import all_targets, looks_like_url

    if looks_like_url(source) or source in {t.name for t in all_targets()} | set(ENGINES):
        return
    path = Path(source)
    runs = [str(p.parent) for p in path.parent.glob("*/run.json")]
    names = [*runs, *(t.name for t in all_targets()), *ENGINES]
    near = difflib.get_close_matches(source, names, n=1)
    what = "a folder without a run.json" if path.is_dir() else "neither a run folder nor a URL"
    raise ServefitError(
        f"'{source}' is {what}, and no target is called that.",
        hint=f"Did you mean '{near[0]}'?"
        if near
        else "Name a run folder, a URL (http://...), or a target of servefit.toml.",
    )


def _names(folders: list[Path]) -> list[str]:
    """The folders' own names; with the folder above where two are alike."""
    own = [f.name for f in folders]
    return [name if own.count(name) == 1 else f"{f.parent.name}/{name}" for name, f in zip(own, folders, strict=True)]


def _probe(target: str, given: dict[str, Any]) -> "tuple[list[Path], list[Run], bool, bool]":
    """(folders, runs, whether others share the server, whether it runs on this machine)."""
    from servefit.calibrate.probes import FULL, QUICK, probe_server
    from servefit.cli.measure import endpoint_of
    from servefit.cli.measure_show import watcher

    endpoint = endpoint_of(target, model=given["model"], dialect=given["dialect"], api_key_env=given["api_key_env"])
    folder: Path = given["folder"] or Path("runs") / f"calibrate-{time.strftime('%Y%m%d-%H%M%S')}"
    if endpoint.paid:
        click.echo(f"{endpoint.name} is a paid target: these requests cost money.", err=True)
    folders, runs = [], []
    with watcher(quiet=given["quiet"]) as progress:
        probes = probe_server(
            endpoint, folder, size=QUICK if given["quick"] else FULL, progress=progress, clock=time.monotonic,
            budget_s=given["budget_s"], rounds=given["rounds"],
        )  # fmt: skip
        for name, run in probes:
            folders.append(folder / name)
            runs.append(run)
    local = endpoint.url.origin.partition("://")[2].startswith(("127.", "localhost", "[::1]"))
    return folders, runs, endpoint.paid or endpoint.url.scheme == "https", local


def _this_chip() -> str:
    from servefit.host.machine import chip_name

    return chip_name()


def _show(calibration: "Calibration", out: Path, exported: Path | None, *, as_json: bool) -> None:
    from servefit.calibrate.calibration import to_json
    from servefit.calibrate.words import rows, words
    from servefit.cli.show import emit_json, table

    if as_json:
        emit_json({**to_json(calibration), "file": str(out), "words": list(words(calibration))})
        return
    who = " on ".join(filter(None, [calibration.engine or "an engine", calibration.device]))
    click.echo(
        f"{calibration.model or 'a model'}, {who}: learned from {len(calibration.runs)} runs ({calibration.verdict}).\n"
    )
    for line in words(calibration):
        click.echo(f"  {line}")
    click.echo()
    table(("what a step pays for", "each", "95% interval", "source", "seen"), rows(calibration), right=(1, 2, 4))
    for finding in calibration.findings:
        click.echo(f"{finding.level}: {finding.message}" + (f" {finding.hint}" if finding.hint else ""))
    if calibration.imported_from:
        click.echo(f"imported from {calibration.imported_from}")
    if exported is not None:
        click.echo(f"exported without names: {exported}")
    click.echo(f"saved: {out}")
    click.echo(
        f"next: servefit plan --calibration {out} (which policy, how many seats), or servefit simulate --calibration {out}"
    )
