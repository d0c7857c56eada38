"""The live plan: the form without script, the picture for a script, the newest question wins, the write-up."""

import asyncio
import json
import re

import pytest
from starlette.datastructures import QueryParams
from starlette.testclient import TestClient

from servefit.errors import AnswerIsNo
from servefit.plan.files import load_plan
from servefit.web import papers, picture
from servefit.web.app import create_app
from servefit.web.live import Live
from servefit.web.picture import Ask, draw
from servefit.web.plan import chosen
from web import folder as made

HOST = "127.0.0.1:8731"
ORIGIN = {"origin": f"http://{HOST}"}


@pytest.fixture
def page(tmp_path):
    """A browser on this machine, whose workers end with the test."""
    app = create_app(made.make(tmp_path), hosts=[HOST])
    yield TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)
    app.state.desk.live.close()


def ask(**more) -> Ask:
    """A position of the sliders."""
    values = {
        "model": "llama-3.1-8b", "device": "a100-80gb", "precision": "bf16", "policy": "chunked", "seats": 32,
        "rate_req_per_s": 4.0, "isl": 512, "osl": 64, "ttft_s": 0.5, "tpot_s": 0.03, "goodput_frac": 0.99,
    }  # fmt: skip
    return Ask(**(values | more))


def test_the_form_works_without_script(page):
    """Every slider is a number in a form; sent, the answer has checks, band, curve and roof as tables."""
    text = page.get("/plan?show=all&osl=32&seats=8&rate=2").text
    assert 'name="seats" value="8"' in text and text.count("<figure") == 3
    assert "p99 TTFT" in text and "goodput" in text and "Passes from" in text


@pytest.mark.parametrize("query", ["seats=many", "seats=0", "rate=1e9", "model=../../etc/passwd", "model=gpt-17", "device=x.toml",
                                   "policy=hope", "precision=q99", "device=measured:nowhere", "device=measured:../x"])  # fmt: skip
def test_what_cannot_be_is_one_sentence(page, query):
    """A wrong number, name or path: a sentence and the form, no crash."""
    answer = page.get(f"/plan?{query}")
    assert answer.status_code == 400 and 'role="alert"' in answer.text and 'name="seats"' in answer.text
    assert page.get(f"/plan/picture?{query}").status_code == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "flags"),
    [({}, ("--rate", "4")),
     ({"replicas": 3, "tp": 2, "rate_req_per_s": 9.0}, ("--rate", "9", "--replicas", "3", "--tp", "2")),
     ({"users": 40}, ("--concurrency", "40")),
     ({"policy": "static", "rate_req_per_s": 0.7}, ("--rate", "0.7", "--policy", "static"))],
    ids=["open", "replicas and tensor parallel", "users", "static"],
)  # fmt: skip
def test_the_page_says_what_the_command_line_says(cli, tmp_path, more, flags):
    """The same question to `servefit plan`: the same checks, memory, cost and figures, to the bit."""
    mine = draw(ask(osl=16, **more))
    policy = () if "--policy" in flags else ("--policy", "chunked")
    code, out, err = cli(
        "plan", "--model", "llama-3.1-8b", "--device", "a100-80gb", "--precision", "bf16", *policy, "--seats", "32",
        "--isl", "512", "--osl", "16", "-n", "2000", "--seeds", "1", "--ttft-p99", "500ms", "--tpot-p99", "30ms",
        "--goodput", "99%", "--jobs", "1", "--quiet", "--json", "--out", str(tmp_path / "plan.json"), *flags,
    )  # fmt: skip
    assert out, (code, err)
    (theirs,) = load_plan(tmp_path / "plan.json").candidates
    assert mine.checks == theirs.checks and mine.cost == theirs.cost and mine.figures == theirs.figures
    assert mine.memory.needed_bytes == theirs.memory.needed_bytes
    assert mine.curve and (mine.band or more.get("policy") == "none")


@pytest.mark.parametrize(("query", "word"), [("device=m4-max-64gb&tp=4", "no GPU"), ("load=users&replicas=2", "too slow"),
                                             ("tp=3", "1, 2, 4, 8"), ("load=hope", "rate, users")])  # fmt: skip
def test_what_cannot_be_simulated_says_why(page, query, word):
    """Spread over devices without a link, users over replicas: a sentence that says what to do."""
    answer = page.get(f"/plan/picture?{query}")
    assert answer.status_code == 400 and word in answer.json()["trouble"]


def test_the_band_and_the_curve_fail_at_their_far_ends():
    """One seat misses TTFT at 4 requests a second, 32 do not; eight times the load misses it too; memory is seen."""
    seen = draw(ask(osl=32))
    by_seats = {t.x: t.passes for t in seen.band}
    assert not by_seats[1] and by_seats[32] and "Passes from" in seen.range_said
    assert seen.curve[0].passes and seen.curve[0].x < 4 and not draw(ask(osl=32, rate_req_per_s=100.0)).curve[-1].passes
    assert draw(ask(osl=32, device="rtx-4090", model="llama-3.1-70b")).verdict == "fail"


def test_figures_keep_their_shape_under_a_moving_slider():
    """Only data changes, whatever passes: a new shape would be compiled anew, three times as slow as a move may take."""

    def shape(value):
        if isinstance(value, dict):
            return {k: shape(v) for k, v in value.items() if k not in ("values", "description")}
        return [shape(v) for v in value] if isinstance(value, list) else value

    places = (ask(), ask(rate_req_per_s=7.3, seats=45), ask(tpot_s=0.001), ask(isl=3000))
    first, *rest = [[shape(c.spec) for c in draw(a).charts] for a in places]
    assert rest == [first] * 3


def test_a_target_that_moves_simulates_nothing_of_band_and_curve_again(monkeypatch):
    """Only the checks' own runs: what was simulated is remembered."""
    draw(ask())
    ran = []
    real = picture.run
    monkeypatch.setattr(picture, "run", lambda scenario: ran.append(1) or real(scenario))
    looser = draw(ask(ttft_s=0.6))
    assert ran == [] and looser.checks[0].target == 0.6


def test_a_calibration_in_the_folder_is_a_device(page):
    """It is in the list as this machine, measured, and its step time is the calibration's."""
    text = page.get("/plan").text
    assert "This machine, measured: a100-80gb, llama-3.1-8b" in text
    seen = page.get("/plan?device=measured:cal/calibration.json&osl=32").text
    assert "calibration of llama.cpp on a100-80gb" in seen


def test_the_newest_question_of_a_page_wins(monkeypatch):
    """Three moves at once: the first is under way and the last is drawn, the one between is not; other pages are untouched."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    first, go = threading.Event(), threading.Event()
    drawn = []

    def slow(asked):
        drawn.append(asked.seats)
        first.set()
        assert go.wait(10)
        return asked.seats

    monkeypatch.setattr(picture, "draw", slow)
    live = Live()
    live._now = ThreadPoolExecutor(1)

    async def moves():
        one = asyncio.create_task(live.draw(ask(seats=1), page="a"))
        await asyncio.to_thread(first.wait, 10)
        rest = [asyncio.create_task(live.draw(ask(seats=s), page=p)) for s, p in ((2, "a"), (3, "a"), (9, "b"))]
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(one, *rest)

    with ThreadPoolExecutor(1) as apart:  # the browser's driver holds a loop in this thread
        assert apart.submit(lambda: asyncio.run(moves())).result(30) == [1, None, 3, 9] and drawn == [1, 3, 9]
    live._now.shutdown()


@pytest.mark.slow
def test_written_up_it_verifies(tmp_path):
    """plan.json and decision.md in the folder, every number bound; a failing one needs its reason; shown with its state."""
    made.make(tmp_path)
    small = ask(osl=16, isl=64)
    where = papers.write_up(small, tmp_path, papers.Author(decider="Ada <b>"))
    assert load_plan(tmp_path / where.replace("decision.md", "plan.json")).recommended
    app = create_app(tmp_path, hosts=[HOST])
    page = TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)
    text = page.get(f"/decisions/{where}").text
    assert "Every number holds" in text and "What would change it" in text and "Ada <b>" not in text
    for part in ("<dt>decided by</dt><dd>Ada &lt;b&gt;</dd>", "<dt>status</dt><dd>proposed</dd>", "<dt>rests on</dt>"):
        assert part in text, part
    assert f'<a href="/decisions/{where}">A decision is written</a>' in page.get("/").text
    assert where in page.get("/plan").text
    assert page.get("/plans/" + where.replace("decision.md", "plan.json")).status_code == 200
    path = tmp_path / where
    path.write_text(
        path.read_text()
        .replace("<!--seats-->", "0<!--seats-->")
        .replace("## Evidence", "## Evidence\n\n<script>x</script>")
    )
    text = page.get(f"/decisions/{where}").text
    assert "A number does not hold" in text and "<script>x" not in text
    with pytest.raises(AnswerIsNo):
        papers.write_up(ask(tpot_s=0.001), tmp_path, papers.Author())


def test_writing_from_elsewhere_is_refused(page):
    """A cross-site post writes nothing."""
    assert page.post("/plan/write", data={"seats": "8"}, headers={"origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("given", ["ttft=20s", "isl=20k", "goodput=99ms"])
def test_a_unit_is_never_passed_over(given):
    """20 s in the address are not 20 ms: the usual value stands, with a sentence."""
    made = chosen(QueryParams(given))
    assert "has the unit" in made.trouble
    assert made.values == chosen(QueryParams("")).values
    assert not chosen(QueryParams("ttft=700ms&goodput=95%")).trouble


def test_what_lies_beyond_the_picture_is_said():
    """A latency of more than ten times its target is drawn at 1,000%, and the axis says so."""
    for chart in draw(ask(ttft_s=0.001)).charts[:2]:
        assert set(re.findall(r'"title": "(% of target[^"]*)"', json.dumps(chart.spec))) == {
            "% of target, cut at 1 and 1,000"
        }
        highest = max(
            float(row[k].replace(",", "")) for row in chart.rows for k in range(1, len(row)) if row[k][:1].isdigit()
        )
        assert highest == 1000
