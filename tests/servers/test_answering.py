"""Which servers answer: real sockets on loopback that answer, refuse, hang, or are something else; paid ones are never called."""

import contextlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from servefit.servers.answering import who_answers
from servefit.settings import Target


@contextlib.contextmanager
def serving(status, body, paths=("/v1/models",)):
    """A real HTTP server with one answer; yields its URL and the paths that were asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers.get("authorization")))
            known = self.path in paths
            self.send_response(status if known else 404)
            self.end_headers()
            self.wfile.write(body if known else b"no")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def models(*names, owner=""):
    """A list of models as OpenAI's protocol has it."""
    return json.dumps({"object": "list", "data": [{"id": n, "owned_by": owner} for n in names]}).encode()


@pytest.mark.parametrize(
    ("status", "body", "paths", "state", "software", "found"),
    [
        (200, models("a", "b", owner="vllm"), ("/v1/models",), "answers", "vLLM", ("a", "b")),
        (200, models("a", owner="llamacpp"), ("/v1/models",), "answers", "llama.cpp", ("a",)),
        (200, models("a", owner="whoever"), ("/v1/models",), "answers", "OpenAI-compatible", ("a",)),
        (200, models(), ("/v1/models",), "answers", "OpenAI-compatible", ()),
        (200, b'{"models": [{"name": "llama3.1:8b"}]}', ("/api/tags",), "answers", "Ollama", ("llama3.1:8b",)),
        (401, b"{}", ("/v1/models",), "wants a key", "", ()),
        (200, b"<html>hello</html>", ("/v1/models",), "not a model server", "", ()),
        (200, b'{"data": 5}', ("/v1/models",), "not a model server", "", ()),
        (500, models("a"), ("/v1/models",), "not a model server", "", ()),
    ],
)
def test_what_answers(status, body, paths, state, software, found):
    """A model server is named by what it says of itself; anything else is said to be something else."""
    with serving(status, body, paths) as (url, _):
        (seen,) = who_answers((Target(name="x", url=url), Target(name="y", url=url)))
    assert (seen.state, seen.software, seen.models) == (state, software, found)
    assert seen.names == ("x", "y"), "two names of one address are one line"
    assert seen.answers is (state in ("answers", "wants a key"))


def test_paid_targets_are_never_called(monkeypatch):
    """A paid target is only "key set" or not, even where a server stands at its address; no key is sent to anyone."""
    monkeypatch.setenv("SOME_KEY", "secret")
    with serving(200, models("a")) as (url, asked):
        paid = Target(name="p", url=url, paid=True, api_key_env="SOME_KEY")
        other = Target(name="q", url=url + "/", api_key_env="SOME_KEY")
        assert [s.state for s in who_answers((paid,))] == ["key set"]
        assert asked == []
        assert [s.state for s in who_answers((other,))] == ["answers"]
        assert [key for _, key in asked] == [None]
    monkeypatch.delenv("SOME_KEY")
    assert [s.state for s in who_answers((paid,))] == ["no key"]


def test_silence_and_nobody():
    """A port where nobody listens is "nobody"; one that takes the connection and says nothing is "silent", within the limit."""
    with socket.socket() as closed, socket.socket() as mute:
        closed.bind(("127.0.0.1", 0))
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        places = [Target(name=n, url=f"http://127.0.0.1:{s.getsockname()[1]}") for n, s in (("c", closed), ("m", mute))]
        states = {s.names[0]: s.state for s in who_answers(tuple(places), within_s=0.2)}
    assert states == {"c": "nobody", "m": "silent"}
    assert who_answers((Target(name="odd", url="ftp://x"),))[0].state == "nobody"
