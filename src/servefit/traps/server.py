"""A server whose every answer is a script with known times: the ground truth that our own figures are held against.

It runs in a process of its own (`python -m servefit.traps.server`), so that its clock and ours share no lock; tests may run
it in a thread. The path names the trap: /<trap>/v1/chat/completions. Listens on 127.0.0.1 only.
"""

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from servefit.traps.self_signed import server_context

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One answer: bytes at known times, counted from when the request was wholly read."""

    writes: tuple[tuple[float, bytes], ...] = ()
    status: str = "200 OK"
    headers: tuple[str, ...] = ("Content-Type: text/event-stream",)
    framing: Literal["chunked", "length", "close", "none"] = "chunked"
    """"none" sends the writes as they are, without any HTTP."""
    end: Literal["clean", "fin", "rst", "hang"] = "clean"
    """How the answer ends: as HTTP should, by closing, by resetting, or never."""
    version: str = "HTTP/1.1"
    keep_alive: bool = True
    drop_next: bool = False
    """Claim to keep the connection, then close it under the next request."""
    repeat_last: bool = False
    """Send the last write again and again, until the client goes."""


@dataclass(slots=True)
class Seen:
    """What the server saw, for tests: paths, headers, bodies."""

    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    connections: int = 0
    late_s: dict[str, list[list[float]]] = field(default_factory=dict)
    """By trap: of each request, how late each write really was, so that a busy machine is not taken for a wrong client."""


def answer(sock: "socket.socket | ssl.SSLSocket", script: Script, started: float, late_s: list[float], *,
           speed: float = 1.0) -> bool:  # fmt: skip
    """Play the script, `speed` times as fast, noting in `late_s` how late each write was.

    Returns whether the connection may serve another request.
    """
    _head(sock, script)
    framed = _framed(script)
    for (at, _), data in zip(script.writes, framed, strict=True):
        _sleep_until(started + at / speed)
        late_s.append(time.monotonic() - started - at / speed)
        sock.sendall(data)
    while script.repeat_last:
        time.sleep(0.001)
        sock.sendall(framed[-1])
    if script.end == "hang":
        with contextlib.suppress(OSError):
            sock.settimeout(30)
            sock.recv(1)  # until the client gives up
        return False
    if script.end == "rst":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False
    if script.end == "fin":
        return False
    if script.framing == "chunked":
        sock.sendall(b"0\r\n\r\n")
    return script.keep_alive and script.framing in {"chunked", "length"}


def _head(sock: "socket.socket | ssl.SSLSocket", script: Script) -> None:
    if script.framing == "none":
        return
    lines = [f"{script.version} {script.status}", *script.headers]
    if script.framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif script.framing == "length":
        lines.append(f"Content-Length: {sum(len(data) for _, data in script.writes)}")
    if not script.keep_alive:
        lines.append("Connection: close")
    sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())


_FRAMED: dict[int, tuple[Script, tuple[bytes, ...]]] = {}
"""Writes as they go over the wire, by the id of their script, so that nothing is built while the clock runs."""


def _framed(script: Script) -> tuple[bytes, ...]:
    if id(script) not in _FRAMED:
        chunked = script.framing == "chunked"
        # with the script, which then lives on: another one must not come to have its id
        _FRAMED[id(script)] = script, tuple(b"%x\r\n%s\r\n" % (len(d), d) if chunked else d for _, d in script.writes)
    return _FRAMED[id(script)][1]


def _sleep_until(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


# --- the server --------------------------------------------------------------------------------------------------------


class TrapServer:
    """Accepts connections, one thread each, and plays the script that the path names."""

    def __init__(self, *, tls: "ssl.SSLContext | None" = None, speed: float = 1.0) -> None:
        from servefit.traps.suite import TRAPS, script_for

        for trap in TRAPS.values():
            _framed(trap.script)
        self._script_for = script_for
        self._speed = speed
        self.seen = Seen()
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._closed = False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def serve(self) -> None:
        """Accept until closed."""
        while not self._closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.seen.connections += 1
            threading.Thread(target=self._talk, args=(sock,), daemon=True).start()

    def close(self) -> None:
        """Stop accepting, and close what is open."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _talk(self, raw: socket.socket) -> None:
        sock: Any = raw
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(raw, server_side=True)
            self._open.add(sock)
            self._requests(sock)
        except OSError:
            pass  # the client went
        finally:
            self._open.discard(sock)
            with contextlib.suppress(OSError):
                sock.close()

    def _requests(self, sock: Any) -> None:
        served = 0
        dropping = False
        while (request := _read_request(sock)) is not None:
            path, headers, body = request
            self.seen.requests.append((path, headers, body))
            if dropping:
                return
            started = time.monotonic()
            trap, _, rest = path.strip("/").partition("/")
            if rest == LATENESS:
                _tell_lateness(sock, self.seen.late_s.get(trap, []))
                continue
            late_s: list[float] = []
            self.seen.late_s.setdefault(trap, []).append(late_s)
            script = self._script_for(path, body if isinstance(body, dict) else {}, served)
            if not answer(sock, script, started, late_s, speed=self._speed):
                return
            dropping = script.drop_next
            served += 1


LATENESS = "lateness"
"""GET /<trap>/lateness: how late the server itself was."""


def _tell_lateness(sock: Any, late_s: list[list[float]]) -> None:
    body = json.dumps({"late_s": late_s}).encode()
    sock.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )


def _read_request(sock: Any) -> tuple[str, dict[str, str], Any] | None:
    """Path, headers and JSON body of the next request; None where the client closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in rest)}
    while len(body) < int(headers.get("content-length", 0)):
        piece = sock.recv(65536)
        if not piece:
            return None
        body += piece
    try:
        value = json.loads(body) if body else None
    except ValueError:
        value = None
    return first.split(" ")[1], headers, value


@contextmanager
def in_thread(*, tls: "ssl.SSLContext | None" = None, speed: float = 1.0) -> Iterator[TrapServer]:
    """A trap server in this process, for tests that ask for statuses and counts, not for times."""
    server = TrapServer(tls=tls, speed=speed)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(5)


@contextmanager
def in_process(pem: Path | None = None) -> Iterator[str]:
    """The URL of a trap server in a process of its own, for times that can be believed; over TLS with a key in `pem`."""
    import subprocess

    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "servefit.traps.server", *([str(pem)] if pem else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=here) as process:
        assert process.stdout is not None, "stdout is a pipe"
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def main() -> None:
    """Serve until stdin closes, so that it never outlives its parent."""
    server = TrapServer(tls=server_context(Path(sys.argv[1])) if len(sys.argv) > 1 else None)
    print(server.url, flush=True)
    threading.Thread(target=server.serve, daemon=True).start()
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
