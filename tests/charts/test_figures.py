"""Every figure compiles with the real Vega-Lite, says what it shows, and carries its numbers as a table."""

import re

import pytest

from servefit.charts import figures
from servefit.charts.embed import figure_html, library_js, save_image, script_json
from servefit.charts.figures import Point
from servefit.errors import ServefitError
from servefit.records import RequestRecord, Run, RunHeader


def a_run() -> Run:
    """Four requests with 5 tokens each, one of them stalled by 0.5 s."""
    rows = []
    for i in range(4):
        due = i * 0.1
        times = tuple(due + 0.1 + 0.02 * k + (0.5 if i == 2 and k > 2 else 0) for k in range(5))
        rows.append(
            RequestRecord(id=str(i), status="ok", due_s=due, sent_s=due, chunk_s=times, done_s=times[-1], osl=5)
        )
    return Run(header=RunHeader(kind="measured"), rows=tuple(rows))


def all_charts():
    """One of each kind of figure."""
    points = [Point(series="a100", x=x, y=10.0 * x, low=9.0 * x, high=11.0 * x) for x in (1, 2, 4)]
    points += [Point(series="cpu", x=x, y=None) for x in (1, 2)]
    run = a_run()
    told = RequestRecord(id="t", status="ok", due_s=0, chunk_s=(0.5, 0.9), server={"queue_s": 0.2, "prefill_s": 0.25})
    return [
        figures.lines(points, name="seats", title="TTFT", x="seats", y="ms", target=30, band=(1, 2), log_x=True),
        figures.roofline(
            peak_flop_per_s=312e12,
            bandwidth_bytes_per_s=2039e9,
            points=[("decode", 1.0, 1e12), ("prefill", 500.0, 150e12)],
            device="a100-80gb",
        ),
        figures.seat_timeline(run),
        figures.waterfall(run.rows[0], label="typical"),
        figures.waterfall(told, label="worst"),
        figures.itl_heat(run),
        figures.pareto([("a", 1, 2, "gpu", True), ("b", 2, 3, "cpu", False)], x="USD per hour", y="ms"),
        figures.distribution([("a", [0.1, 0.2]), ("b", [])], what="TTFT", target_s=0.15),
    ]


@pytest.mark.parametrize("chart", all_charts(), ids=lambda c: c.name)
def test_every_figure_compiles_and_speaks(chart, tmp_path):
    """A figure that Vega-Lite refuses, has no sentence or no numbers, would be no figure."""
    path = tmp_path / "f.svg"
    save_image(chart, path)
    svg = path.read_text()
    assert svg.startswith("<svg") and len(svg) > 500
    assert chart.description.endswith(".") and chart.rows and all(len(r) == len(chart.columns) for r in chart.rows)


def test_heat_strip_finds_the_stall():
    """The worst gap of the strip is the stall of 520 ms that the rows hold."""
    assert "520.0 ms" in figures.itl_heat(a_run()).description


def test_roofline_states_share_of_the_roof():
    """1 Tflop/s at 1 flop per byte on 2,039 GB/s is 49% of the roof there, 150 of 312 is 48% under the flat part."""
    text = all_charts()[1].description
    assert "decode reaches 49%" in text and "prefill reaches 48%" in text and "153.0 flop per byte" in text


def test_a_waterfall_divides_the_wait_as_the_server_tells():
    """0.5 s to the first token with 0.2 s queue and 0.25 s prefill leave 50 ms for front end and network."""
    assert [r[2] for r in all_charts()[4].rows] == ["50.0", "200.0", "250.0", "400.0"]


def test_names_cannot_break_out_of_the_page():
    """A series called like a closing script tag stays data."""
    chart = figures.lines(
        [Point(series="</script><script>alert(1)</script>", x=1, y=1)], name="x", title="<b>t", x="x", y="y"
    )
    html = figure_html(chart, anchor="x")
    assert html.count("</script>") == 1 and "<b>" not in html
    assert "<" not in script_json(["<", "&"])


def test_another_ending_is_refused(tmp_path):
    """Only PNG and SVG can be written."""
    with pytest.raises(ServefitError, match=r"f\.gif"):
        save_image(all_charts()[0], tmp_path / "f.gif")


def test_the_vendored_bundle_asks_nobody():
    """The only addresses in the bundle are names of schemas and one comment, none is fetched."""
    assert set(re.findall(r"https?://[a-z.0-9]+", library_js())) <= {
        "http://www.w3.org",
        "https://github.com",
        "https://vega.github.io",
    }


@pytest.mark.browser
@pytest.mark.slow
def test_figures_draw_in_chromium_under_a_strict_policy(browser_page):
    """Without eval and without a request, every figure becomes an SVG with its text alternative."""
    body = "".join(figure_html(c, anchor=f"c{i}") for i, c in enumerate(all_charts()))
    from servefit.charts.embed import DRAW_JS, STYLE

    page, show = browser_page
    show(
        f"<!doctype html><html lang=en><title>t</title><style>{STYLE}</style><h1>t</h1>{body}<script>{library_js()}</script><script>{DRAW_JS}</script>"
    )
    page.wait_for_function("document.querySelectorAll('[data-chart] svg').length === 8")
    assert page.evaluate("[...document.querySelectorAll('[data-chart] svg')].every(s => s.getAttribute('aria-label'))")
    assert page.errors == []


def test_a_caption_says_nothing_twice():
    """Where the one line is what the axis is, the caption is the title: not "TTFT over TTFT, ms"."""
    chart = figures.lines([Point(series="TTFT", x=1, y=0.5), Point(series="TTFT", x=2, y=1.0)],
                          name="d", title="TTFT, share at or below", x="TTFT, ms", y="share")  # fmt: skip
    assert chart.description == "TTFT, share at or below."


@pytest.mark.parametrize("ratio", [1.0, 1.2, 3.0, 500.0])
def test_the_names_of_near_dots_do_not_meet(ratio, tmp_path):
    """Decode of a large batch stands near the ridge, as prefill does: one name above, one below, both inside the figure."""
    points = [("decode, 32 together", 100.0, 90e12), ("prefill, 512 tokens", 100.0 * ratio, 95e12)]
    chart = figures.roofline(peak_flop_per_s=312e12, bandwidth_bytes_per_s=2039e9, points=points, device="a100-80gb")
    path = tmp_path / "f.svg"
    save_image(chart, path)
    boxes = []
    svg = path.read_text()
    for name, *_ in points:
        where = rf'<text [^>]*text-anchor="(\w+)" transform="translate\(([\d.]+),([\d.]+)\)"[^>]* font-size="(\d+)px"[^>]*>{name}<'
        ((anchor, x, y, size),) = re.findall(where, svg)
        width = 0.6 * float(size) * len(name)
        left = float(x) - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        boxes.append((left, left + width, float(y), float(size)))
    (a, b, y, size), (c, d, z, _) = boxes
    assert d < a or b < c or abs(y - z) >= size, boxes
    assert min(a, c) >= 0 and max(b, d) <= float(re.search(r'width="(\d+)"', svg)[1]), boxes
