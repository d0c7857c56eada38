"""A server that lists no model (transformers serve does not): nobody can guess the name, so the refusal asks for it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from servefit.errors import CannotMeasure
from servefit.measure.probe import find_endpoint
from servefit.measure.run import Options, measure
from servefit.workload.workload import Lengths, Workload

LOAD = Workload(n=2, concurrency=1, isl=Lengths(mean=16), osl=Lengths(mean=4))


@contextmanager
def silent_about_models(status: int) -> Iterator[tuple[str, list[str]]]:
    """Its URL and the models that it was asked for. Its list is empty; each request is refused with this status."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _say(self, code: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            listed = self.path == "/v1/models"
            self._say(200 if listed else 404, {"object": "list", "data": []} if listed else {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body.get("model", ""))
            self._say(status, {"detail": f"{body.get('model')} is not a local folder and is not a model identifier"})

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.mark.parametrize("status", [400, 404, 422, 500])
def test_the_refusal_names_the_option(status: int, tmp_path: Path):
    """However such a server says no to a name that it does not know, the hint is the same: name the model."""
    with silent_about_models(status) as (url, _), pytest.raises(CannotMeasure) as caught:
        measure(find_endpoint(url), LOAD, Options(out=tmp_path / "run"))
    assert "is not a local folder" in caught.value.message
    assert "--model" in caught.value.hint
    assert "lists no model" in caught.value.hint


def test_a_model_that_was_named_is_asked_for(tmp_path: Path):
    """With --model that name goes out as it is, and a refusal does not ask for it again."""
    with silent_about_models(422) as (url, asked), pytest.raises(CannotMeasure) as caught:
        measure(find_endpoint(url, model="smol"), LOAD, Options(out=tmp_path / "run"))
    assert set(asked) == {"smol"}
    assert "lists no model" not in caught.value.hint
