"""servefit explain: why is it slow, in numbers; from one run, two runs, or numbers typed in."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from servefit.cli.show import emit_json, plain, table
from servefit.errors import ServefitError
from servefit.explain.case import Wall, wall_of
from servefit.explain.decompose import observe_typed
from servefit.explain.fixes import Change, Wish
from servefit.explain.pictures import draw_roofline, draw_strip, itl_strip, roofline_dots, waterfall
from servefit.explain.rules import Diagnosis, diagnose_run, diagnose_typed
from servefit.records import load_run
from servefit.units import fmt, fmt_percent, fmt_s, parse_bytes, parse_number, parse_plain, parse_seconds

OF_A_MEASUREMENT = (
    "ttft", "itl", "e2e", "isl", "osl", "prefill_rate", "ttft_p95", "short_ttft", "short_itl", "short_isl",
)  # fmt: skip
"""What is typed instead of a run, and not beside one."""


@click.command(name="explain")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--ttft", help="Time to the first token, e.g. 780ms (p50).")
@click.option("--itl", help="Gap between tokens, e.g. 22ms (p50).")
@click.option("--e2e", help="The whole time; needs one of the two above.")
@click.option("--isl", help="Prompt tokens.")
@click.option("--osl", help="Answer tokens.")
@click.option("--ttft-p95", help="The slow one of 20: p95 of TTFT.")
@click.option("--prefill-rate", help="Prompt tokens read a second, where known.")
@click.option("--short-ttft", help="TTFT of a short prompt on the same server.")
@click.option("--short-itl", help="Gap with that short prompt.")
@click.option("--short-isl", help="Its prompt tokens.")
@click.option("--stable-tok", help="Prompt tokens at the start that never change: what caching could reuse.")
@click.option("--cached-ttft", help="TTFT with caching, as measured or promised.")
@click.option("--model", help="A model of the catalogue or a config.json: see servefit models.")
@click.option("--device", help="A device of the catalogue: see servefit devices.")
@click.option("--precision", help="Of the weights: bf16, fp8, int8, q4 ... (see servefit models).")
@click.option("--bandwidth", help="Memory bandwidth, e.g. 273GB/s.")
@click.option("--weights", help="Bytes read per token, e.g. 4.9GB (the model file's size).")
@click.option("--kv-per-tok", help="KV bytes per token, e.g. 131072.")
@click.option("--show-work", is_flag=True, help="Every formula with your numbers in it.")
@click.option("--figures", type=click.Path(path_type=Path), help="The run's figures, as SVG files in a folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(runs: tuple[Path, ...], show_work: bool, figures: Path | None, as_json: bool, **typed: str | None) -> None:
    """Why is it slow: slow to start, or slow to type? Which wall?

    RUNS: a run folder, and optionally a second one to compare with (a short prompt, one user). Or type what you know:

    servefit explain --ttft 780ms --itl 22ms --isl 6200 --osl 300 --show-work
    """
    wall = _wall(typed)
    wish = Wish(stable_tok=_count(typed["stable_tok"]), cached_ttft_s=_seconds(typed["cached_ttft"]))
    if len(runs) > 2:
        raise ServefitError(
            f"{len(runs)} runs were named; explain takes one, or two to compare.", hint="Name the slow one first."
        )
    said = [name for name in OF_A_MEASUREMENT if typed[name] is not None]
    if runs and said:
        raise ServefitError(
            f"A run was named and --{said[0].replace('_', '-')} was typed; a run has its own numbers.",
            hint="Leave one of them out.",
        )
    if figures and not runs:
        raise ServefitError("--figures draws a run, and none was named.", hint="servefit explain RUN --figures FOLDER")
    if runs:
        other = load_run(runs[1]) if len(runs) == 2 else None
        run = load_run(runs[0])
        found = diagnose_run(run, other=other, wall=wall, wish=wish)
    else:
        found = _typed(typed, wall, wish)
    if figures:
        from servefit.charts.embed import save_images
        from servefit.charts.of_run import run_charts

        save_images(run_charts(run), figures)
    if as_json:
        emit_json(to_json(found))
    else:
        _print(found, show_work=show_work)


def _typed(typed: dict[str, str | None], wall: Wall, wish: Wish) -> Diagnosis:
    seen = observe_typed(
        ttft_s=_seconds(typed["ttft"]), itl_s=_seconds(typed["itl"]), e2e_s=_seconds(typed["e2e"]),
        isl=_count(typed["isl"]), osl=_count(typed["osl"]), prefill_rate=_rate(typed["prefill_rate"]),
    )  # fmt: skip
    short = None
    if typed["short_itl"] or typed["short_ttft"]:
        short = observe_typed(
            ttft_s=_seconds(typed["short_ttft"]), itl_s=_seconds(typed["short_itl"]), e2e_s=None,
            isl=_count(typed["short_isl"]), osl=seen.osl, prefill_rate=None,
        )  # fmt: skip
    return diagnose_typed(seen, short=short, ttft_p95_s=_seconds(typed["ttft_p95"]), wall=wall, wish=wish)


def _wall(typed: dict[str, str | None]) -> Wall:
    """The walls from the catalogue, each figure replaced by what was typed."""
    weights, kv, bandwidth = typed["weights"], typed["kv_per_tok"], typed["bandwidth"]
    wall = wall_of(typed["model"], typed["device"], typed["precision"])
    changes: dict[str, Any] = {}
    if weights:
        changes["weight_bytes"] = float(parse_bytes(weights, bare="gb"))
    if kv:
        changes["kv_bytes_per_tok"] = float(parse_bytes(kv))
    if bandwidth:
        changes["bandwidth_bytes_per_s"] = float(parse_bytes(bandwidth.removesuffix("/s"), bare="gb"))
    if any(value <= 0 for value in changes.values()):
        raise ServefitError("Weights, KV and bandwidth are above zero.", hint="Leave out what is not known.")
    return replace(wall, **changes, origin="; ".join(filter(None, (wall.origin, "typed" if changes else ""))))


def _seconds(text: str | None) -> float | None:
    """Seconds; a bare number is milliseconds, as people write them."""
    return None if text is None else parse_seconds(text, bare="ms")


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    value = parse_plain(text, "tok/s")
    if value <= 0:
        raise ServefitError(
            f"A rate of '{text}' is not above zero.", hint="Write the prompt tokens read a second, e.g. 8,000."
        )
    return value


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    number, unit = parse_number(text)
    if number != int(number) or number < 1 or unit not in {"", "tok", "tokens"}:
        raise ServefitError(f"'{text}' is not a number of tokens.", hint="Write a whole number, e.g. 6,200.")
    return int(number)


# --- printing -------------------------------------------------------------------------------------------------------


def to_json(found: Diagnosis) -> dict[str, Any]:
    """The diagnosis as one object: times in seconds."""
    return {
        "sentence": found.sentence,
        "kind": found.waits[0].kind,
        "waits": found.waits,
        "ceiling_frac": found.ceiling_frac,
        "causes": found.causes,
        "fixes": found.fixes,
        "figures": {
            "roofline": [
                {
                    "name": d.name,
                    "flop_per_byte": d.flop_per_byte,
                    "flop_per_s": d.flop_per_s,
                    "roof_flop_per_s": d.roof_flop_per_s,
                    "roof_frac": d.roof_frac,
                }
                for d in roofline_dots(found.case)
            ],
            "itl_strip": itl_strip(found.case.features.run) if found.case.features else None,
        },
        "work": [{"what": w.what, "line": w.line, "value": w.value} for w in found.work],
    }


def _print(found: Diagnosis, *, show_work: bool) -> None:
    click.echo(plain(found.sentence))
    names = list(dict.fromkeys(p.name for w in found.waits for p in w.parts))
    rows = [[name, *(_part(w, name) for w in found.waits), _how(found, name)] for name in names]
    rows.append(["whole wait", *(formulas_s(w.total_s) for w in found.waits), ""])
    table(
        ["part of the wait", *(w.label for w in found.waits), "known from"], rows, right=range(1, 1 + len(found.waits))
    )
    if found.ceiling_frac is not None:
        click.echo(f"Pace: {fmt_percent(found.ceiling_frac)} of the bandwidth ceiling (large models reach 60 to 85%).")
    for cause in found.causes:
        click.echo(f"\n{cause.title} ({cause.certainty})\n  saw: {plain(cause.saw)}\n  to confirm: {cause.confirm}")
    if not found.causes:
        click.echo("\nNo rule found a cause beyond these parts.")
    _print_fixes(found)
    _print_pictures(found)
    if show_work:
        click.echo("\nThe working:")
        of_wait = found.waits[0].work
        for line in of_wait:
            click.echo(f"  {line.line}")
        if whose := _median_ttft(found):
            click.echo(f"  from here on: {whose}")
        for line in found.work[len(of_wait) :]:
            click.echo(f"  {line.line}")
        for cause in found.causes:
            click.echo(f"  {cause.code}: {plain(cause.saw)}")
    click.echo(
        "\nnext: "
        + (
            "the same again with --show-work (your numbers in every formula)"
            if not show_work
            else "servefit measure URL (again, after one change)"
            if found.case.features
            else "servefit measure URL (the same, measured)"
        )
    )


def _print_pictures(found: Diagnosis) -> None:
    click.echo("")
    for line in waterfall(found.waits):
        click.echo(plain(line))
    features = found.case.features
    strip = itl_strip(features.run) if features else None
    if strip:
        click.echo("\nITL over time:")
        for line in draw_strip(strip):
            click.echo(line)
    dots = roofline_dots(found.case)
    if dots:
        click.echo("")
    for line in draw_roofline(dots, found.case.wall.origin):
        click.echo(plain(line))


def _part(wait: Any, name: str) -> str:
    seconds = sum(p.s for p in wait.parts if p.name == name)
    return f"{formulas_s(seconds)} ({fmt_percent(seconds / wait.total_s)})" if wait.total_s else "-"


def _how(found: Diagnosis, name: str) -> str:
    return next(p.how for w in found.waits for p in w.parts if p.name == name)


def formulas_s(value: float) -> str:
    """Seconds to the millisecond above one second, so that a column adds up."""
    return f"{fmt(value, 3)} s" if value >= 1 else fmt_s(value)


def _median_ttft(found: Diagnosis) -> str:
    """Which request causes and fixes are computed for, where it is another than the one divided above; else nothing."""
    seen = found.case.seen
    if seen.ttft_s == found.waits[0].ttft_s:
        return ""
    return (
        f"the request with the median TTFT ({formulas_s(seen.ttft_s)}, gap {formulas_s(seen.itl_s)}); "
        "above, the one with the median of the whole wait"
    )


def _print_fixes(found: Diagnosis) -> None:
    whose = _median_ttft(found)
    if found.fixes:
        click.echo(f"\nWhat would help, and by how much here{f' (for {whose})' if whose else ''}:")
    for fix in found.fixes:
        saves = (
            f": {formulas_s(fix.saves_s)} ({fmt_percent(fix.saves_frac)}) off the wait"
            if fix.saves_s is not None
            else ""
        )
        click.echo(f"- {fix.title}{saves}")
        if fix.changes:
            click.echo(f"    changes: {'; '.join(_change(c) for c in fix.changes)}")
        click.echo(f"    how: {fix.how}")
        click.echo(f"    not changed: {fix.unchanged}")


def _change(change: Change) -> str:
    word = "" if change.bound == "about" else " at best"
    if change.figure in {"throughput", "cost"}:
        return f"{change.figure} x{fmt(change.after / change.before, 2)}{word}"
    return f"{change.figure} {fmt_s(change.before)} to {fmt_s(change.after)}{word}"
