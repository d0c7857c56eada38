"""Which model servers answer right now: every local target is asked for its models, hosted ones are never called."""

import contextlib
import http.client
import json
import queue
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from servefit.errors import ServefitError
from servefit.settings import Target
from servefit.wire.address import Url, read_url

CONNECT_S: Final = 0.3
ANSWER_S: Final = 0.8
MAX_ANSWER_BYTES: Final = 2 * 2**20
OWNERS: Final = {"llamacpp": "llama.cpp", "vllm": "vLLM", "servefit": "servefit's embedded engine", "library": "Ollama",
                 "organization_owner": "LM Studio", "sglang": "SGLang", "local": "MLX"}  # fmt: skip
"""`owned_by` in the list of models -> the server's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found at one address."""

    names: tuple[str, ...]
    """Every target that points there."""
    url: str
    state: str
    """"answers", "silent" (connects, no answer in time), "wants a key", "not a model server", "nobody", "key set", "no key"."""
    software: str = ""
    models: tuple[str, ...] = ()
    answer_s: float | None = None

    @property
    def answers(self) -> bool:
        """Whether a model server answered."""
        return self.state in ("answers", "wants a key")


def who_answers(targets: tuple[Target, ...], *, within_s: float = 1.2) -> tuple[Seen, ...]:
    """What each target's address says now, all asked at once; those not done in time are "silent". Paid ones are not asked."""
    places: dict[str, list[Target]] = {}
    for target in targets:
        places.setdefault(target.url, []).append(target)
    found: dict[str, Seen] = {}
    results: queue.SimpleQueue[tuple[str, Seen]] = queue.SimpleQueue()
    asked = 0
    for url, here in places.items():
        if any(t.paid for t in here):
            state = "key set" if all(t.key_set for t in here) else "no key"
            found[url] = Seen(names=tuple(t.name for t in here), url=url, state=state, software="hosted")
        else:
            threading.Thread(target=_ask_into, args=(url, here, results), daemon=True).start()
            asked += 1
    deadline = time.monotonic() + within_s
    with contextlib.suppress(queue.Empty):
        for _ in range(asked):
            url, seen = results.get(timeout=max(0.0, deadline - time.monotonic()))
            found[url] = seen
    return tuple(
        found.get(url, Seen(names=tuple(t.name for t in here), url=url, state="silent")) for url, here in places.items()
    )


def _ask_into(url: str, here: list[Target], results: "queue.SimpleQueue[tuple[str, Seen]]") -> None:
    names = tuple(t.name for t in here)
    started = time.monotonic()
    state, software, models = _ask(url)
    took = time.monotonic() - started if state in ("answers", "wants a key") else None
    results.put((url, Seen(names=names, url=url, state=state, software=software, models=models, answer_s=took)))


def _ask(text: str) -> tuple[str, str, tuple[str, ...]]:
    try:
        url = read_url(text)
        status, body = _get(url, f"{url.prefix}/v1/models")
        if status == 404:
            status, body = _get(url, f"{url.prefix}/api/tags")
    except TimeoutError:
        return "silent", "", ()
    except (OSError, http.client.HTTPException, ServefitError):
        return "nobody", "", ()
    if status in (401, 403):
        return "wants a key", "", ()
    return _read_models(status, body)


def _get(url: Url, path: str) -> tuple[int, bytes]:
    if url.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            url.host, url.port, timeout=CONNECT_S, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(url.host, url.port, timeout=CONNECT_S)
    try:
        try:
            connection.connect()
        except TimeoutError as error:
            raise ConnectionError(str(error)) from None
        assert connection.sock is not None, "connected"
        connection.sock.settimeout(ANSWER_S)
        connection.request("GET", path, headers={"accept": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ANSWER_BYTES)
    finally:
        connection.close()


def _read_models(status: int, body: bytes) -> tuple[str, str, tuple[str, ...]]:
    """(state, software, models) from a list of models, OpenAI's or Ollama's."""
    try:
        value: Any = json.loads(body)
        entries = value.get("data", value.get("models"))
        models = tuple(str(e.get("id", e.get("name"))) for e in entries)
        owner = str(entries[0].get("owned_by", "")) if entries else ""
    except (ValueError, AttributeError, TypeError, RecursionError):
        return "not a model server", "", ()
    if status != 200:
        return "not a model server", "", ()
    software = OWNERS.get(owner, "Ollama" if "data" not in value else "OpenAI-compatible")
    return "answers", software, models
