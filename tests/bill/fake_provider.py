"""A provider's API on loopback: answers by route, remembers what was asked, checks the key. Not the real service."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEY = "sk-test-0123456789abcdef"  # the fake's own key; no real one has this form


class Fake:
    """Routes are {"GET /path": answer}; an answer is JSON, (status, JSON), bytes, or a function of the query."""

    def __init__(self, routes: dict[str, Any]) -> None:
        self.routes = routes
        self.asked: list[tuple[str, dict[str, list[str]], Any]] = []
        self.url = ""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, bytes]:
        """The status and body for a call."""
        self.asked.append((f"{method} {path}", query, body))
        found = self.routes.get(f"{method} {path}", (404, {"error": "no such route"}))
        if isinstance(found, Callable):
            found = found(query, body)
        status, value = found if isinstance(found, tuple) else (200, found)
        return status, value if isinstance(value, bytes) else json.dumps(value).encode()


@contextmanager
def serve(routes: dict[str, Any]) -> Iterator[Fake]:
    """The fake, listening on a port that the system picked."""
    fake = Fake(routes)

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            parts = urlsplit(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            if self.headers.get("Authorization") != f"Bearer {KEY}":
                status, data = 401, b'{"error": {"message": "Invalid key"}}'
            else:
                status, data = fake.answer(self.command, parts.path, parse_qs(parts.query), body)
            self.send_response(status)
            if status in {301, 302, 307}:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _do  # noqa: N815 - the names that http.server looks for

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def deployment(**over: Any) -> dict[str, Any]:
    """A Fireworks deployment with the fields of its documentation that matter here."""
    return {
        "name": "accounts/acme/deployments/a1b2c3", "displayName": "support-bot", "createTime": "2026-11-30T08:00:00Z",
        "state": "READY", "minReplicaCount": 1, "maxReplicaCount": 2, "desiredReplicaCount": 1, "replicaCount": 1,
        "acceleratorCount": 2, "acceleratorType": "NVIDIA_H100_80GB", "baseModel": "accounts/fireworks/models/gpt-oss-120b",
        "autoscalingPolicy": {"scaleToZeroWindow": "3600s"},
    } | over  # fmt: skip
