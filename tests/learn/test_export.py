"""One file for a phone: everything in it, nothing fetched, nothing trusted."""

from dataclasses import replace

import pytest

from conftest import watch
from servefit.learn.cards import load_cards
from servefit.learn.export import export_html
from servefit.learn.numbers import collect


def test_everything_is_in_it(tmp_path, cli):
    """All cards, examples, sayings, terms and numbers; text is escaped; a wrong name is a sentence."""
    path = tmp_path / "learn.html"
    code, out, _ = cli("learn", "--folder", str(tmp_path), "--export", str(path))
    text = path.read_text()
    assert code == 0 and "62 cards" in out
    assert text.count('id="card-') == 62 and text.count('id="w-') == 59 and "4,210 ms" in text
    assert "http-equiv" in text and "src=" not in text and "<link" not in text
    assert cli("learn", "--export", str(tmp_path / "learn.txt"))[0] == 2
    card = replace(load_cards()[0], question="<script>x</script>")
    assert "<script>x" not in export_html([card], collect(tmp_path))


@pytest.mark.browser
@pytest.mark.slow
def test_it_opens_from_files_without_a_request(browser, tmp_path):
    """file://, a phone's width, no request but itself, axe finds nothing; a card is drawn and opened by keyboard."""
    from axe_playwright_python.sync_playwright import Axe

    path = tmp_path / "learn.html"
    path.write_text(export_html(load_cards(), collect(tmp_path)))
    page = browser.new_page(viewport={"width": 390, "height": 844})
    errors, asked = watch(page), []
    page.on("request", lambda r: asked.append(r.url))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_role("button", name="Draw a card").click()
    page.keyboard.press("Enter")
    assert page.locator("details.drawn[open]").count() == 1
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert errors == [] and asked == [path.as_uri()]
    page.close()
