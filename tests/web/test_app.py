"""The page answers only its own user, seals every answer, and computes what it shows."""

import json
import socket
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from servefit.learn.numbers import collect
from servefit.learn.review import read_log
from servefit.records import RequestRecord, Run, RunHeader, save_run
from servefit.web.app import create_app, listen
from web import folder as made

HOST = "127.0.0.1:8731"
ORIGIN = {"origin": f"http://{HOST}"}


def client(folder: Path, **more) -> TestClient:
    """A browser on this machine."""
    return TestClient(create_app(folder, hosts=[HOST], **more), base_url=f"http://{HOST}", follow_redirects=False)


@pytest.mark.parametrize(
    "path", ["/", "/learn", "/whiteboard", "/whiteboard/support-assistant", "/say", "/glossary", "/health"]
)
def test_every_answer_is_sealed(tmp_path, path):
    """P4: each page comes with a policy that lets nothing leave, and has one h1 and a language."""
    answer = client(tmp_path).get(path)
    assert answer.status_code == 200
    assert (
        "connect-src 'self'" in answer.headers["content-security-policy"]
        and "unsafe" not in answer.headers["content-security-policy"]
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    if path != "/health":
        assert answer.text.count("<h1") == 1 and '<html lang="en">' in answer.text and "http://" not in answer.text


def test_answers_do_not_wait_for_the_browser_to_acknowledge():
    """The socket says that it is TCP: only then does asyncio send both parts of an answer at once (40 ms a move, else)."""
    with listen("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP and sock.getsockname()[0] == "127.0.0.1"
        with pytest.raises(OSError):
            listen("127.0.0.1", sock.getsockname()[1])


def test_another_host_name_is_refused(tmp_path):
    """DNS rebinding: a name that points here but is not ours gets nothing."""
    assert client(tmp_path).get("/", headers={"host": "evil.example"}).status_code == 421
    assert client(tmp_path).get("/", headers={"host": "127.0.0.1:9999"}).status_code == 421


@pytest.mark.parametrize("headers", [{}, {"origin": "http://evil.example"}, {"origin": "null"}])
def test_a_post_from_elsewhere_changes_nothing(tmp_path, headers):
    """A cross-site form cannot rate a card or type a number."""
    page = client(tmp_path)
    assert (
        page.post("/learn/rate", data={"card": "machine-how-big", "rating": "good"}, headers=headers).status_code == 403
    )
    assert page.post("/numbers", data={"memory_gb": "1"}, headers=headers).status_code == 403
    assert list(tmp_path.rglob("*")) == []


def test_a_large_body_is_refused(tmp_path):
    """A megabyte is more than any form of ours."""
    assert client(tmp_path).post("/numbers", content=b"x" * (1 << 21), headers=ORIGIN).status_code == 413


def test_the_lan_needs_the_token_and_keeps_it_out_of_the_address(tmp_path):
    """Without the token nothing; with it a cookie, and a redirect that drops it from the address bar."""
    page = client(tmp_path, token="secret")
    assert page.get("/").status_code == 401
    assert page.get("/?token=wrong").status_code == 401
    first = page.get("/?token=secret")
    assert (
        first.status_code == 303
        and first.headers["location"] == "/"
        and "httponly" in first.headers["set-cookie"].lower()
    )
    assert page.get("/").status_code == 200


def test_a_rating_is_appended_once(tmp_path):
    """The page and the terminal share one log; a rating that is none is refused."""
    page = client(tmp_path)
    assert (
        page.post(
            "/learn/rate", data={"card": "machine-how-big", "rating": "hard", "topic": "machine"}, headers=ORIGIN
        ).headers["location"]
        == "/learn?topic=machine"
    )
    assert (
        page.post("/learn/rate", data={"card": "machine-how-big", "rating": "superb"}, headers=ORIGIN).status_code
        == 400
    )
    assert [(r.card, r.rating) for r in read_log(tmp_path / "learn" / "reviews.jsonl")] == [("machine-how-big", "hard")]
    assert "1 of 62 seen" in page.get("/learn").text


def test_typed_numbers_are_marked_and_can_be_taken_back(tmp_path):
    """P3: 4.21 s is 4,210 ms, marked as typed by you; emptied it is the example again; nonsense is one sentence."""
    page = client(tmp_path)
    assert page.post("/numbers", data={"ttft_long_ms": "4.21 s"}, headers=ORIGIN).status_code == 303
    assert json.loads((tmp_path / "learn" / "numbers.json").read_text()) == {"ttft_long_ms": 4210.0}
    assert "typed by you" in page.get("/").text and 'value="4,210"' in page.get("/").text
    assert "soon" in page.post("/numbers", data={"ttft_long_ms": "soon"}, headers=ORIGIN).text
    page.post("/numbers", data={"ttft_long_ms": ""}, headers=ORIGIN)
    assert "typed by you" not in page.get("/").text


def test_done_is_computed(tmp_path):
    """P2: rows of a short and a long prompt make two points hold; a bill that could not ask does not."""
    page = client(tmp_path)
    assert page.get("/").text.count(": done<") == 0
    for name, isl in (("short", 12), ("long", 8000)):
        row = RequestRecord(id="0", status="ok", due_s=0.0, chunk_s=(0.1, 0.2), osl=2, isl=isl)
        save_run(Run(header=RunHeader(kind="measured"), rows=(row,)), tmp_path / "runs" / name)
    (tmp_path / "bill.json").write_text(json.dumps({"live": [], "could_not_ask": ["fireworks"]}))
    assert page.get("/").text.count(": done<") == 2
    (tmp_path / "bill.json").write_text(json.dumps({"live": [], "could_not_ask": []}))
    assert page.get("/").text.count(": done<") == 3


def test_an_example_follows_its_inputs(tmp_path):
    """30 tokens out of 200 in: 638 ms of writing; a word for a number is one sentence."""
    page = client(tmp_path)
    assert "638" in page.get("/whiteboard/code-completion").text
    assert "0.638" in page.get("/whiteboard/support-assistant?system_tok=0&out_tok=30").text
    assert page.get("/whiteboard/support-assistant?out_tok=many").status_code == 400
    assert page.get("/whiteboard/support-assistant?prefill_tok_per_s=0").status_code == 400


def test_no_route_takes_audio(tmp_path):
    """P7: the recording has nowhere to go."""
    app = create_app(tmp_path, hosts=[HOST])
    posts = {route.path for route in app.routes if "POST" in (getattr(route, "methods", None) or ())}
    assert all("say" not in path and "audio" not in path for path in posts)


def test_what_is_not_there_is_a_page_too(tmp_path):
    """A wrong address or card: a sentence and a way back, escaped."""
    page = client(tmp_path)
    assert page.get("/nope").status_code == 404
    answer = page.get("/learn?card=<script>")
    assert answer.status_code == 400 and "<script>" not in answer.text
    assert page.get("/static/../app.py").status_code in (404, 421)


def test_the_long_prompt_is_as_long_as_the_runs(tmp_path):
    """The overview says how many tokens the run's long prompt held, not those of an example; on the error page too."""
    assert "a prompt of 8,000 tokens" in client(tmp_path).get("/").text
    run = Run(header=made.header("laptop"), rows=tuple(made.rows(10, isl=1000)))
    made.put(run, tmp_path / "runs" / "long")
    page = client(tmp_path)
    assert "a prompt of 1,000 tokens" in page.get("/").text
    wrong = page.post("/numbers", data={"ttft_long_ms": "soon"}, headers=ORIGIN).text
    assert "a prompt of 1,000 tokens" in wrong and "{isl" not in wrong


def test_a_hosted_run_fills_the_hosted_field_and_no_other(tmp_path):
    """The newest hosted run is linked under "hosted models"; the wait on this machine stays that of this machine."""
    made.make(tmp_path)
    numbers = collect(tmp_path)
    assert client(tmp_path).get("/").text.count('<li class="yes">') == 3  # short, long, hosted
    assert numbers["hosted_ttft_ms"].link == "runs/hosted" and 150 < numbers["hosted_ttft_ms"].value < 210
    assert numbers["ttft_short_ms"].link != "runs/hosted" and numbers["ttft_long_ms"].link == "runs/long"
