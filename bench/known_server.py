"""A streaming server for many hundred streams that remembers when it really sent each token: the truth for bench/client.py.

One thread, one epoll, absolute schedules: first token `ttft` after the request was read, then one every `itl`. It is no more
punctual than the machine lets it be, and need not be: what is compared is when each token went out. GET /truth gives the
figures of everything served since the last /truth.  127.0.0.1 only.

    python bench/known_server.py --ttft-ms 100 --itl-ms 20
"""

import argparse
import contextlib
import heapq
import json
import select
import socket
import sys
from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic_ns

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: dict) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


WORDS = [
    chunked(
        event(
            {
                "id": "chatcmpl-0000000000000001",
                "object": "chat.completion.chunk",
                "created": 1764547200,
                "model": "known",
                "choices": [{"index": 0, "delta": {"content": f" w{n:03d}"}, "logprobs": None, "finish_reason": None}],
            }
        )
    )
    for n in range(1000)
]


@dataclass(slots=True)
class Stream:
    """A connection, and the answer under way on it."""

    sock: socket.socket
    data: bytes = b""
    read_ns: int = 0
    tokens: int = 0
    sent_ns: array = field(default_factory=lambda: array("q"))


class Server:
    """All connections, one heap of due times, and the truth."""

    def __init__(self, ttft_ns: int, itl_ns: int) -> None:
        self.ttft_ns, self.itl_ns = ttft_ns, itl_ns
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)
        self.streams: dict[int, Stream] = {}
        self.due: list[tuple[int, int]] = []
        self.done: list[tuple[int, array]] = []

    def run(self) -> None:
        """Serve until stdin closes."""
        self.epoll.register(sys.stdin.fileno(), select.EPOLLIN)
        while True:
            now = monotonic_ns()
            wait = 1.0 if not self.due else max(0.0, (self.due[0][0] - now) / 1e9)
            if wait > 0.002:
                ready = self.epoll.poll(wait - 0.001)
            else:
                fd = self.epoll.fileno()
                ready = self.epoll.poll(0) if wait == 0 or select.select([fd], [], [], wait)[0] else []
            for fd, _ in ready:
                if fd == sys.stdin.fileno():
                    return
                if fd == self.listener.fileno():
                    self.accept()
                elif fd in self.streams:
                    self.read(fd)
            now = monotonic_ns()
            while self.due and self.due[0][0] <= now:
                _, fd = heapq.heappop(self.due)
                if fd in self.streams:
                    self.send(fd, self.streams[fd])

    def accept(self) -> None:
        """Take every connection that waits."""
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self.listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setblocking(False)
                self.streams[sock.fileno()] = Stream(sock)
                self.epoll.register(sock.fileno(), select.EPOLLIN)

    def read(self, fd: int) -> None:
        """Read a request; when it is whole, its answer is scheduled."""
        stream = self.streams[fd]
        try:
            piece = stream.sock.recv(1 << 16)
        except OSError:
            piece = b""
        if not piece:
            self.epoll.unregister(fd)
            stream.sock.close()
            del self.streams[fd]
            return
        stream.data += piece
        head, found, body = stream.data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        if not found or len(body) < int(length or 0):
            return
        stream.data = b""
        if head.startswith(b"GET /truth"):
            self.tell(stream)
            return
        if head.startswith(b"GET"):
            stream.sock.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        stream.read_ns = monotonic_ns()
        stream.tokens = json.loads(body)["max_tokens"]
        stream.sent_ns = array("q")
        stream.sock.send(HEAD)
        heapq.heappush(self.due, (stream.read_ns + self.ttft_ns, fd))

    def send(self, fd: int, stream: Stream) -> None:
        """Send the next token, and after the last the end."""
        sent = len(stream.sent_ns)
        stream.sent_ns.append(monotonic_ns())
        data = WORDS[(fd + sent) % 1000]
        if sent + 1 == stream.tokens:
            usage = {"prompt_tokens": 64, "completion_tokens": stream.tokens}
            data += chunked(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
            data += chunked(event({"choices": [], "usage": usage})) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
            self.done.append((stream.read_ns, stream.sent_ns))
        else:
            heapq.heappush(self.due, (stream.read_ns + self.ttft_ns + (sent + 1) * self.itl_ns, fd))
        with contextlib.suppress(OSError):
            stream.sock.send(data)

    def tell(self, stream: Stream) -> None:
        """The truth of all answers since the last time it was told."""
        ttft = sorted(sent[0] - read for read, sent in self.done)
        gaps = sorted(b - a for _, sent in self.done for a, b in pairwise(sent))
        first = min((read for read, _ in self.done), default=0)
        last = max((sent[-1] for _, sent in self.done), default=0)
        busy = sum(sent[-1] - read for read, sent in self.done)
        told = {
            "requests": len(self.done),
            "tokens": sum(len(sent) for _, sent in self.done),
            "first_request_ns": first,
            "last_token_ns": last,
            "busy_streams": busy / (last - first) if last > first else None,
            **{f"ttft_p{p}_s": nearest(ttft, p) for p in (50, 99)},
            **{f"itl_p{p}_s": nearest(gaps, p) for p in (50, 99)},
        }
        self.done.clear()
        body = json.dumps(told).encode()
        stream.sock.setblocking(True)
        stream.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        stream.sock.setblocking(False)


def nearest(ordered: list[int], p: int) -> float | None:
    """Nearest-rank percentile in seconds."""
    return ordered[-(-p * len(ordered) // 100) - 1] / 1e9 if ordered else None


def main() -> None:
    """Print the URL and serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ttft-ms", type=float, default=100)
    parser.add_argument("--itl-ms", type=float, default=20)
    given = parser.parse_args()
    server = Server(int(given.ttft_ms * 1e6), int(given.itl_ms * 1e6))
    print(f"http://127.0.0.1:{server.listener.getsockname()[1]}", flush=True)
    server.run()


if __name__ == "__main__":
    main()
