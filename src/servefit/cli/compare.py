"""`servefit compare`: is one run better than another, worse, or can nobody tell?"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import amounts
from servefit.errors import ServefitError
from servefit.units import fmt, fmt_percent, fmt_s, parse_number, parse_seconds

if TYPE_CHECKING:
    from servefit.explain.compare import Comparison, Difference
    from servefit.objectives import Targets
    from servefit.records import Run


@click.command(name="compare", context_settings={"show_default": True})
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("others", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--ttft", help="A good request starts within this time; the share of good ones is then compared.")
@click.option("--tpot", help="A good request's time per output token.")
@click.option("--e2e", help="A good request's whole time.")
@click.option("--confidence", default="95%", help="How sure all intervals together are.")
@click.option("--seed", type=amounts.SEED, default=0, help="Of the bootstrap.")
@click.option("--anyway", is_flag=True, help="Compare runs that were not asked the same, or are invalid.")
@click.option("--gate", is_flag=True, help="Exit code 5 where anything is worse: for CI.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    base: Path, others: tuple[Path, ...], *, anyway: bool, gate: bool, as_json: bool, **given: Any
) -> int | None:
    """Compare each RUN with BASE: better, worse or cannot tell, with an interval for every difference.

    Runs that were not asked the same (by the workload's hash) are refused; --anyway compares them with a warning.
    """
    from servefit.cli.show import emit_json
    from servefit.explain.compare import METHOD, compare, differs
    from servefit.records import load_run

    number, unit = parse_number(given["confidence"])
    confidence = float(number) / (100 if unit == "%" else 1)
    if not 0.5 <= confidence < 1:
        raise ServefitError(f"--confidence is {given['confidence']}.", hint="Write 95%, or anything from 50% to 99.9%.")
    targets = _targets(given)
    first = load_run(base)
    found: list[tuple[Path, Run, Comparison]] = []
    for path in others:
        run = load_run(path)
        _check(base, first, path, run, differs(first, run), anyway=anyway)
        found.append((path, run, compare(first, run, targets=targets, confidence=confidence, seed=given["seed"])))
    if as_json:
        pairs = [{"run": path, "label": _label(run), "comparison": result} for path, run, result in found]
        emit_json({"base": base, "label": _label(first), "method": METHOD, "seed": given["seed"], "comparisons": pairs})
    else:
        for path, run, result in found:
            _show(base, first, path, run, result)
        click.echo(f"{fmt_percent(confidence, 1 if confidence * 100 % 1 else 0)} sure, all together. {METHOD}")
        click.echo(
            "next: more requests (servefit measure -n) narrow the intervals; servefit explain RUN says why one is slow"
        )
    worse = any(d.outcome == "worse" for _, _, result in found for d in result.differences)
    return 5 if gate and worse else None


def _targets(given: dict[str, Any]) -> "Targets | None":
    from servefit.objectives import Targets

    named: dict[str, Any] = {
        f"{name}_s": parse_seconds(given[name]) for name in ("ttft", "tpot", "e2e") if given[name] is not None
    }
    return replace(Targets(), **named) if named else None


def _check(base: Path, first: "Run", path: Path, run: "Run", unlike: str | None, *, anyway: bool) -> None:
    """Refuse what cannot be compared, or only on request."""
    for where, one in ((base, first), (path, run)):
        if not one.load_rows:
            raise ServefitError(f"{where} has no requests to compare.", hint="Measure it, or name another run.")
        if one.header.verdict == "invalid" and not anyway:
            raise ServefitError(f"{where} is invalid: its figures cannot be believed.",
                                hint="servefit explain says why; --anyway compares it nevertheless.")  # fmt: skip
    if unlike and not anyway:
        raise ServefitError(
            unlike, hint="Measure both with the same workload and seed; --anyway compares them nevertheless."
        )
    if base.resolve() == path.resolve():
        raise ServefitError(f"{base} is compared with itself.", hint="Name two runs.")


def _label(run: "Run") -> str:
    header = run.header
    return f"{header.target or 'run'}: {header.model or '-'}" + (" (simulated)" if header.kind == "simulated" else "")


def _show(base: Path, first: "Run", path: Path, run: "Run", result: "Comparison") -> None:
    from servefit.cli.show import plain, table

    click.echo(plain(f"{path} ({_label(run)}) against {base} ({_label(first)})"))
    for warning in result.warnings:
        click.echo(plain(f"  warning: {warning}"))
    rows = [
        [d.name, _value(d, d.base), _value(d, d.other), _change(d), _interval(d), d.outcome] for d in result.differences
    ]
    table(["", "base", "this", "difference", "interval", ""], rows, right=(1, 2, 3, 4))
    click.echo(plain(f"{path}: {result.sentence}"))


def _value(d: "Difference", value: float | None) -> str:
    if d.unit == "s":
        return fmt_s(value)
    return fmt_percent(value, 1) if d.unit == "frac" else f"{fmt(value, 1)} tok/s"


def _signed(d: "Difference", value: float) -> str:
    number = {"s": fmt_s(value), "frac": fmt(value * 100, 1), "tok/s": fmt(value, 1)}[d.unit]
    return ("+" if value > 0 else "") + number


def _change(d: "Difference") -> str:
    if d.difference is None:
        return "-"
    share = (
        f" ({'+' if d.difference > 0 else ''}{fmt_percent(d.difference / d.base, 1)})"
        if d.base and d.unit != "frac"
        else ""
    )
    return _signed(d, d.difference) + {"s": "", "frac": " points", "tok/s": ""}[d.unit] + share


def _interval(d: "Difference") -> str:
    if d.interval is None:
        return f"too few ({min(d.n)})"
    return f"{_signed(d, d.interval[0])} to {_signed(d, d.interval[1])}"
