"""servefit verify: does every number in a decision still hold?"""

import datetime as dt
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from servefit.cli.show import emit_json, plain, table
from servefit.decide.against import Held, expected_said, hold, prediction_said
from servefit.decide.decision import at, parse_decision
from servefit.decide.findings import Finding
from servefit.decide.verify import Report
from servefit.decide.written import show
from servefit.errors import ServefitError
from servefit.units import fmt_count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """One file's report, and what a run said where it was held against one."""

    report: Report
    held: Held | None = None


@click.command(name="verify")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--rerun", is_flag=True, help="Also simulate the configuration again, from its seed.")
@click.option(
    "--against", metavar="RUN", type=click.Path(path_type=Path), help="Try to overturn it with a measured run."
)
@click.option("--fix", is_flag=True, help="Respell the numbers that are stale; prose is never touched.")
@click.option(
    "--format", "style", type=click.Choice(["text", "github"]), default="text", help="github: annotations for CI."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(files: tuple[Path, ...], *, rerun: bool, against: Path | None, fix: bool, style: str, as_json: bool) -> int:
    """Does every number in a decision still hold? Recomputed from its plan and runs, offline.

    FILE is a decision.md, a bundle's folder, or a bundle's zip. --against writes what RUN says into the file: overturned,
    or one more confirmation (no target missed); a run that asked for less than the plan can overturn and not confirm. Figures outside
    what was predicted are named: a decision can stand where its prediction does not. Ends with 0 where all holds,
    3 where RUN leaves it open, 4 where something does not hold, 5 where it is overturned.
    """
    done = [_verify(path, again=rerun, against=against, fix=fix) for path in files]
    if as_json:
        emit_json(to_json(done, files))
    else:
        for path, one in zip(files, done, strict=True):
            _print(path, one, style)
    if not all(one.report.holds for one in done):
        return 4
    results = {one.held.result for one in done if one.held}
    return 5 if "overturned" in results else 3 if "open" in results else 0


def _verify(path: Path, *, again: bool, against: Path | None, fix: bool) -> _Done:
    from servefit.decide.bundle import is_zip, unpack
    from servefit.decide.verify import fixed, verify, verify_text
    from servefit.files import write_text

    if is_zip(path):
        if fix or against:
            raise ServefitError(
                f"{path} is a zip, which is only read.", hint="Unpack it, then name the decision.md in it."
            )
        with tempfile.TemporaryDirectory(prefix="servefit-") as folder:
            report = verify(unpack(path, Path(folder)))
            return _Done(report=_rerun(report) if again else report)
    report = verify(path)
    if fix and (text := fixed(report)) != report.decision.text:
        write_text(report.path, text)
        report = verify_text(parse_decision(text, where=str(report.path)), report.path)
    if again:
        report = _rerun(report)
    if against is None or not report.holds:
        return _Done(report=report)
    assert report.ledger is not None, "a report without a plan does not hold"
    held = hold(report.decision, report.ledger, against)
    return _Done(report=_record(report, held, against), held=held)


def _rerun(report: Report) -> Report:
    from servefit.decide.rerun import rerun

    return rerun(report)


def _record(report: Report, held: Held, run: Path) -> Report:
    """The report after the run's result stands in the file; a result that stands there already is not repeated."""
    from servefit.decide.decision import Checked, recorded
    from servefit.decide.verify import verify_text
    from servefit.files import write_text
    from servefit.records import content_sha256

    if held.result == "open":
        return report
    run = run.parent if run.name == "run.json" else run
    where = Path(os.path.relpath(run.resolve(), report.path.parent.resolve())).as_posix()
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    checked = Checked(run=where, sha256=content_sha256(run), date=today, result=held.result)
    newest = report.decision.front.checked_against[:1]
    if [(c.sha256, c.result) for c in newest] == [(checked.sha256, checked.result)]:
        return report
    text = recorded(report.decision, checked, where=str(report.path))
    write_text(report.path, text)
    return verify_text(parse_decision(text, where=str(report.path)), report.path)


def to_json(done: list[_Done], files: tuple[Path, ...]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "schema_version": 1,
        "holds": all(one.report.holds for one in done),
        "findings": [_finding(f, p) for p, one in zip(files, done, strict=True) for f in one.report.findings],
        "files": [
            {
                "path": path,
                "status": one.report.decision.front.status,
                "candidate": one.report.decision.front.candidate,
                "holds": one.report.holds,
                "checked": one.report.checked,
                "against": one.held,
            }
            for path, one in zip(files, done, strict=True)
        ],
    }


def _finding(f: Finding, path: Path) -> dict[str, Any]:
    return {
        "file": path, "line": f.line, "code": f.code, "level": f.level, "name": f.name, "written": f.written,
        "recomputed": f.recomputed, "message": f.message,
    }  # fmt: skip


def _print(path: Path, one: _Done, style: str) -> None:
    report = one.report
    for f in report.findings:
        if style == "github":
            title = _property(f"{f.code} {f.name}".strip())
            click.echo(f"::{f.level} file={_property(str(path))},line={f.line},title={title}::{_data(f.message)}")
        else:
            note = " (note)" if f.level == "warning" else ""
            click.echo(plain(f"{path}:{f.line}: {f.code}{note}{f' {f.name}' if f.name else ''}: {f.message}"))
    errors = sum(f.level == "error" for f in report.findings)
    said = "holds" if report.holds else f"does not hold: {fmt_count(errors, 'finding')}"
    click.echo(
        f"{path} ({report.decision.front.status}): {report.checked} bound numbers and words recomputed; it {said}."
    )
    if one.held:
        _print_held(one.held, report.decision.front.status)
    if style == "text":
        click.echo(_next(path, one))


def _print_held(held: Held, status: str) -> None:
    rows = [
        (
            p.name,
            show(p.predicted, p.dim),
            expected_said(p),
            show(p.measured, p.dim),
            show(p.gap_frac, "frac", signed=True),
        )
        for p in held.pairs
    ]
    table(("figure", "predicted", "expected", "measured", "measured - predicted"), rows, right=(1, 2, 3, 4))
    for outcome in held.outcomes:
        used = ", ".join(f"{name} = {show(value, dim)}" for name, value, dim in outcome.values)
        click.echo(plain(f"{outcome.expression}: {'met' if outcome.holds else 'not met'} ({used})"))
    for note in held.notes:
        click.echo(plain(f"note: {note}"))
    verdict = {
        "overturned": "OVERTURNED by",
        "confirmed": "confirmed by",
        "open": "neither confirmed nor overturned by",
    }
    click.echo(plain(f"The decision is {verdict[held.result]} {held.run}."))
    if said := prediction_said(held):
        click.echo(plain(said))
    if status == "overturned" and held.result == "confirmed":
        click.echo("It stays overturned: an earlier run did that. Plan again with what was measured.")


def _next(path: Path, one: _Done) -> str:
    report = one.report
    if one.held and one.held.result == "overturned":
        return "next: servefit calibrate on that run, then plan and decide again"
    if one.held and one.held.result == "open":
        return "next: measure again with the plan's own load (its workload, or its rate, users and lengths)"
    if report.holds and one.held:
        return (
            f"next: servefit verify {path} in your CI, and again with --against when the traffic or the engine changes"
        )
    if report.holds:
        return f"next: measure the real system, then servefit verify {path} --against RUN"
    if any(f.code == "SOURCE" and f.name == "plan" for f in report.findings):
        plan = at(report.path, report.decision.front.plan.path)
        return f"next: bring the plan that was decided on back, or decide again: servefit decide {plan} --out {report.path} --force"
    if any(f.code == "STALE" for f in report.findings):
        return f"next: servefit verify {path} --fix respells stale numbers"
    return "next: mend the lines above, or write it again with servefit decide"


def _data(text: str) -> str:
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
