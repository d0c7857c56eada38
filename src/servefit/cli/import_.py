"""`servefit import`: another tool's result file as a run, so that old results can be compared."""

from pathlib import Path

import click

from servefit.errors import ServefitError


@click.command(name="import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.  [default: runs/imported-<file>]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(file: Path, *, out: Path | None, as_json: bool) -> None:
    """Read FILE of vLLM bench serve, guidellm, aiperf or llama-bench as runs.

    What the tool does not record stays null, and each run says what that is. A file with several loads makes several runs.
    """
    from servefit.cli.measure_show import run_json
    from servefit.cli.show import emit_json, plain
    from servefit.measure.foreign import import_file
    from servefit.objectives import summarize
    from servefit.records import save_run

    runs = import_file(file)
    base = out or Path("runs") / f"imported-{file.stem}"
    folders = [base if len(runs) == 1 else base.with_name(f"{base.name}-{i}") for i in range(1, len(runs) + 1)]
    for folder in folders:
        if (folder / "run.json").exists():
            raise ServefitError(f"{folder} holds a run already.", hint="Name another folder with --out.")
    for run, folder in zip(runs, folders, strict=True):
        save_run(run, folder)
    if as_json:
        emit_json({"runs": [run_json(run, summarize(run), folder) for run, folder in zip(runs, folders, strict=True)]})
        return
    for run, folder in zip(runs, folders, strict=True):
        summary = summarize(run)
        tool = run.header.client["tool"]
        click.echo(
            plain(
                f"{folder}: {tool}, {run.header.model or 'model not recorded'}, {summary.n} requests, {summary.failed} failed"
            )
        )
        for finding in run.header.findings:
            click.echo(f"  {finding.level}: {finding.message}")
    click.echo(plain(f"next: servefit compare RUN {folders[0]}"))
