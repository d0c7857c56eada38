"""Where to send: a URL read with a sentence for whatever is wrong with it, resolved once, before any clock starts."""

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from servefit.errors import CannotMeasure, ServefitError

if TYPE_CHECKING:
    import ssl

PATHS = {
    "/v1/chat/completions": "openai-chat",
    "/v1/completions": "openai-completions",
    "/v1/messages": "anthropic",
    "/api/chat": "ollama-chat",
    "/api/generate": "ollama-generate",
}
"""A URL that ends in one of these names its dialect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """A server's address in parts; `prefix` is what stands before /v1 or /api, `dialect` what its path names, or ""."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    dialect: str = ""

    @property
    def origin(self) -> str:
        """The URL without a path, as the Host header and people read it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def base(self) -> str:
        """The URL that dialect paths are added to."""
        return self.origin + self.prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A resolved address, ready to connect to."""

    host: str
    family: int
    sockaddr: Any
    tls: "ssl.SSLContext | None" = None
    ca_file: str | None = None
    resolve_s: float = 0.0


def read_url(text: str) -> Url:
    """The parts of what a person wrote: host:port, http(s)://host/v1, or a whole path. Raises ServefitError.

    >>> read_url("localhost:8080/v1").base, read_url("http://10.0.0.1:11434/api/chat").dialect
    ('http://localhost:8080', 'ollama-chat')
    """
    given = text.strip()
    try:
        parts = urlsplit(given if "://" in given else f"http://{given}")
        port = parts.port
    except ValueError as error:
        raise ServefitError(f"'{text}' is not a URL: {error}.", hint="Write http://127.0.0.1:8080.") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ServefitError(f"'{text}' is not the URL of a server.", hint="Write http://127.0.0.1:8080.")
    if parts.username or parts.password:
        raise ServefitError(
            "The URL holds a password.", hint="Put the key into an environment variable and name it with --api-key-env."
        )
    path = parts.path.rstrip("/")
    dialect = ""
    for ending, name in PATHS.items():
        if path.endswith(ending):
            path, dialect = path.removesuffix(ending), name
            break
    for ending in ("/v1", "/api"):
        path = path.removesuffix(ending)
    return Url(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port or (443 if parts.scheme == "https" else 80),
        prefix=path,
        dialect=dialect,
    )


def resolve(url: Url, *, ca_file: str | None = None) -> Address:
    """The first address of the host. Raises CannotMeasure where the name is not known."""
    from time import perf_counter

    before = perf_counter()
    try:
        family, _, _, _, sockaddr = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise CannotMeasure(
            f"The host '{url.host}' is not known: {error.strerror or error}.", hint="Check the name and the network."
        ) from None
    took = perf_counter() - before
    tls = None
    if url.scheme == "https":
        import ssl

        tls = ssl.create_default_context(cafile=ca_file)
    return Address(host=url.host, family=family, sockaddr=sockaddr, tls=tls, ca_file=ca_file, resolve_s=took)


def is_loopback(address: Address) -> bool:
    """Whether the address is this machine itself."""
    host = str(address.sockaddr[0])
    return host.startswith("127.") or host in {"::1", "::ffff:127.0.0.1"}
