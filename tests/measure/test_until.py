"""A load ends when enough is known, and not before."""

import random
from array import array
from itertools import pairwise
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.measure import until
from servefit.measure.probe import find_endpoint
from servefit.measure.run import Options, measure
from servefit.measure.until import Until
from servefit.records import RequestRecord
from servefit.stats import percentile, percentile_interval
from servefit.traps.server import in_thread
from servefit.workload.workload import Lengths, Workload


def row(ttft_s: float) -> RequestRecord:
    """A success with this TTFT."""
    return RequestRecord(id="0", status="ok", due_s=0.0, chunk_s=(ttft_s,))


def test_equal_values_are_soon_enough_and_scattered_ones_are_not():
    """The interval of equal values is a point; that of values between 1 and 2 stays wide for long."""
    equal, scattered = Until("p50=5%"), Until("p50=5%")
    for i in range(40):
        equal.saw(row(1.0))
        scattered.saw(row(1.0 + (i * 7 % 40) / 40))
    assert equal.enough
    assert not scattered.enough


@pytest.mark.parametrize(("p", "share"), [(50, 5), (95, 20), (99, 40)])
def test_it_stops_where_sorting_all_of_them_anew_would(p: int, share: int):
    """At every 20th success the nearest rank and its interval, by the functions that the summary uses."""
    rng = random.Random(p)
    watch, values = Until(f"p{p}={share}%"), []
    for _ in range(2_500):
        values.append(rng.expovariate(2.0) + 0.1)
        watch.saw(row(values[-1]))
        if len(values) % 20 == 0 and (interval := percentile_interval(values, p)):
            middle = percentile(values, p)
            if max(interval[1] - middle, middle - interval[0]) <= share / 100 * middle:
                break
        assert not watch.enough
    assert watch.enough and len(values) < 2_500


def test_a_long_run_is_looked_at_less_often(monkeypatch: pytest.MonkeyPatch):
    """Every 20 successes up to 20,000 and a little, then at every thousandth more: a day is not spent on looking."""
    looks: list[int] = []
    monkeypatch.setattr(until, "interval_ranks", lambda p, n: looks.append(n))
    watch = Until("p50=5%")
    watch._values, watch._look_at = array("d", range(19_979)), 19_980
    for i in range(2_521):
        watch.saw(row(float(i)))
    steps = {a: b - a for a, b in pairwise(looks)}
    assert looks[:3] == [19_980, 20_000, 20_020] and looks[-1] > 22_470
    assert {step for at, step in steps.items() if at < 21_000} == {20}
    assert {step for at, step in steps.items() if 21_000 <= at < 22_000} == {21}
    assert {step for at, step in steps.items() if at >= 22_000} == {22}


@pytest.mark.parametrize("text", ["", "p95", "p95=", "p0=5%", "p95=0%", "p95=5", "itl.p95=5%", "p100=5%"])
def test_what_is_not_understood_is_said(text: str):
    """Anything but a percentile and a share is refused with the form to use."""
    with pytest.raises(ServefitError, match="not understood"):
        Until(text)


def test_a_run_stops_early_and_waits_for_what_is_under_way(tmp_path: Path):
    """Of 400 requests far fewer are sent, each has its row, and the run says why it stopped."""
    load = Workload(n=400, concurrency=8, isl=Lengths(mean=64), osl=Lengths(mean=20))
    with in_thread(speed=20) as server:
        target = find_endpoint(f"{server.url}/plain", model="m")
        run = measure(target, load, Options(out=tmp_path / "run", probe=False, until=Until("p50=60%")))
        sent = len(server.seen.requests)
    assert 20 <= len(run.load_rows) == sent < 400
    assert {r.status for r in run.load_rows} == {"ok"}
    assert "until" in {f.code for f in run.header.findings}
