"""The little of HTTP/1.1 that the embedded server needs: read a request, answer it whole or as a stream of events."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 16 * 2**20
REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 411: "Length Required",
                  413: "Content Too Large", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
                  503: "Service Unavailable"}  # fmt: skip


class HttpFault(Exception):
    """An answer with an error status: `status`, OpenAI's `code`, one sentence, and figures that belong to it."""

    def __init__(self, status: int, message: str, code: str = "invalid_request_error", **more: int) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.more = status, message, code, more

    def body(self) -> dict[str, Any]:
        """The error object as OpenAI's clients expect it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "code": self.code, "param": None, **self.more}}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """What was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may carry another request."""
        return self.headers.get("connection", "").lower() != "close"

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; raises HttpFault 400 where it is none."""
        try:
            value = json.loads(self.body or b"null")
        except (ValueError, RecursionError):
            raise HttpFault(400, "The body is not JSON.", "invalid_json") from None
        if not isinstance(value, dict):
            raise HttpFault(400, "The body is not a JSON object.", "invalid_json")
        return value


class Answer:
    """The way back to one client: whole or streamed, once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, keep_alive: bool) -> None:
        self.reader, self.writer, self.keep_alive, self.begun = reader, writer, keep_alive, False

    @property
    def client_gone(self) -> bool:
        """Whether the client has closed its end."""
        return self.reader.at_eof() or self.writer.is_closing()

    def whole(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """One whole answer."""
        self._head(status, content_type, f"content-length: {len(body)}")
        self.writer.write(body)

    def json(self, status: int, value: Any) -> None:
        """One whole JSON answer."""
        self.whole(status, json.dumps(value, ensure_ascii=False).encode())

    def begin_events(self) -> None:
        """The head of a stream of server-sent events."""
        self._head(200, "text/event-stream; charset=utf-8", "transfer-encoding: chunked\r\ncache-control: no-cache")

    def events(self, *data: str) -> None:
        """Events of the stream, in one write."""
        body = "".join(f"data: {d}\n\n" for d in data).encode()
        self.writer.write(b"%x\r\n%s\r\n" % (len(body), body))

    def end_events(self) -> None:
        """The end of the stream."""
        self.writer.write(b"0\r\n\r\n")

    def _head(self, status: int, content_type: str, more: str) -> None:
        self.begun = True
        alive = "keep-alive" if self.keep_alive else "close"
        reason = REASONS.get(status, "")
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{more}\r\nconnection: {alive}\r\n\r\n"
        self.writer.write(head.encode())


Handler = Callable[[HttpRequest, Answer], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request on a connection; None where the client has closed it. Raises HttpFault."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except asyncio.LimitOverrunError:
        raise HttpFault(431, f"The request's head is larger than {MAX_HEAD_BYTES} bytes.") from None
    first, *lines = head.split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise HttpFault(400, "This is not an HTTP request.")
    pairs = [line.partition(":") for line in lines if line]
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await _body(reader, headers)
    return HttpRequest(method=parts[0], path=parts[1].partition("?")[0], headers=headers, body=body)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            if len(body) + size > MAX_BODY_BYTES:
                raise HttpFault(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
        return body
    length = headers.get("content-length", "0")
    if not length.isdecimal():
        raise HttpFault(400, "The content-length is not a number.")
    if int(length) > MAX_BODY_BYTES:
        raise HttpFault(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
    return await reader.readexactly(int(length))


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
    """Requests of one connection, one after the other, until either side has had enough."""
    try:
        while await _serve_one(reader, writer, handler):
            pass
    except (ConnectionError, asyncio.IncompleteReadError, ValueError, asyncio.LimitOverrunError):
        pass
    finally:
        writer.close()


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> bool:
    answer = Answer(reader, writer, keep_alive=False)
    try:
        request = await read_request(reader)
        if request is None:
            return False
        answer.keep_alive = request.keep_alive
        await handler(request, answer)
    except HttpFault as fault:
        if answer.begun:
            return False
        answer.json(fault.status, fault.body())
    await writer.drain()
    return answer.keep_alive
