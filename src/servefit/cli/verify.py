"""servefit verify: does every number in a decision still hold?"""

import tempfile
from pathlib import Path
from typing import Any

import click

from servefit.cli.show import emit_json, plain
from servefit.decide.findings import Finding
from servefit.decide.verify import Report
from servefit.errors import ServefitError


@click.command(name="verify")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--fix", is_flag=True, help="Respell the numbers that are stale; prose is never touched.")
@click.option(
    "--format", "style", type=click.Choice(["text", "github"]), default="text", help="github: annotations for CI."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(files: tuple[Path, ...], *, fix: bool, style: str, as_json: bool) -> int:
    """Does every number in a decision still hold? Recomputed from its plan and runs, offline.

    FILE is a decision.md, a bundle's folder, or a bundle's zip. Ends with 0 where all holds, 4 where something does not.
    """
    reports = [_verify(path, fix=fix) for path in files]
    if as_json:
        emit_json(to_json(reports, files))
    else:
        for path, report in zip(files, reports, strict=True):
            _print(path, report, style)
    return 0 if all(r.holds for r in reports) else 4


def _verify(path: Path, *, fix: bool) -> Report:
    from servefit.decide.bundle import is_zip, unpack
    from servefit.decide.verify import again, fixed, verify
    from servefit.files import write_text

    if is_zip(path):
        if fix:
            raise ServefitError(f"{path} is a zip, which is only read.", hint="Unpack it, then fix the decision in it.")
        with tempfile.TemporaryDirectory(prefix="servefit-") as folder:
            return verify(unpack(path, Path(folder)))
    report = verify(path)
    if fix and (text := fixed(report)) != report.decision.text:
        write_text(report.path, text)
        report = again(report, text)
    return report


def to_json(reports: list[Report], files: tuple[Path, ...]) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "schema_version": 1,
        "holds": all(r.holds for r in reports),
        "findings": [_finding(f, p) for p, r in zip(files, reports, strict=True) for f in r.findings],
        "files": [
            {
                "path": path,
                "status": r.decision.front.status,
                "candidate": r.decision.front.candidate,
                "holds": r.holds,
                "checked": r.checked,
            }
            for path, r in zip(files, reports, strict=True)
        ],
    }


def _finding(f: Finding, path: Path) -> dict[str, Any]:
    return {
        "file": path, "line": f.line, "code": f.code, "level": f.level, "name": f.name, "written": f.written,
        "recomputed": f.recomputed, "message": f.message,
    }  # fmt: skip


def _print(path: Path, report: Report, style: str) -> None:
    for f in report.findings:
        if style == "github":
            title = f"{f.code} {f.name}".strip()
            click.echo(
                f"::{f.level} file={_property(str(path))},line={f.line},title={_property(title)}::{_data(f.message)}"
            )
        else:
            name = f" {f.name}" if f.name else ""
            click.echo(
                plain(f"{path}:{f.line}: {f.code}{' (note)' if f.level == 'warning' else ''}{name}: {f.message}")
            )
    errors = sum(f.level == "error" for f in report.findings)
    said = "holds" if report.holds else f"does not hold: {errors} finding{'s' if errors != 1 else ''}"
    click.echo(
        f"{path} ({report.decision.front.status}): {report.checked} bound numbers and words recomputed; it {said}."
    )
    if style == "text":
        click.echo(_next(path, report))


def _next(path: Path, report: Report) -> str:
    if report.holds:
        return f"next: measure the real system, then servefit verify {path} --against RUN"
    if any(f.code == "STALE" for f in report.findings):
        return f"next: servefit verify {path} --fix respells stale numbers"
    return "next: mend the lines above, or write it again with servefit decide"


def _data(text: str) -> str:
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
