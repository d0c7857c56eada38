"""Figures as text, for a terminal: a waterfall of one request, ITL over time as a strip, prefill and decode under the roof."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servefit.explain import formulas
from servefit.explain.case import Case
from servefit.explain.decompose import Wait
from servefit.records import Run
from servefit.stats import percentile
from servefit.units import fmt, fmt_percent, fmt_s

SHADES = " .:-=+*#%@"
"""From the usual gap to ten times it and more."""


def waterfall(waits: tuple[Wait, ...], *, width: int = 60) -> list[str]:
    """Each wait as a bar of its parts, all on one scale; a letter a part, named below.

    >>> from servefit.explain.decompose import Observed, divide
    >>> wait = divide(Observed(ttft_s=0.775, itl_s=0.022, isl=6200, osl=300, prefill_tok_per_s=8000), label="typed")
    >>> print(chr(10).join(waterfall((wait,), width=20)))
    typed  |PPDDDDDDDDDDDDDDDDDD| 7.353 s
    P prefill, D decode
    """
    longest = max((w.total_s for w in waits), default=0.0)
    if longest <= 0:
        return []
    letters = {"not sent yet": "N", "connecting": "C", "network": "W", "queue": "Q", "prefill": "P", "front end and rest": "F", "start": "S",
               "decode": "D"}  # fmt: skip
    room = max(len(w.label) for w in waits)
    lines, used = [], {}
    for wait in waits:
        bar, at = "", 0.0
        for part in wait.parts:
            at += part.s
            cells = round(at / longest * width) - len(bar)
            bar += letters[part.name] * cells
            if cells:
                used[letters[part.name]] = part.name
        lines.append(f"{wait.label:<{room}}  |{bar:<{width}}| {formulas.exact_s(wait.total_s)}")
    lines.append(", ".join(f"{letter} {name}" for letter, name in used.items()))
    return lines


def bars(figure: Mapping[str, Any], *, width: int = 40, most: int = 12) -> list[str]:
    """A figure's points as bars of text, a line each; series of one size share a scale, others have their own.

    >>> points = {"series": {"a": [[1, 0.1], [2, 0.2]]}, "title": "T", "x": "users", "y": "gap (s)"}
    >>> print(chr(10).join(bars(points, width=10)))
    T: gap by users
    a  1 |#####     | 100 ms
    a  2 |##########| 200 ms
    """
    series = {name: points for name, points in figure["series"].items() if points}
    tops = {name: max(y for _, y in points) for name, points in series.items()}
    if not tops or min(tops.values()) <= 0:
        return []
    shared = max(tops.values()) if max(tops.values()) < 10 * min(tops.values()) else None
    timed = "(s)" in figure["y"]
    title = str(figure["title"])
    lines = [title if " by " in title else f"{title}: {figure['y'].removesuffix(' (s)')} by {figure['x']}"]
    labels = {name: [fmt(x, 0 if float(x).is_integer() else 2) for x, _ in points] for name, points in series.items()}
    room, wide = max(map(len, series)), max(len(label) for each in labels.values() for label in each)
    for name, points in series.items():
        step = -(-len(points) // most)
        for (_, y), label in list(zip(points, labels[name], strict=True))[::step]:
            bar = "#" * round(y / (shared or tops[name]) * width)
            lines.append(f"{name:<{room}}  {label:>{wide}} |{bar:<{width}}| {fmt_s(y) if timed else fmt(y, 2)}")
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """ITL over time: the worst gap in each of equally long slices, None where no token came."""

    start_s: float
    slice_s: float
    usual_s: float
    worst_s: tuple[float | None, ...]


def itl_strip(run: Run, *, slices: int = 60) -> Strip | None:
    """The worst gap in each slice of the run's time; None where there are no gaps."""
    gaps = [(b, b - a) for r in run.load_rows if r.ok for a, b in zip(r.token_s, r.token_s[1:], strict=False)]
    if not gaps:
        return None
    start, end = min(t for t, _ in gaps), max(t for t, _ in gaps)
    each = max((end - start) / slices, 1e-9)
    worst: list[float | None] = [None] * slices
    for at, gap in gaps:
        index = min(int((at - start) / each), slices - 1)
        worst[index] = max(worst[index] or 0.0, gap)
    usual = percentile((g for _, g in gaps), 50) or 0.0
    return Strip(start_s=start, slice_s=each, usual_s=usual, worst_s=tuple(worst))


def draw_strip(strip: Strip) -> list[str]:
    """The strip as one line of shades (log scale from the usual gap to ten times it), with a legend.

    >>> print(draw_strip(Strip(start_s=0, slice_s=1, usual_s=0.01, worst_s=(0.01, 0.03, None, 0.1, 1.0)))[0])
    | =_@@|
    """
    cells = ""
    for gap in strip.worst_s:
        if gap is None:
            cells += "_"
            continue
        level = math.log10(max(gap / strip.usual_s, 1.0)) if strip.usual_s else 0.0
        cells += SHADES[min(round(level * (len(SHADES) - 1)), len(SHADES) - 1)]
    worst = max((g for g in strip.worst_s if g is not None), default=0.0)
    return [
        f"|{cells}|",
        (
            f"worst gap in each {fmt_s(strip.slice_s)}: blank is the usual {fmt_s(strip.usual_s)}, @ ten times that or more, "
            f"_ no token; the worst is {fmt_s(worst)}"
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """Prefill or decode under the roof: arithmetic intensity, what was reached, what the roof allows there."""

    name: str
    flop_per_byte: float
    flop_per_s: float
    roof_flop_per_s: float

    @property
    def roof_frac(self) -> float:
        """The share of the roof that is reached."""
        return self.flop_per_s / self.roof_flop_per_s


def roofline_dots(case: Case) -> tuple[Dot, ...]:
    """Prefill and decode of this case under its device's roof; empty where a wall is not known.

    Decode: 2 FLOP a parameter and token over the bytes of a step. Prefill: the whole prompt's FLOP over one read of the
    weights. The roof is min(peak, intensity x bandwidth). Source: Williams, Waterman, Patterson, CACM 52(4), 2009.
    """
    wall, seen = case.wall, case.seen
    if not (wall.weight_bytes and wall.bandwidth_bytes_per_s and wall.active_params):
        return ()
    peak = wall.flop_per_s or math.inf
    dots = []
    together = max(case.features.running_mean, 1.0) if case.features else 1.0
    context = (seen.isl or 0) + seen.osl // 2
    read = wall.weight_bytes + (wall.kv_bytes_per_tok or 0.0) * context * together
    if seen.itl_s > 0:
        flop = 2 * wall.active_params * together
        roof = min(peak, flop / read * wall.bandwidth_bytes_per_s)
        dots.append(Dot(name="decode", flop_per_byte=flop / read, flop_per_s=flop / seen.itl_s, roof_flop_per_s=roof))
    reading = seen.prefill_s or seen.ttft_s - (seen.queue_s or 0.0)
    if seen.isl and reading > 0:
        flop = 2 * wall.active_params * seen.isl
        roof = min(peak, flop / wall.weight_bytes * wall.bandwidth_bytes_per_s)
        dots.append(
            Dot(name="prefill", flop_per_byte=flop / wall.weight_bytes, flop_per_s=flop / reading, roof_flop_per_s=roof)
        )
    return tuple(dots)


def draw_roofline(dots: tuple[Dot, ...], wall_origin: str, *, width: int = 40) -> list[str]:
    """Each dot as a bar of its share of the roof, with which wall the roof is there."""
    lines = [f"under the roof of {wall_origin or 'the figures given'}:"] if dots else []
    for dot in dots:
        full = min(round(dot.roof_frac * width), width)
        over = " ABOVE THE ROOF: see the causes" if dot.roof_frac > 1.02 else ""
        lines.append(
            f"{dot.name:<8} |{'#' * full:<{width}}| {fmt_percent(dot.roof_frac)} of {fmt(dot.roof_flop_per_s / 1e12, 2)} TFLOP/s at "
            f"{fmt(dot.flop_per_byte, 1)} FLOP a byte{over}"
        )
    return lines
