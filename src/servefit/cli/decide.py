"""servefit decide: write the decision up, every number bound to where it came from."""

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit import __version__
from servefit.cli.keep import check_not_decided_on, check_not_read
from servefit.cli.show import emit_json, plain, table
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.decide.verify import Report


@click.command(name="decide")
@click.argument("source", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--candidate", "candidates", multiple=True, metavar="ID", help="Which configuration; default: the plan's pick."
)
@click.option("--out", type=click.Path(path_type=Path), help="The file to write; default decision.md beside the plan.")
@click.option(
    "--run",
    "runs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A measured run of the decided policy and seats to set beside it.",
)
@click.option("--html", type=click.Path(path_type=Path), help="Also a report: one page that needs nothing else.")
@click.option("--figures", type=click.Path(path_type=Path), help="Also the report's figures, as SVG files in a folder.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Also everything it rests on, as a folder or a .zip.")
@click.option("--despite", default="", metavar="REASON", help="Take a configuration that does not pass, and say why.")
@click.option("--decider", "deciders", multiple=True, metavar="NAME", help="Who decides; may be given several times.")
@click.option("--assume", "own", multiple=True, metavar="TEXT", help="Your own assumption about the real service.")
@click.option("--status", type=click.Choice(["proposed", "accepted"]), default="proposed", show_default=True)
@click.option("--date", metavar="YYYY-MM-DD", help="The date of the decision; default today.")
@click.option("--force", is_flag=True, help="Write over a decision that is there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(**said: Any) -> None:
    """Write the decision up: Decision, Evidence, Assumptions, Trade-offs, What would change it.

    PLAN is a plan.json. Of a decision.md that is written already, --html, --figures and --bundle make a report, its figures and a bundle.
    """
    from servefit.decide.verify import verify

    source: Path = said["source"]
    written = None if source.suffix == ".md" else _target(said)
    check_not_read(written, [source, *said["runs"]], decision=True)
    for option in ("html", "bundle"):
        check_not_read(said[option], [source, *said["runs"], written], option=f"--{option}")
    if said["html"]:
        check_not_decided_on(said["html"], what="this report", option="--html")
    if source.suffix == ".md":
        path = source
        if not (said["html"] or said["figures"] or said["bundle"]):
            raise ServefitError(
                f"{source} is a decision already.",
                hint="Say --html, --figures or --bundle, or check it with servefit verify.",
            )
        notes: tuple[str, ...] = ()
    else:
        path, notes = _write(said)
    report = verify(path)
    _also(report, said)
    _say(report, said, notes)


def _write(said: dict[str, Any]) -> tuple[Path, tuple[str, ...]]:
    from servefit.api import write_decision

    if len(said["candidates"]) > 1:
        raise ServefitError(
            f"A decision is exactly one configuration, not {len(said['candidates'])}.", hint="Name one."
        )
    source, path = said["source"], _target(said)
    if path.exists() and not said["force"]:
        raise ServefitError(
            f"{path} is there already, and may have been edited.", hint="Name another with --out, or say --force."
        )
    notes = write_decision(
        source, path, runs=said["runs"], candidate=next(iter(said["candidates"]), None), despite=said["despite"],
        deciders=said["deciders"], assume=said["own"], status=said["status"], date=_date(said["date"]),
    )  # fmt: skip
    return path, notes


def _target(said: dict[str, Any]) -> Path:
    """Where the decision goes."""
    source: Path = said["source"]
    path: Path = said["out"] or (source if source.is_dir() else source.parent) / "decision.md"
    return path / "decision.md" if path.is_dir() else path


def _date(text: str | None) -> dt.date | None:
    try:
        return None if text is None else dt.date.fromisoformat(text)
    except ValueError:
        raise ServefitError(f"'{text}' is no date.", hint="Write it as 2026-11-30.") from None


def _also(report: "Report", said: dict[str, Any]) -> None:
    path = report.path
    if said["html"]:
        from servefit.decide.report import report_html
        from servefit.files import write_text

        write_text(said["html"], report_html(report))
    if said["figures"]:
        from servefit.charts.embed import save_images
        from servefit.decide.figures import figures

        if report.ledger is None:
            raise ServefitError(f"{path} has no figures without its plan.", hint="Bring the plan back.")
        save_images(figures(report.ledger), said["figures"])
    if said["bundle"]:
        from servefit.decide.bundle import make_bundle, write_folder, write_zip
        from servefit.decide.decision import load_decision

        bundle = make_bundle(load_decision(path), path, tool_version=__version__)
        (write_zip if said["bundle"].suffix.lower() == ".zip" else write_folder)(bundle, said["bundle"])


def _say(report: "Report", said: dict[str, Any], notes: tuple[str, ...]) -> None:
    from servefit.decide.prose import spelled
    from servefit.decide.quantities import names_budget

    path = report.path
    assert report.ledger is not None, f"{path} was written from a plan that was just read"
    ledger = report.ledger
    axes = ("model", "device", "policy", "seats", "precision", "kv_bits", "budget", "tp", "replicas")
    if said["as_json"]:
        emit_json({
            "schema_version": 1,
            "decision": path,
            "status": report.decision.front.status,
            "candidate": ledger.candidate.id,
            "configuration": {
                name: ledger.value(name) if name != "budget" or names_budget(ledger.plan, ledger.candidate) else None
                for name in axes
            },
            "verdict": ledger.value("verdict"),
            "checks": ledger.candidate.checks,
            "bound": report.checked,
            "findings": report.findings,
            "html": said["html"],
            "figures": said["figures"],

            "bundle": said["bundle"],
            "notes": notes,
        })  # fmt: skip
        return
    c = ledger.candidate
    click.echo(
        f"{path}: {plain(c.model)} on {plain(c.device)}, {c.policy}, {c.seats} seats: {ledger.value('verdict')}."
    )
    rows = [[k.label, *(_cell(spelled(q)) for part in ("target", "value", "margin", "verdict")
                       if (q := ledger.find(f"{k.name}.{part}")))] for k in c.checks]  # fmt: skip
    table(("check", "target", "value", "margin", "verdict"), rows, right=(1, 2, 3))
    for note in (*notes, *(f.message for f in report.findings)):
        click.echo(f"note: {plain(note)}")
    for what in filter(None, (said["html"], said["figures"], said["bundle"])):
        click.echo(f"wrote {what}")
    click.echo(f"{report.checked} numbers and words are bound to the plan. next: servefit verify {path}")


def _cell(text: str) -> str:
    return text.strip("`")
