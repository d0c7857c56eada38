"""The report: one page that needs nothing else, and every number on it answers for itself."""

import re

import pytest

from decide.case import make_case
from servefit.decide.decision import Checked, recorded
from servefit.decide.report import report_html
from servefit.decide.verify import verify


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A decision with two runs."""
    return make_case(tmp_path_factory.mktemp("case"), runs=2)


def test_every_bound_number_has_its_card(path):
    """Each bound number is a button that opens a card with value, formula and source; no comment is left."""
    report = verify(path)
    html = report_html(report)
    body = html[html.index("<main>") : html.index("<section aria-label")]
    assert body.count('<button type="button" class="q') == len(report.decision.comments)
    targets = set(re.findall(r'popovertarget="(c\d+)"', html))
    assert targets == set(re.findall(r'popover id="(c\d+)"', html))
    assert "<!--" not in html.split("<script>", 1)[0].replace("<!doctype", "")
    assert "(target - value) / target" in html
    assert "ttft.value = 210 ms (0.21 s); ttft.target = 500 ms (0.5 s)" in html


def test_nothing_in_the_file_becomes_markup(tmp_path):
    """HTML, scripts, images and javascript links in the prose stay text, and nothing is fetched."""
    path = make_case(tmp_path)
    nasty = "\n<script>alert(1)</script> <img src=x onerror=alert(1)> ![a](http://a.example/x.png) [b](javascript:alert(1))\n"
    path.write_text(path.read_text().replace("## Trade-offs\n", "## Trade-offs\n" + nasty))
    html = report_html(verify(path))
    body = html[html.index("<main>") : html.index("</main>")]
    text = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    assert "<script>alert" not in body
    assert "<img" not in text
    assert 'href="javascript' not in text
    assert "default-src 'none'" in html


def test_a_stale_number_is_struck_out(tmp_path):
    """The page says what does not hold, in words and at the number."""
    path = make_case(tmp_path)
    path.write_text(path.read_text().replace("210 ms<!--ttft.value-->", "199 ms<!--ttft.value-->"))
    html = report_html(verify(path))
    assert "does not hold as it is" in html
    assert re.search(r'class="q stale"[^>]*>199 ms<', html)
    assert "199 ms is written, it is 210 ms." in html


def test_the_newest_result_is_a_badge(tmp_path):
    """What the last run said stands at the head of the page; nothing does before there was one."""
    path = make_case(tmp_path)
    assert "confirmed</span>" not in report_html(verify(path))
    for result in ("overturned", "confirmed"):
        checked = Checked(run="<real>", sha256="a" * 64, date="2026-12-01", result=result)
        path.write_text(recorded(verify(path).decision, checked, where="d"))
        html = report_html(verify(path))
        assert f'<span class="chip {result}">{result}</span> by <code>&lt;real&gt;</code>, 2026-12-01' in html


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_it_reads_well_and_is_accessible(path, browser_page, width, scheme):
    """No error, no request, no sideways scroll, figures drawn, axe clean with a card open."""
    from axe_playwright_python.sync_playwright import Axe

    page, show = browser_page
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=scheme)
    show(report_html(verify(path)))
    page.wait_for_selector(".chart-canvas svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    button = page.locator("button.q", has_text="+58.0%").first
    button.click()
    card = page.locator(".card:popover-open")
    assert "(target - value) / target" in card.inner_text()
    box = card.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width
    page.locator("footer summary").first.click()
    assert not Axe().run(page).response["violations"]
    page.keyboard.press("Escape")
    assert card.count() == 0
    assert not page.errors


@pytest.mark.browser
def test_hover_shows_and_print_lists(path, browser_page):
    """A mouse that rests on a number sees its card; on paper the cards are a table."""
    page, show = browser_page
    show(report_html(verify(path)))
    button = page.locator("button.q", has_text="210 ms").first
    button.hover()
    assert "p99 TTFT" in page.locator(".card:popover-open").inner_text()
    page.mouse.move(5, 5)
    assert page.locator(".card:popover-open").count() == 0
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("footer .ledger table").is_visible()


@pytest.mark.slow
def test_the_reports_figures_are_files_too(path, tmp_path, cli):
    """`decide --figures` writes the figures that the report draws, one SVG each, in the report's order and by its titles."""
    code, out, err = cli("decide", str(path), "--figures", str(tmp_path / "figures"))
    assert (code, err) == (0, "") and "wrote" in out
    drawn = re.findall(r"<figcaption[^>]*>(.*?)</figcaption>", report_html(verify(path)))
    images = sorted((tmp_path / "figures").iterdir())
    assert len(images) == len(drawn) > 0
    assert all(image.read_text(encoding="utf-8").startswith("<svg") for image in images)


def test_the_figures_of_a_run_are_files_too(path, tmp_path, cli):
    """`explain RUN --figures`: where the time of the worst request went, among others; without a run there is nothing to draw."""
    run = next(path.parent.glob("real*"))
    assert cli("explain", str(run), "--figures", str(tmp_path / "figures"))[0] == 0
    assert any("waterfall" in image.name for image in (tmp_path / "figures").iterdir())
    code, _, err = cli("explain", "--ttft", "780ms", "--itl", "22ms", "--isl", "6200", "--osl", "300", "--figures", "x")
    assert code == 2 and "none was named" in err
