"""What is still billing: what every provider's answer becomes, and the asking itself. Adapters are in `providers`.

An error, a missing key or a state nobody has documented is never "nothing": it is "could not ask" or "unknown".
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPException
from typing import Any, Literal, NoReturn

from servefit.errors import CannotMeasure

Billing = Literal["yes", "soon", "no", "unknown"]
"""yes: it costs money now; soon: it is being made and will; no: documented not to; unknown: the answer does not say."""

MAX_ANSWER_BYTES = 32 * 2**20
MAX_PAGES = 200


class CouldNotAsk(CannotMeasure):
    """A provider could not be asked, or answered what its documentation does not describe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One thing that a provider runs for an account."""

    provider: str
    account: str
    id: str
    """What the provider's calls need to find it."""
    name: str
    state: str
    """The provider's own word."""
    billing: Billing
    usd_per_hour: float | None
    """None where no price is known; `price_from` says why."""
    price_from: str
    since: datetime | None = None
    since_what: str = "created"
    """What `since` is: created, last started. Cost since then is an upper bound where it was idle in between."""
    hardware: str = ""
    replicas: int | None = None
    sleeps: str = ""
    """What its scale-to-zero is set to, in words."""
    note: str = ""
    stop: str = ""
    """The command or call that stops it."""

    def age_s(self, now: datetime) -> float | None:
        """Seconds since `since`."""
        return (now - self.since).total_seconds() if self.since else None

    def spent_usd(self, now: datetime) -> float | None:
        """What it has cost since then at the present price, at most; None where price or start is not known."""
        age = self.age_s(now)
        return None if age is None or self.usd_per_hour is None else self.usd_per_hour * max(age, 0.0) / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Where and as whom to ask. The key is never printed: its repr is left out."""

    provider: str
    base_url: str
    key: str = field(repr=False)
    account: str | None = None
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    """Prices given in servefit.toml, by the provider's own hardware name; they go before published ones."""
    timeout_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """An adapter: how to list what an account runs, and how to stop one of them."""

    name: str
    title: str
    key_env: str
    base_url: str
    docs: tuple[str, ...]
    """The public pages that the adapter was built from."""
    find: Callable[[Ask], list[Deployment]]
    halt: Callable[[Ask, Deployment], None]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host, so none is followed."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Never."""
        return


def call(ask: Ask, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None) -> Any:
    """The JSON of one call (None where the answer has no body). Raises CouldNotAsk for everything else."""
    url = ask.base_url.rstrip("/") + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
    headers = {"Authorization": f"Bearer {ask.key}", "Accept": "application/json", "User-Agent": "servefit"}
    data = None
    if body is not None:
        data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=ask.timeout_s) as answer:
            text = answer.read(MAX_ANSWER_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            _refuse(ask, error.code)
    except (OSError, HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", None) or error or type(error).__name__)
        raise CouldNotAsk(
            f"{ask.provider} could not be asked: {_scrub(reason, ask.key)}.", hint="Check the network, and try again."
        ) from None
    if len(text) > MAX_ANSWER_BYTES:
        raise CouldNotAsk(f"{ask.provider} sent more than {MAX_ANSWER_BYTES:,} bytes.", hint="Look at its own console.")
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        changed(ask, "the answer is not JSON")


def _refuse(ask: Ask, code: int) -> NoReturn:
    words = {
        401: "the key is not accepted (401)",
        403: "the key may not list this (403)",
        404: "there is no such account or call (404)",
        429: "it asks us to slow down (429)",
    }
    what = words.get(code, f"it answered HTTP {code}")
    hint = (
        "Check the key and the account's name." if code in {401, 403, 404} else "Try again, or look at its own console."
    )
    raise CouldNotAsk(f"{ask.provider} could not be asked: {what}.", hint=hint)


def _scrub(text: str, key: str) -> str:
    return text.replace(key, "***") if key else text


def changed(ask: Ask, what: str) -> NoReturn:
    """The answer is not what the documentation describes: said, never read as "nothing"."""
    raise CouldNotAsk(
        f"{ask.provider} answered in a way that its documentation does not describe: {what}.",
        hint="Look at its own console; please report this, since the adapter needs an update.",
    )


def items(ask: Ask, answer: Any, key: str | None) -> list[dict[str, Any]]:
    """The list of objects under `key` (or the answer itself where None). Raises CouldNotAsk where it is none."""
    found = answer if key is None else answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
        changed(ask, f"no list of objects{f' called {key!r}' if key else ''}")
    return found


def pages(ask: Ask, path: str, key: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Every object of a paginated list (pageToken, nextPageToken), page after page. A repeated token is an error."""
    token, seen = "", set[str]()
    for _ in range(MAX_PAGES):
        answer = call(ask, "GET", path, query={**query, **({"pageToken": token} if token else {})})
        yield from items(ask, answer, key)
        token = answer.get("nextPageToken") or ""
        if not isinstance(token, str):
            changed(ask, "nextPageToken is no text")
        if not token:
            return
        if token in seen:
            changed(ask, "the same page comes again and again")
        seen.add(token)
    changed(ask, f"more than {MAX_PAGES} pages")


def text(ask: Ask, value: Mapping[str, Any], name: str) -> str:
    """The text in a field that the documentation promises."""
    found = value.get(name)
    if not isinstance(found, str) or not found:
        changed(ask, f"no {name!r}")
    return found


def number(value: Any) -> float | None:
    """A number, or None where the field is missing or no number. True and False are no numbers."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def when(value: Any) -> datetime | None:
    """A moment in ISO 8601, or None where there is none; a moment without a zone is UTC."""
    from datetime import UTC

    if not isinstance(value, str) or not value:
        return None
    # RunPod writes "2024-07-12 19:14:40.144 +0000 UTC"
    plain = value.replace(" +0000 UTC", "+00:00").replace(" UTC", "+00:00")
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
