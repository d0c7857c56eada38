"""A sweep as figures: a promise against the load with its target as a line, and goodput beside throughput as text."""

from servefit.charts.figures import Chart, Point, lines
from servefit.plan.sweep import NOUNS, Step, Sweep, show_load


def latency_against_load(sweep: Sweep, name: str) -> Chart:
    """One latency against the load: its value with interval, the target dashed, the band of loads that hold.

    `name` is one of the sweep's latency promises ("ttft", "tpot", "e2e"), drawn in ms.
    """
    limit = next(limit for limit in sweep.limits if limit.name == name)
    points = [_point(step, name) for step in sweep.steps]
    band = (sweep.steps[0].load, limit.up_to) if limit.up_to is not None else None
    return lines(
        points, name=f"{name}-against-load", title=f"{limit.label} against load", x=NOUNS[sweep.kind],
        y=f"{limit.label}, ms", target=limit.target * 1e3, band=band, log_x=True, log_y=True,
    )  # fmt: skip


def _point(step: Step, name: str) -> Point:
    held = next(h for h in step.held if h.name == name)
    low, high = held.interval or (None, None)
    return Point(
        series=held.label, x=step.load, y=None if held.value is None else held.value * 1e3,
        low=None if low is None else low * 1e3, high=None if high is None else high * 1e3,
    )  # fmt: skip


def as_text(sweep: Sweep, *, width: int = 40) -> tuple[str, ...]:
    """Goodput beside throughput as bars of text: one line a load, "#" kept every promise, "." ended too late."""
    most = max((s.req_per_s or 0.0 for s in sweep.steps), default=0.0)
    if not most:
        return ()
    labels = [show_load(sweep.kind, s.load) for s in sweep.steps]
    wide = max(map(len, labels))
    out = []
    for label, step in zip(labels, sweep.steps, strict=True):
        whole = round(width * (step.req_per_s or 0.0) / most)
        good = min(whole, round(width * (step.goodput_req_per_s or 0.0) / most))
        marks = [word for word, is_it in (("knee", step.load == sweep.knee), ("breaks", not step.holds)) if is_it]
        out.append(
            f"{label:>{wide}} |{'#' * good}{'.' * (whole - good)}{' ' * (width - whole)}| {', '.join(marks)}".rstrip()
        )
    return tuple(out)
