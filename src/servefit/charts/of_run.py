"""The figures of one run: how its waits are spread, where the time of a typical and of the worst request went, who sat when."""

import math
from collections.abc import Sequence

from servefit.charts.figures import Chart, distribution, itl_heat, seat_timeline, waterfall
from servefit.records import RequestRecord, Run
from servefit.stats import rank

MOST_ROWS = 20_000
"""Beyond so many requests figures are drawn from evenly spaced ones."""


def run_charts(run: Run) -> list[Chart]:
    """The figures of one run: distribution, ITL over time, where the time of a typical and the worst request went, all."""
    rows = [r for r in run.load_rows if r.ok and r.chunk_s]
    if not rows:
        return []
    thin = Run(header=run.header, rows=thinned(run.rows))
    out = [
        distribution([("TTFT", [r.ttft_s for r in rows if r.ttft_s is not None])], what="TTFT"),
        itl_heat(thin),
    ]
    gaps = [g for r in thin.load_rows if r.ok for g in r.itl_s]
    if gaps:
        out.insert(1, distribution([("ITL", gaps)], what="ITL"))
    ordered = sorted(rows, key=lambda r: r.e2e_s or 0.0)
    typical, worst = ordered[rank(50, len(ordered)) - 1], ordered[-1]
    out.append(waterfall(typical, label="the typical request"))
    if worst is not typical:
        out.append(waterfall(worst, label="the worst request"))
    out.append(seat_timeline(thin))
    return out


def thinned(rows: Sequence[RequestRecord]) -> tuple[RequestRecord, ...]:
    """At most MOST_ROWS of the rows, evenly spaced."""
    every = max(1, math.ceil(len(rows) / MOST_ROWS))
    return tuple(rows[::every])
