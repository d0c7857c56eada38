"""Who may ask, and what an answer may do: Host and Origin checks, a token for the LAN, a strict policy, bounded sizes.

The page runs on the user's machine with the user's files. Another site in the same browser must not be able to read it
(DNS rebinding: the Host header gives it away) or to write to it (cross-site posts: the Origin header does).
"""

import hmac
from collections.abc import Awaitable, Callable, Collection

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "media-src 'self' blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# no-referrer would make a browser send "Origin: null" with our own forms, which are then taken for foreign ones
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
}
MAX_BODY_BYTES = 1 << 20
COOKIE = "servefit_token"


class Guard:
    """ASGI middleware: refuses what does not come from the user's own page, and seals every answer."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str | None) -> None:
        self.app = app
        self.hosts = frozenset(h.lower() for h in hosts)
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then pass it on with every answer sealed by our headers."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                cached = request.url.path.startswith("/static/")
                extra = [
                    (k.lower().encode(), v.encode())
                    for k, v in HEADERS.items()
                    if not (cached and k == "Cache-Control")
                ]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        if refusal is not None:
            await refusal(scope, receive, sealed)
            return
        await self.app(scope, _bounded(receive), sealed)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "").lower()
        if host not in self.hosts:
            return _say(421, "This page answers only at the address that servefit printed.")
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("origin")
            if origin is None or origin.lower().partition("://")[2] not in self.hosts:
                return _say(403, "This request did not come from the page itself.")
            if int(request.headers.get("content-length") or 0) > MAX_BODY_BYTES:
                return _say(413, f"A request is at most {MAX_BODY_BYTES:,} bytes.")
        if self.token is None:
            return None
        shown = request.cookies.get(COOKIE) or ""
        if hmac.compare_digest(shown.encode(), self.token.encode()):
            return None
        given = request.query_params.get("token", "")
        if request.method == "GET" and hmac.compare_digest(given.encode(), self.token.encode()):
            answer = Response(status_code=303, headers={"Location": request.url.path})
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        return _say(401, "Open the address with its token, as servefit printed it.")


def _say(status: int, text: str) -> Response:
    return PlainTextResponse(text + "\n", status_code=status)


def _bounded(receive: Receive) -> Callable[[], Awaitable[Message]]:
    """`receive`, cut off at MAX_BODY_BYTES whatever the Content-Length said."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            return {"type": "http.disconnect"}
        return message

    return bounded
