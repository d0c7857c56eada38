"""Data -> a figure: a Vega-Lite specification, a sentence that says what it shows, and its numbers as a table.

A specification is a plain dictionary, so the same figure is drawn by the page, by the report and (with the extra
`charts`) as PNG or SVG. Times are shown in ms; every line that is a target is dashed and named.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servefit.records import RequestRecord, Run
from servefit.units import fmt

COLORS = ("#2a78b8", "#d9730d", "#1b8a5a", "#b5409b", "#8a6d00", "#c0392b", "#4b5bd6", "#6b7280")
"""Told apart by people with colour-blindness and dark enough on white (3:1 or more), light enough on near-black."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure that can be drawn anywhere."""

    name: str
    """A word for files and anchors, e.g. "latency-against-load"."""
    title: str
    description: str
    """What a reader sees in it, for those who cannot: the text alternative."""
    spec: dict[str, Any]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def _chart(
    name: str, title: str, description: str, columns: Sequence[str], rows: Iterable[Sequence[str]], **spec: Any
) -> Chart:
    full = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": description,
        "width": "container",
        "height": 260,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "background": "transparent",
        **spec,
    }
    return Chart(
        name=name,
        title=title,
        description=description,
        spec=full,
        columns=tuple(columns),
        rows=tuple(tuple(r) for r in rows),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 4)


def _quantity(field: str, title: str, **more: Any) -> dict[str, Any]:
    return {"field": field, "type": "quantitative", "title": title, **more}


def _series(field: str, title: str, domain: Sequence[str]) -> dict[str, Any]:
    return {
        "field": field,
        "type": "nominal",
        "title": title,
        "scale": {"domain": list(domain), "range": [COLORS[i % len(COLORS)] for i in range(len(domain))]},
        "legend": {"symbolOpacity": 1},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One (x, y) of a named line; `low` and `high` are its interval where there is one."""

    series: str
    x: float
    y: float | None
    low: float | None = None
    high: float | None = None


def lines(
    points: Sequence[Point],
    *,
    name: str,
    title: str,
    x: str,
    y: str,
    target: float | None = None,
    band: tuple[float, float] | Literal["none"] | None = None,
    log_x: bool = False,
    log_y: bool = False,
    places: int = 1,
) -> Chart:
    """Lines with points and intervals, a dashed target, and a band of x that passes.

    A figure that is drawn again and again keeps its shape, so that only its data is replaced: `band` is "none" there, not
    None, where nothing passes. `y` values are drawn as given (convert to the unit of the axis title first).
    """
    series = list(dict.fromkeys(p.series for p in points))
    data = [{"s": p.series, "x": p.x, "y": p.y, "lo": p.low, "hi": p.high} for p in points if p.y is not None]
    x_scale = {"type": "log", "base": 2} if log_x else {"zero": False}
    y_scale = {"type": "log"} if log_y else {"zero": True}
    x_field = _quantity("x", x, scale=x_scale)
    color = _series("s", "", series)
    if len(series) < 2:
        color["legend"] = None
    layer: list[dict[str, Any]] = []
    if band:
        layer.append(
            {
                "data": {"values": [] if band == "none" else [{"x": band[0], "x2": band[1]}]},
                "mark": {"type": "rect", "opacity": 0.15, "color": COLORS[2]},
                "encoding": {"x": {"field": "x", "type": "quantitative"}, "x2": {"field": "x2"}},
            }
        )
    if any(p.low is not None for p in points):
        layer.append(
            {
                "data": {"values": [d for d in data if d["lo"] is not None]},
                "mark": {"type": "rule", "strokeWidth": 3, "opacity": 0.35},
                "encoding": {
                    "x": x_field,
                    "y": {"field": "lo", "type": "quantitative"},
                    "y2": {"field": "hi"},
                    "color": color,
                },
            }
        )
    layer.append(
        {
            "data": {"values": data},
            "mark": {"type": "line", "point": len(data) <= 60, "tooltip": True},
            "encoding": {"x": x_field, "y": _quantity("y", y, scale=y_scale), "color": color},
        }
    )
    if target is not None:
        layer += _target(target, f"target {fmt(target, places)}")
    said = [name for name in series if name != x.partition(",")[0]]  # "TTFT over TTFT" says nothing
    text = f"{title}: {', '.join(said)} over {x}." if said else f"{title}."
    if target is not None:
        text += f" The dashed line is the target, {fmt(target, places)}."
    rows = [(p.series, fmt(p.x, _places(p.x)), fmt(p.y, places), _interval(p, places)) for p in points]
    return _chart(name, title, text, ("series", x, y, "interval"), rows, layer=layer)


def _places(value: float) -> int:
    return 0 if float(value).is_integer() else 2


def _interval(point: Point, places: int) -> str:
    return "-" if point.low is None or point.high is None else f"{fmt(point.low, places)} to {fmt(point.high, places)}"


def _target(value: float, label: str) -> list[dict[str, Any]]:
    data = {"values": [{"y": value, "label": label}]}
    rule = {
        "mark": {"type": "rule", "strokeDash": [6, 4], "color": COLORS[5]},
        "encoding": {"y": {"field": "y", "type": "quantitative"}},
    }
    text = {
        "mark": {"type": "text", "align": "left", "dx": 4, "dy": -6, "color": COLORS[5], "x": 0},
        "encoding": {"y": {"field": "y", "type": "quantitative"}, "text": {"field": "label"}},
    }
    return [{"data": data, **rule}, {"data": data, **text}]


def roofline(
    *, peak_flop_per_s: float, bandwidth_bytes_per_s: float, points: Sequence[tuple[str, float, float]], device: str
) -> Chart:
    """The device's roof, and where prefill and decode stand under it.

    `points` are (name, flop per byte, achieved flop per second). The ridge is at peak / bandwidth flop per byte.
    Source: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.
    """
    ridge = peak_flop_per_s / bandwidth_bytes_per_s
    ends = [min([0.5, ridge / 64, *(p[1] / 2 for p in points)]), max([ridge * 16, *(p[1] * 2 for p in points)])]
    roof = [{"x": x, "y": min(peak_flop_per_s, x * bandwidth_bytes_per_s) / 1e12} for x in (ends[0], ridge, ends[1])]
    dots = [{"x": i, "y": f / 1e12, "s": n, "c": COLORS[k % len(COLORS)]} for k, (n, i, f) in enumerate(points)]
    color = {"field": "c", "type": "nominal", "scale": None}
    axis = {"tickCount": 5, "format": "~g"}
    x_field = _quantity("x", "flop per byte read (log)", scale={"type": "log"}, axis=axis)
    y_field = _quantity("y", "Tflop/s (log)", scale={"type": "log"}, axis=axis)
    layer = [
        {
            "data": {"values": roof},
            "mark": {"type": "line", "color": COLORS[7]},
            "encoding": {"x": x_field, "y": y_field},
        },
        {
            "data": {"values": dots},
            "mark": {"type": "point", "filled": True, "size": 120, "tooltip": True},
            "encoding": {"x": x_field, "y": y_field, "color": color},
        },
    ]
    middle = (ends[0] * ends[1]) ** 0.5
    for place, dot in enumerate(dots):  # one above, one below, each towards the middle: names of near dots do not meet
        side = "left" if dot["x"] < middle else "right"
        mark = {"type": "text", "align": side, "dy": 18 if place % 2 else -12}
        encoding = {"x": x_field, "y": y_field, "text": {"field": "s"}, "color": color}
        layer.append({"data": {"values": [dot]}, "mark": mark, "encoding": encoding})
    share = [(n, i, f, f / min(peak_flop_per_s, i * bandwidth_bytes_per_s)) for n, i, f in points]
    said = "; ".join(f"{n} reaches {fmt(s * 100)}% of its roof" for n, _, _, s in share)
    text = f"Roofline of {device}: the ridge is at {fmt(ridge, 1)} flop per byte. {said}."
    rows = [(n, fmt(i, 2), fmt(f / 1e12, 3), f"{fmt(s * 100, 1)}%") for n, i, f, s in share]
    return _chart(
        "roofline",
        f"Roofline, {device}",
        text,
        ("what", "flop per byte", "Tflop/s", "share of the roof"),
        rows,
        layer=layer,
    )


def seat_timeline(run: Run, *, until_s: float | None = None, most: int = 200) -> Chart:
    """When each request waited, prefilled (until its first token) and decoded: a bar a request, by due time."""
    rows = sorted((r for r in run.load_rows if r.chunk_s), key=lambda r: r.due_s)[:most]
    data: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        if until_s is not None and row.due_s > until_s:
            break
        data.append({"r": number, "a": row.due_s, "b": row.chunk_s[0], "what": "waiting and prefill"})
        data.append({"r": number, "a": row.chunk_s[0], "b": row.chunk_s[-1], "what": "decode"})
    spec = {
        "data": {"values": data},
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": _quantity("a", "seconds since the start"),
            "x2": {"field": "b"},
            "y": {
                "field": "r",
                "type": "ordinal",
                "title": "requests, by due time",
                "axis": {"labels": False, "ticks": False},
            },
            "color": _series("what", "", ["waiting and prefill", "decode"]),
        },
    }
    text = f"{len(data) // 2} requests: how long each waited for its first token and then received tokens."
    table = [
        (r.id, fmt(r.due_s, 2), fmt(r.chunk_s[0] - r.due_s, 3), fmt(r.chunk_s[-1] - r.chunk_s[0], 3)) for r in rows[:50]
    ]
    return _chart(
        "timeline", "Requests over time", text, ("request", "due, s", "to first token, s", "decode, s"), table, **spec
    )


def waterfall(row: RequestRecord, *, label: str) -> Chart:
    """One request from due to its last token: queue, prefill and decode where the server tells, else to the first token."""
    parts = _parts(row)
    data = [{"a": a * 1e3, "b": b * 1e3, "what": what} for what, a, b in parts]
    spec = {
        "data": {"values": data},
        "height": 60,
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "x": _quantity("a", "ms since due"),
            "x2": {"field": "b"},
            "color": _series("what", "", [p[0] for p in parts]),
        },
    }
    text = f"{label}: " + ", ".join(f"{what} {fmt((b - a) * 1e3, 1)} ms" for what, a, b in parts) + "."
    rows = [(what, fmt(a * 1e3, 1), fmt((b - a) * 1e3, 1)) for what, a, b in parts]
    return _chart(
        f"waterfall-{label.replace(' ', '-')}",
        f"Where the time went: {label}",
        text,
        ("part", "from, ms", "took, ms"),
        rows,
        **spec,
    )


def _parts(row: RequestRecord) -> list[tuple[str, float, float]]:
    assert row.chunk_s, "a waterfall needs a request with tokens"
    first, last = row.chunk_s[0] - row.due_s, row.chunk_s[-1] - row.due_s
    told = row.server or {}
    queue, prefill = told.get("queue_s"), told.get("prefill_s")
    if queue is None or prefill is None or queue + prefill > first:
        return [("to first token", 0.0, first), ("decode", first, last)]
    rest = first - queue - prefill
    return [
        ("front end and network", 0.0, rest),
        ("queue", rest, rest + queue),
        ("prefill", rest + queue, first),
        ("decode", first, last),
    ]


def itl_heat(run: Run, *, bins: int = 60) -> Chart:
    """ITL over time as a strip: where in the run the gaps were long (stalls, preemption, a slowing machine)."""
    gaps = sorted((b, b - a) for r in run.load_rows if r.ok for a, b in zip(r.token_s, r.token_s[1:], strict=False))
    if not gaps:
        return _chart(
            "itl-over-time",
            "ITL over time",
            "No gaps were observed.",
            ("from, s", "worst ITL, ms"),
            [],
            data={"values": []},
            mark="rect",
        )
    start, width = gaps[0][0], max(gaps[-1][0] - gaps[0][0], 1e-9) / bins
    worst: dict[int, float] = {}
    for at, gap in gaps:
        index = min(int((at - start) / width), bins - 1)
        worst[index] = max(worst.get(index, 0.0), gap)
    data = [
        {"t": start + i * width, "t2": start + (i + 1) * width, "ms": round(g * 1e3, 3)}
        for i, g in sorted(worst.items())
    ]
    spec = {
        "data": {"values": data},
        "height": 50,
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": _quantity("t", "seconds since the start", scale={"zero": False}),
            "x2": {"field": "t2"},
            "color": _quantity("ms", "worst ITL, ms", scale={"scheme": "viridis"}),
        },
    }
    top = max(data, key=lambda d: d["ms"])
    text = f"The worst ITL in each {fmt(width, 2)} s: at most {fmt(top['ms'], 1)} ms, at {fmt(top['t'], 1)} s."
    return _chart(
        "itl-over-time",
        "Worst ITL over time",
        text,
        ("from, s", "worst ITL, ms"),
        [(fmt(d["t"], 1), fmt(d["ms"], 1)) for d in data],
        **spec,
    )


def pareto(points: Sequence[tuple[str, float, float, str, bool]], *, x: str, y: str) -> Chart:
    """Candidates by cost and latency (lower is better on both): the front is joined by a line.

    `points` are (name, x, y, group, on the front).
    """
    data = [{"n": n, "x": px, "y": py, "g": g, "f": f} for n, px, py, g, f in points]
    groups = list(dict.fromkeys(p[3] for p in points))
    x_field, y_field = _quantity("x", x, scale={"zero": False}), _quantity("y", y, scale={"zero": False})
    front = {
        "data": {"values": [d for d in data if d["f"]]},
        "mark": {"type": "line", "color": COLORS[7], "strokeDash": [2, 2]},
    }
    dots = {"data": {"values": data}, "mark": {"type": "point", "filled": True, "size": 70, "tooltip": True}}
    layer = [
        {**front, "encoding": {"x": x_field, "y": y_field}},
        {**dots, "encoding": {"x": x_field, "y": y_field, "color": _series("g", "", groups)}},
    ]
    best = [p[0] for p in points if p[4]]
    text = f"{len(points)} candidates by {x} and {y}; on the front: {', '.join(best) or 'none'}."
    rows = [(n, fmt(px, 2), fmt(py, 2), g, "yes" if f else "") for n, px, py, g, f in points]
    return _chart("pareto", "What latency costs", text, ("candidate", x, y, "group", "on the front"), rows, layer=layer)


def distribution(runs: Sequence[tuple[str, Sequence[float]]], *, what: str, target_s: float | None = None) -> Chart:
    """The cumulative distribution of a latency: the share of observations at or below each value, a line a run."""
    points: list[Point] = []
    for name, values in runs:
        ordered = sorted(values)
        n = len(ordered)
        picks = sorted({*range(0, n, max(1, n // 100)), n - 1}) if n else []
        points += [Point(series=name, x=ordered[i] * 1e3, y=100 * (i + 1) / n) for i in picks]
    chart = lines(
        points,
        name=f"distribution-{what.lower()}",
        title=f"{what}, share of observations at or below",
        x=f"{what}, ms",
        y="%",
    )
    if target_s is not None:
        rule = {
            "data": {"values": [{"x": _ms(target_s)}]},
            "mark": {"type": "rule", "strokeDash": [6, 4], "color": COLORS[5]},
            "encoding": {"x": {"field": "x", "type": "quantitative"}},
        }
        chart.spec["layer"].append(rule)
    return chart
