"""The page in a real headless Chromium: a phone and a desk, light and dark, by keyboard, live, offline, two tabs."""

import threading

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe

from conftest import watch
from servefit.learn.review import read_log
from servefit.web.app import create_app, listen
from web import folder as made

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PATHS = (
    "/", "/runs", "/runs/runs/short", "/runs/runs/broken", "/compare?run=runs/short&run=runs/long", "/plan", "/learn",
    "/whiteboard", "/whiteboard/support-assistant", "/say", "/glossary", "/nowhere",
)  # fmt: skip


class Site:
    """A running page over a folder."""

    def __init__(self, folder):
        self.folder = folder
        self.sock = listen("127.0.0.1", 0)
        port = self.sock.getsockname()[1]
        self.at = f"http://127.0.0.1:{port}"
        self.app = create_app(folder, hosts=[f"127.0.0.1:{port}"])
        config = uvicorn.Config(self.app, log_level="error", lifespan="off", ws="none")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.sock]}, daemon=True)
        self.thread.start()

    def stop(self):
        """End the server and its workers."""
        self.server.should_exit = True
        self.thread.join(10)
        self.sock.close()
        self.app.state.desk.live.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """One page for all tests of this module, over runs of every kind."""
    here = Site(made.make(tmp_path_factory.mktemp("data")))
    yield here
    here.stop()


@pytest.fixture
def tab(browser):
    """Opens tabs of any size and scheme; at the end none of them may have seen an error or a request to elsewhere."""
    opened = []

    def new(*, width=390, scheme="light", **more):
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, **more)
        page = context.new_page()
        page.errors = watch(page)
        opened.append((context, page))
        return page

    yield new
    for context, page in opened:
        assert [e for e in page.errors if "ERR_INTERNET_DISCONNECTED" not in e and "status of 4" not in e] == []
        context.close()


def until(page, expression, arg=None):
    """Wait until it is true; asked from here, because the page's policy forbids Playwright's own polling (eval)."""
    for _ in range(600):
        if page.evaluate(expression, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def drawn(page):
    """Wait until every figure of the page is drawn."""
    until(page, "() => [...document.querySelectorAll('[data-chart]')].every(c => c.querySelector('svg'))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_page_fits_and_is_accessible(site, tab, width, scheme):
    """No sideways scroll, one h1, figures drawn, targets of 44 px, axe finds nothing, nothing asked of elsewhere."""
    page = tab(width=width, scheme=scheme)
    for path in PATHS:
        page.goto(site.at + path)
        if path == "/plan":
            page.wait_for_selector("#picture[data-ms]", timeout=60_000)
        drawn(page)
        fits(page, width)


def fits(page, width):
    """The page that is open has no sideways scroll, one h1, targets of 44 px, and axe finds nothing."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    assert page.locator("h1").count() == 1
    small = page.evaluate(
        """[...document.querySelectorAll("button:not(.word), select, summary, nav a, input:not([type=checkbox]):not([type=hidden])")]
        .filter(e => e.checkVisibility()).filter(e => e.getBoundingClientRect().height < 43.5).map(e => e.outerHTML.slice(0, 90))"""
    )
    assert small == [], (page.url, small)
    found = Axe().run(page)
    assert found.violations_count == 0, f"{page.url}: {found.generate_report()}"


def test_the_first_page_is_small(site, tab):
    """Below 300 kB with all that it loads, and it answers to the keyboard at once."""
    page, sizes = tab(), []
    page.on("response", lambda r: sizes.append(len(r.body())))
    page.goto(site.at + "/")
    assert sum(sizes) < 300_000
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


def test_sliders_move_the_picture_and_the_address(site, tab):
    """A move by keyboard changes number, checks and address; reloaded, all of it is there again; figures follow."""
    page = tab(width=1280)
    page.goto(site.at + "/plan?osl=32")
    page.wait_for_selector("#picture[data-ms]", timeout=60_000)
    before = page.inner_text("#picture .checks")
    slider = page.get_by_label("Traffic, slider")
    slider.focus()
    for _ in range(12):
        page.keyboard.press("PageUp")
    until(page, "before => document.querySelector('#picture .checks').innerText !== before", arg=before)
    until(page, "() => new URLSearchParams(location.search).get('rate') === document.getElementById('f-rate').value")
    rate, checks = page.input_value("#f-rate"), page.inner_text("#picture .checks")
    assert float(rate) > 4 and f"rate={rate}" in page.url
    page.reload()
    page.wait_for_selector("#picture[data-ms]", timeout=60_000)
    assert page.input_value("#f-rate") == rate and page.inner_text("#picture .checks") == checks
    assert page.locator("#charts svg").count() == 3
    page.fill("#f-seats", "many")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "'many' is not a number" in page.inner_text("#trouble")


def test_users_instead_of_a_rate_and_back_from_the_address(site, tab):
    """Choosing users hides the rate, the load's figure counts users, and a reload keeps replicas, users and spread."""
    page = tab(width=1280)
    page.goto(site.at + "/plan?osl=32&tp=2")
    page.wait_for_selector("#picture[data-ms]", timeout=60_000)
    assert page.is_visible("#f-rate") and not page.is_visible("#f-users")
    page.select_option("#f-load", "users")
    until(page, "() => location.search.includes('load=users')")
    page.fill("#f-users", "50")
    until(page, "() => location.search.includes('users=50')")
    page.reload()
    page.wait_for_selector("#picture[data-ms]", timeout=60_000)
    assert page.input_value("#f-users") == "50" and page.input_value("#f-tp") == "2" and not page.is_visible("#f-rate")
    until(page, "() => document.querySelector('#chart-load svg').textContent.includes('users')")


def test_written_up_through_the_page_it_verifies(site, tab, cli):
    """The button of the real page makes a decision; the page says that it holds, and so does `servefit verify`."""
    page = tab(width=1280)
    page.goto(site.at + "/plan?osl=16&isl=64&seats=8&rate=2")
    page.wait_for_selector("#picture[data-ms]", timeout=60_000)
    page.fill("#f-seats", "16")
    until(page, "() => document.getElementById('writeup').elements.seats.value === '16'")
    page.fill("#decider", "Ada")
    page.get_by_role("button", name="Write it up").click(no_wait_after=True)
    page.wait_for_url("**/decisions/**", timeout=120_000)
    assert "Every number holds" in page.inner_text("main")
    path = site.folder / page.url.split("/decisions/")[1]
    assert "Ada" in path.read_text()
    code, out, err = cli("verify", str(path))
    assert code == 0, out + err
    page.set_viewport_size({"width": 390, "height": 844})
    fits(page, 390)
    page.goto(site.at + "/plans/" + page.url.split("/decisions/")[1].replace("decision.md", "plan.json"))
    fits(page, 390)
    page.goto(site.at + "/")
    assert page.locator(".done .yes", has_text="A decision is written").count() == 1


def test_a_word_opens_by_tap_and_by_keyboard(site, tab):
    """A term's definition opens where it stands; Escape closes it."""
    page = tab(has_touch=True)
    page.goto(site.at + "/runs")
    page.locator(".word", has_text="TTFT").first.tap()
    assert page.locator("#w-ttft").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#w-ttft").is_visible()
    page.locator(".word", has_text="ITL").first.focus()
    page.keyboard.press("Enter")
    assert "between two tokens" in page.inner_text("#w-itl")


def test_the_drill_by_keyboard(site, tab):
    """Space shows the answer, 3 rates it good, the next card comes; a reload in the middle loses nothing."""
    page = tab()
    page.goto(site.at + "/learn")
    log = site.folder / "learn" / "reviews.jsonl"
    before = len(read_log(log))
    first = page.inner_text("article h2")
    page.keyboard.press("Space")
    assert page.locator("details.answer").first.get_attribute("open") is not None
    page.reload()
    assert page.inner_text("article h2") == first
    page.keyboard.press("Space")
    with page.expect_navigation():
        page.keyboard.press("3")
    assert page.inner_text("article h2") != first and len(read_log(log)) == before + 1


def test_a_live_run_is_followed_to_its_end(site, tab):
    """Percentiles and rows come without a reload; the figure is drawn; at the end the whole run stands there."""
    page, loads = tab(), []
    page.on("load", lambda: loads.append(1))
    with made.growing(site.folder) as writer:
        page.goto(f"{site.at}/runs/runs/now")
        until(page, "() => document.querySelector('#live strong').textContent === '3'")
        for row in made.rows(12)[3:]:
            writer.append(row)
        until(page, "() => document.querySelector('#live strong').textContent === '12'")
        drawn(page)
        writer.finish(made.header("laptop"))
    page.get_by_text("Why is it slow?").wait_for()
    drawn(page)
    assert loads == [1] and page.locator("#live").count() == 0


def test_what_a_model_wrote_does_nothing(site, tab):
    """The script that a model wrote stands there as text."""
    page = tab()
    page.goto(site.at + "/runs")
    page.locator(".runs a", has_text="x y").click()
    drawn(page)
    page.get_by_text("What the model wrote").click()
    assert "<script>" in page.inner_text(".model-text >> nth=0") and page.title().endswith("servefit")


def test_offline_the_page_stays(site, tab):
    """Without a network a slider says that nothing answers, and what was shown stays; typed numbers are kept in the form."""
    page = tab(width=1280)
    page.goto(site.at + "/plan?osl=32")
    page.wait_for_selector("#picture[data-ms]", timeout=60_000)
    page.context.set_offline(True)
    page.fill("#f-rate", "2")
    page.wait_for_selector("#trouble:not([hidden])")
    assert "does not answer" in page.inner_text("#trouble") and page.locator("#charts svg").count() == 3
    page.context.set_offline(False)
    page.fill("#f-rate", "3")
    page.wait_for_selector("#trouble[hidden]", state="attached")
    assert "rate=3" in page.url


def test_two_tabs_do_not_disturb_each_other(site, tab):
    """Each tab keeps its own sliders; a number typed in one is there in the other after a reload."""
    one, two = tab(), tab()
    for page, rate in ((one, "2"), (two, "8")):
        page.goto(f"{site.at}/plan?osl=32&rate={rate}")
    for page in (one, two):
        page.wait_for_selector("#picture[data-ms]", timeout=60_000)
    assert "rate=2" in one.url and "rate=8" in two.url
    one.goto(site.at + "/")
    two.goto(site.at + "/")
    one.fill("#n-ttft_long_ms", "4.5 s")
    one.get_by_role("button", name="Keep what I typed").click()
    two.reload()
    assert two.input_value("#n-ttft_long_ms") == "4,500" and "typed by you" in two.inner_text("main")


def test_recording_stays_in_the_page(site, tab):
    """With a (fake) microphone: recorded, stopped, listened to from memory; no request carries it."""
    page, asked = tab(permissions=["microphone"]), []
    page.goto(site.at + "/say")
    page.on("request", lambda r: asked.append((r.method, r.post_data, r.url)))
    button = page.locator(".start").first
    button.click()
    until(page, "() => document.querySelector('.clock').textContent.includes('recording')")
    button.click()
    page.wait_for_selector("audio:not([hidden])")
    assert page.locator("audio").first.get_attribute("src").startswith("blob:")
    assert all(method == "GET" and body is None for method, body, _ in asked), asked
