"""What an endpoint is and what it accepts, asked once before anything is measured, and recorded in the run."""

import json
import os
import secrets
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from servefit.errors import CannotMeasure, ServefitError
from servefit.measure.prompts import WORDS, PromptMaker, make_prompt
from servefit.measure.rows import Planned, make_row
from servefit.records import RequestRecord
from servefit.wire.address import Address, Url, read_url, resolve
from servefit.wire.client import Client, Exchange, Limits
from servefit.wire.dialects import DIALECTS, Ask, Dialect
from servefit.workload.requests import Request

NO_NAME = "default"
"""The model that is asked for where nobody named one and the server lists none."""
_QUICK = Limits(connect_s=5.0, silent_s=8.0, total_s=15.0, body_bytes=8 * 2**20)

EMBEDDED_TELLS = ("build", "policy", "seats", "budget_tok", "prefix_cache", "timeout_s", "kv_blocks", "block_tok",
                  "kv_bytes_per_tok", "threads")  # fmt: skip
"""What the embedded server says of itself, kept in the run: the simulator needs the same figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server, a model on it, and how both want to be spoken to. Holds no secret: the key stays in the environment."""

    url: Url
    address: Address
    dialect: Dialect
    model: str
    name: str = ""
    """What the user called it; the URL where it has no name."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Optional fields that it accepts."""
    dropped: tuple[str, ...] = ()
    """Optional fields that it refused."""
    api_key_env: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    context_tok: int | None = None
    paid: bool = False
    expect_failure: bool = False
    fresh: bool = False
    """A new connection for each request: llama.cpp's server now and then closes a kept one under the next request."""

    @property
    def secret(self) -> str:
        """The API key, from the environment; "" where none is named or set. Never stored, printed or logged.

        Without the line end that files and secret stores leave behind it.
        """
        return os.environ.get(self.api_key_env, "").strip() if self.api_key_env else ""

    def wire(self, ask: Ask) -> bytes:
        """The whole HTTP request, ready to send."""
        return self._http("POST", self.dialect.path, self.dialect.ask(ask))

    def get_wire(self, path: str) -> bytes:
        """The HTTP request that reads `path`."""
        return self._http("GET", path)

    def _http(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        payload = b"" if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        host = self.url.origin.partition("://")[2]
        head = [
            f"{method} {self.url.prefix}{path} HTTP/1.1",
            f"Host: {host}",
            "User-Agent: servefit",
            f"Accept: {'text/event-stream, ' if body is not None else ''}application/json",
            "Accept-Encoding: identity",
            *(f"{name}: {value}" for name, value in self.dialect.headers),
        ]
        if secret := self.secret:
            bearer = "Bearer " if self.dialect.key_header == "authorization" else ""
            head.append(f"{self.dialect.key_header}: {bearer}{secret}")
        if body is not None:
            head += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
        return ("\r\n".join(head) + "\r\n\r\n").encode("latin-1", "replace") + payload


def find_endpoint(
    text: str,
    *,
    model: str | None = None,
    dialect: str = "",
    api_key_env: str | None = None,
    name: str = "",
    paid: bool = False,
    expect_failure: bool = False,
    ca_file: str | None = None,
) -> Endpoint:
    """The endpoint at a URL, as far as can be said without asking it. Raises ServefitError."""
    url = read_url(text)
    wanted = dialect or url.dialect
    if wanted and wanted not in DIALECTS:
        raise ServefitError(f"There is no dialect '{wanted}'.", hint=f"Known: {', '.join(DIALECTS)}.")
    if api_key_env and not (key := os.environ.get(api_key_env, "").strip()):
        raise CannotMeasure(
            f"The environment variable {api_key_env} is not set, so there is no API key.",
            hint=f"export {api_key_env}=...",
        )
    if api_key_env and not (key.isascii() and key.isprintable()):
        raise CannotMeasure(
            f"The API key in {api_key_env} has characters that no header may hold, such as a line end within it.",
            hint="Is it two keys, or a whole file? It is one line of ASCII.",
        )
    chosen = DIALECTS[wanted or "openai-chat"]
    return Endpoint(
        url=replace(url, dialect=wanted),
        address=resolve(url, ca_file=ca_file),
        dialect=chosen,
        model=model or "",
        name=name or url.base,
        api_key_env=api_key_env,
        paid=paid,
        expect_failure=expect_failure,
        fields=dict(chosen.optional),
    )


# --- asking ------------------------------------------------------------------------------------------------------------


def ask_once(client: Client, wire: bytes) -> Exchange:
    """Send one request and wait for its end."""
    exchange = Exchange(0, wire)
    from time import monotonic_ns

    exchange.due_ns = monotonic_ns()
    client.send(exchange)
    while not (ended := client.poll(monotonic_ns() + 250_000_000)):
        pass
    assert ended[0] is exchange, "only one request was under way"
    return exchange


def get_json(
    client: Client, endpoint: Endpoint, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any] | None:
    """The JSON object at `path`; None where there is none."""
    exchange = ask_once(client, endpoint._http("GET" if body is None else "POST", path, body))  # noqa: SLF001
    if exchange.failure == "refused":
        raise _no_connection(endpoint.url.origin, exchange.error)
    if exchange.failure == "timeout" and not exchange.sent_ns:
        raise CannotMeasure(
            f"Nothing answers at {endpoint.url.origin} within {client.limits.connect_s:g} s.", hint="Check the address."
        )
    if exchange.http_status != 200:
        return None
    try:
        value = json.loads(bytes(exchange.body))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def discover(endpoint: Endpoint) -> Endpoint:
    """The endpoint with what it tells about itself: models, engine, build, context length. Raises CannotMeasure."""
    client = Client(endpoint.address, limits=_QUICK)
    try:
        listed = get_json(client, endpoint, "/v1/models") or {}
        entries = [m for m in listed.get("data") or [] if isinstance(m, dict) and isinstance(m.get("id"), str)]
        models = tuple(m["id"] for m in entries)
        engine, context = _engine(client, endpoint, entries)
    finally:
        client.close()
    hinted = endpoint.url.dialect
    dialect = (
        endpoint.dialect if hinted else DIALECTS["ollama-chat" if engine.get("name") == "ollama" else "openai-chat"]
    )
    model = _choose_model(endpoint, models)
    entry = next((m for m in entries if m["id"] == model), {})
    if isinstance(length := entry.get("max_model_len"), int):
        context = length
    fields = dict(dialect.optional)
    if engine.get("name") == "llama.cpp" and dialect.name.startswith("openai"):
        fields["cache_prompt"] = False
    if engine.get("name") == "vllm":
        fields["min_tokens"] = "osl"
    return replace(
        endpoint, dialect=dialect, model=model, models=models, engine=engine, context_tok=context, fields=fields,
        fresh=endpoint.fresh or engine.get("name") == "llama.cpp",
    )  # fmt: skip


def _choose_model(endpoint: Endpoint, models: tuple[str, ...]) -> str:
    if endpoint.model:
        known = endpoint.model in models or f"{endpoint.model}:latest" in models
        if models and not known:
            import difflib

            near = difflib.get_close_matches(endpoint.model, models, n=1, cutoff=0.5)
            some = ", ".join(models[:5]) + (" ..." if len(models) > 5 else "")
            hint = f"Did you mean '{near[0]}'? " if near else ""
            raise CannotMeasure(
                f"{endpoint.url.origin} has no model '{endpoint.model}'.", hint=f"{hint}It lists: {some}."
            )
        return endpoint.model
    if len(models) > 1 and endpoint.paid:
        raise ServefitError(f"{endpoint.name} has {len(models)} models.", hint="Choose one with --model.")
    return models[0] if models else NO_NAME


def _engine(client: Client, endpoint: Endpoint, entries: list[dict[str, Any]]) -> tuple[dict[str, Any], int | None]:
    """Name and build of the engine and its context length, where it tells."""
    owner = str(entries[0].get("owned_by", "")) if entries else ""
    if owner == "servefit":
        own = get_json(client, endpoint, "/props") or {}
        return {"name": str(own.get("engine", owner)), **{name: own.get(name) for name in EMBEDDED_TELLS}}, None
    local = endpoint.url.scheme == "http"
    if owner == "vllm":
        version = get_json(client, endpoint, "/version") or {}
        return {"name": "vllm", "build": str(version.get("version", ""))}, None
    if owner == "sglang":
        return {"name": "sglang"}, None
    if not local and owner:
        return {"name": owner}, None
    if (told := get_json(client, endpoint, "/api/version")) and isinstance(told.get("version"), str):
        return {"name": "ollama", "build": told["version"]}, None
    if (props := get_json(client, endpoint, "/props")) and "default_generation_settings" in props:
        settings = props["default_generation_settings"]
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        engine = {"name": "llama.cpp", "build": str(props.get("build_info", "")), "seats": props.get("total_slots")}
        return engine, context if isinstance(context, int) else None
    return ({"name": owner} if owner else {}), None


# --- what it accepts -----------------------------------------------------------------------------------------------------


def accept(endpoint: Endpoint, maker: PromptMaker, request: Request, *, limits: Limits, seed: int,
           start_ns: int) -> tuple[Endpoint, RequestRecord]:  # fmt: skip
    """The endpoint with the optional fields that it takes, and the row of the first request that it answered (cold).

    A refused field is given up and the request sent again: this is before the measurement, and recorded. Where the
    endpoint answers no request at all, raises CannotMeasure with what it said.
    """
    dropped: list[str] = []
    fields = dict(endpoint.fields)
    client = Client(endpoint.address, limits=limits)
    try:
        while True:
            asking = replace(endpoint, fields=fields)
            prompt, isl = make_prompt(maker, request, seed)
            ask = Ask(model=endpoint.model, prompt=prompt, osl=request.osl, fields=fields)
            exchange = ask_once(client, asking.wire(ask))
            planned = Planned(id="cold", phase="cold", isl=isl, isl_tolerance_frac=maker.tolerance_frac, osl=request.osl,
                              eos_off="ignore_eos" in fields, expect_failure=endpoint.expect_failure)  # fmt: skip
            row = make_row(exchange, planned, endpoint.dialect, start_ns=start_ns, secret=endpoint.secret)
            refused = _give_up(row, fields)
            if refused is None:
                return replace(asking, dropped=tuple(dropped)), row
            dropped.append(refused)
    finally:
        client.close()


def _give_up(row: RequestRecord, fields: dict[str, Any]) -> str | None:
    """Take out of `fields` what the answer refused, and return its name; None where the answer is not about fields."""
    if row.status not in {"unprocessable", "http_error"} or row.http_status in {405, 413}:
        return None
    said = (row.error or "").lower()
    if "max_completion_tokens" in said and "max_completion_tokens" not in fields:
        fields["max_completion_tokens"] = "osl"
        return "max_tokens"
    named = [name for name in fields if name.lower() in said]
    about_length = any(word in said for word in ("context", "too long", "maximum", "exceed"))
    order = ("min_tokens", "ignore_eos", "cache_prompt", "stream_options", "temperature")
    for name in named or ([] if about_length else order):
        if name in fields:
            del fields[name]
            return name
    return None


def with_context(endpoint: Endpoint, longest_tok: int) -> Endpoint:
    """For Ollama, which cuts longer prompts without a word: the endpoint asked for a context that holds the longest request.

    Half as much again for prompts whose tokens are not counted yet, in whole 1,024, and never below Ollama's own 4,096:
    changing it loads the model anew, which the cold request pays for.
    """
    if not endpoint.dialect.name.startswith("ollama") or "num_ctx" in endpoint.fields:
        return endpoint
    wanted = max(4096, -(-(longest_tok * 3 // 2 + 256) // 1024) * 1024)
    return replace(endpoint, fields={"num_ctx": wanted, **endpoint.fields})


def told_context(endpoint: Endpoint) -> Endpoint:
    """For Ollama, once the model is loaded: the endpoint with the context that it really has, as /api/ps says.

    Raises CannotMeasure where that is less than was asked: prompts would be cut.
    """
    asked = endpoint.fields.get("num_ctx")
    if asked is None:
        return endpoint
    client = Client(endpoint.address, limits=_QUICK)
    try:
        loaded = (get_json(client, endpoint, "/api/ps") or {}).get("models") or []
    finally:
        client.close()
    names = {endpoint.model, f"{endpoint.model}:latest"}
    mine = next((m for m in loaded if isinstance(m, dict) and m.get("name") in names), {})
    context = mine.get("context_length")
    if not isinstance(context, int):
        return endpoint  # an older Ollama does not say; a cut prompt is still seen by its count
    if context < asked:
        raise CannotMeasure(
            f"Ollama loaded '{endpoint.model}' with a context of {context:,} tokens, though {asked:,} were asked.",
            hint="The model allows no more, or OLLAMA_CONTEXT_LENGTH caps it: lower --isl and --osl.",
        )
    return replace(endpoint, context_tok=context)


def _no_connection(at: str, said: str) -> CannotMeasure:
    """Why there is no connection: nobody listens, or TLS fails with who does."""
    if said.startswith("TLS: "):
        return CannotMeasure(
            f"No TLS connection to {at}: {said.removeprefix('TLS: ').lower().replace('_', ' ')}.",
            hint="For a private certificate, name its authority's file: ca_file of the target in servefit.toml.",
        )
    return CannotMeasure(
        f"Nothing answers at {at}: {said.lower() or 'connection refused'}.",
        hint="Start the server, or check host and port; 'servefit check' lists what answers here.",
    )


def complain(endpoint: Endpoint, row: RequestRecord) -> None:
    """Raise CannotMeasure where the first answer shows that no other will be better."""
    at = endpoint.url.base
    said = row.error or ""
    if row.status == "refused":
        raise _no_connection(at, said)
    if row.status == "unauthorized":
        hint = f"Is the key in {endpoint.api_key_env} the right one?" if endpoint.api_key_env else (
            "Name the variable that holds the key with --api-key-env.")  # fmt: skip
        raise CannotMeasure(f"{at} does not let us in ({said}).", hint=hint)
    if row.status == "not_found":
        some = f" It lists: {', '.join(endpoint.models[:5])}." if endpoint.models else " It lists no model."
        raise CannotMeasure(
            f"{at} has no {endpoint.dialect.path} or no model '{endpoint.model}' ({said}).",
            hint=f"Check --model and --dialect.{some}",
        )
    if row.status == "not_an_llm":
        raise CannotMeasure(f"{at} is not an LLM server: {said}.", hint="Check the port and the path.")
    if row.status == "redirected":
        raise CannotMeasure(f"{at} answers with a redirect ({said}).", hint="Name the address that it points to.")
    unnamed = not endpoint.models and endpoint.model == NO_NAME
    if row.status == "unprocessable" or (row.status == "http_error" and unnamed):
        hint = (
            "It lists no model: name the one it serves with --model." if unnamed else "Check --model, --isl and --osl."
        )
        raise CannotMeasure(f"{at} refuses the request ({said}).", hint=hint)


# --- token counts --------------------------------------------------------------------------------------------------------


def learn_tokens(endpoint: Endpoint, *, limits: Limits, seed: int, start_ns: int,
                 fixed: str | None = None) -> tuple[PromptMaker, list[RequestRecord]]:  # fmt: skip
    """How many tokens a word and the template take here, and the warm-up rows that it cost to learn.

    Two requests, of 16 and of 144 words: `usage` grows by the tokens of 128 words, and what is left is the template.
    """
    salt = secrets.token_hex(4)
    if fixed is not None:
        return PromptMaker(source="given", fixed=fixed, salt=salt), []
    client = Client(endpoint.address, limits=limits)
    client.fresh = endpoint.fresh
    rows: list[RequestRecord] = []
    told: list[tuple[int, int]] = []
    guess = PromptMaker(salt=salt, tok_per_word=1.0, overhead_tok=0)
    try:
        ids = _word_ids(client, endpoint)
        if ids and endpoint.dialect.token_prompts:
            exact = tuple(ids.values())
            return PromptMaker(source="tokenizer", tok_per_word=1.0, overhead_tok=0, salt=salt, word_ids=exact), rows
        guess = replace(guess, words=tuple(ids) or WORDS)
        for words in (16, 144):
            prompt, _ = make_prompt(guess, Request(id=-words, due_s=0.0, isl=words, osl=1), seed)
            ask = Ask(model=endpoint.model, prompt=prompt, osl=2, fields=endpoint.fields)
            exchange = ask_once(client, endpoint.wire(ask))
            planned = Planned(id=f"words-{words}", phase="warmup", osl=2)
            row = make_row(exchange, planned, endpoint.dialect, start_ns=start_ns, secret=endpoint.secret)
            rows.append(row)
            if row.isl_source == "usage" and row.isl:
                told.append((words, row.isl))
    finally:
        client.close()
    if len(told) == 2:
        (few, low), (many, high) = told
        slope = (high - low) / (many - few)
        if 0.5 <= slope <= 4:
            overhead = max(0, round(low - few * slope))
            source: Literal["tokenizer", "usage"] = "tokenizer" if ids and slope == 1.0 else "usage"
            return replace(guess, source=source, tok_per_word=slope, overhead_tok=overhead), rows
    return PromptMaker(salt=salt), rows


def _word_ids(client: Client, endpoint: Endpoint) -> dict[str, int]:
    """The words that are one token each and their ids, from the server's tokenizer; empty where it has none we know."""
    if endpoint.url.scheme == "https" or not endpoint.dialect.name.startswith("openai"):
        return {}
    ids: dict[str, int] = {}
    for first in range(0, len(WORDS), 16):
        words = WORDS[first : first + 16]
        text = "".join(f" {w}" for w in words)
        value = get_json(
            client,
            endpoint,
            "/tokenize",
            {
                "model": endpoint.model,
                "prompt": text,
                "content": text,
                "add_special_tokens": False,
                "add_special": False,
            },
        )
        tokens = (value or {}).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            return {}
        if len(tokens) == len(words):
            ids.update(zip(words, tokens, strict=True))
    return ids if len(ids) >= 64 else {}
