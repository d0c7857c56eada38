"""A server that thinks of nothing: known events at known times, to learn what our own client adds. Run as a child process.

It imports little, so that it is there within a few hundredths of a second: `python -I -S null_server.py STREAMS EVENTS GAP_US`
prints its port, answers STREAMS requests in lockstep, and ends. Each event carries the monotonic times at which its request
was read and the event was written.
"""

import select
import socket
import sys
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def serve(streams: int, events: int, gap_us: int) -> None:
    """Answer `streams` requests, each with `events` events, one every `gap_us`; ends after that, or when nobody comes."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(streams)
    listener.settimeout(5)
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    read_ns: dict[socket.socket, int] = {}
    waiting = []
    for _ in range(streams):
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(5)
        waiting.append(sock)
    while waiting:
        ready, _, _ = select.select(waiting, [], [], 5)
        if not ready:
            return
        for sock in ready:
            sock.recv(65536)
            read_ns[sock] = time.monotonic_ns()
            waiting.remove(sock)
    start = time.monotonic_ns()
    for number in range(events):
        rest = start + (number + 1) * gap_us * 1000 - time.monotonic_ns()
        if rest > 0:
            time.sleep(rest / 1e9)
        for sock, read in read_ns.items():
            event = b"data: %d %d\n\n" % (read, time.monotonic_ns())
            chunk = b"%x\r\n%s\r\n" % (len(event), event)
            sock.sendall(HEAD + chunk if number == 0 else chunk)
    for sock in read_ns:
        sock.sendall(b"0\r\n\r\n")
        sock.close()


if __name__ == "__main__":
    serve(*(int(word) for word in sys.argv[1:4]))
