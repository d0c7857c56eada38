"""Ollama's context length is asked for and checked, since it cuts prompts without a word."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from servefit.errors import CannotMeasure
from servefit.measure.probe import find_endpoint, told_context, with_context


@contextmanager
def ollama(context_tok: int | None) -> Iterator[str]:
    """A server that has loaded one model with this context."""
    model = {"name": "m:latest", **({} if context_tok is None else {"context_length": context_tok})}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = json.dumps({"models": [model]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def test_the_context_holds_the_longest_request():
    """Half as much again, in whole 1,024, at least 4,096; other dialects have no such field."""
    endpoint = find_endpoint("http://127.0.0.1:1", model="m", dialect="ollama-chat")
    assert with_context(endpoint, 100).fields["num_ctx"] == 4096
    assert with_context(endpoint, 8000).fields["num_ctx"] == 12288
    assert "num_ctx" not in with_context(find_endpoint("http://127.0.0.1:1", model="m"), 8000).fields


def test_a_context_that_was_not_given_is_refused():
    """What Ollama really loaded is recorded; less than was asked cannot be measured."""
    with ollama(4096) as url:
        endpoint = with_context(find_endpoint(url, model="m", dialect="ollama-chat"), 100)
        assert told_context(endpoint).context_tok == 4096
        with pytest.raises(CannotMeasure, match="4,096"):
            told_context(with_context(find_endpoint(url, model="m", dialect="ollama-chat"), 8000))


def test_an_old_ollama_does_not_say():
    """Where /api/ps has no context length, nothing is claimed."""
    with ollama(None) as url:
        endpoint = with_context(find_endpoint(url, model="m", dialect="ollama-chat"), 100)
        assert told_context(endpoint).context_tok is None
