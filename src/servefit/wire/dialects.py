"""How each kind of server is asked, and how its answer is read: one entry a dialect, in one dict.

A dialect is two functions: `ask` makes the JSON body of a request, `read` fills a Reply from the answer's bytes.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from servefit.wire.likeness import Likeness
from servefit.wire.reply import Reply, count, seconds
from servefit.wire.sse import Noise, events, lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question: to which model, with what prompt, for how many tokens; `fields` are the optional ones accepted."""

    model: str
    prompt: str | Sequence[int]
    osl: int
    fields: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, str], ...] = ()
    """Earlier messages of the conversation, where there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A way to talk to a server."""

    name: str
    path: str
    ask: Callable[[Ask], dict[str, Any]]
    read: Callable[[bytes, Reply], None]
    optional: dict[str, Any]
    """Fields worth having that not every server takes, in the order in which they are given up."""
    token_prompts: bool = False
    conversations: bool = False
    """It takes earlier messages of a conversation beside the new one."""
    headers: tuple[tuple[str, str], ...] = ()
    key_header: str = "authorization"


# --- OpenAI: llama.cpp, vLLM, SGLang, TGI, LM Studio, OpenVINO, transformers serve, hosted ---------------------------


def _ask_chat(ask: Ask) -> dict[str, Any]:
    messages = [*ask.history, {"role": "user", "content": ask.prompt}]
    return _openai(ask, {"messages": messages})


def _ask_completions(ask: Ask) -> dict[str, Any]:
    prompt = ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)
    return _openai(ask, {"prompt": prompt})


def _openai(ask: Ask, what: dict[str, Any]) -> dict[str, Any]:
    fields = {k: (ask.osl if v == "osl" else v) for k, v in ask.fields.items()}
    if "max_completion_tokens" not in fields:
        fields = {"max_tokens": ask.osl, **fields}
    return {"model": ask.model, **what, "stream": True, **fields}


def _read_openai(data: bytes, reply: Reply) -> None:
    """Fill `reply` from an OpenAI event stream, or from one JSON answer."""
    if data[:64].lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in {b"{", b"<", b"["}:
        _read_whole(data, reply)
        return
    noise = Noise()
    likeness = Likeness(data, reply)
    for name, payload, offset in events(data, noise, likeness.skip):
        if payload == b"[DONE]":
            reply.terminal = True
            reply.end_offset = offset
            continue
        value = _json(payload, reply, torn=noise.torn)
        if value is None:
            return
        if name == "error" or value.get("error") or value.get("object") == "error":
            reply.fail(value)
            reply.end_offset = offset
            return
        before = len(reply.offsets)
        _openai_event(value, offset, reply)
        if len(reply.offsets) == before + 1:
            likeness.learn(payload)
    _note(noise, reply)


def _openai_event(value: dict[str, Any], offset: int, reply: Reply) -> None:
    usage = value.get("usage")
    running = None
    if isinstance(usage, dict):
        _openai_usage(usage, reply)
        running = reply.output_tok
    timings = value.get("timings")
    if isinstance(timings, dict):
        _llama_timings(timings, reply)
        running = count(timings.get("predicted_n")) or running
    choices = value.get("choices")
    if not isinstance(choices, list):
        if not isinstance(usage, dict) and not isinstance(timings, dict):
            reply.findings.add("unknown_event")
        return
    for choice in choices[:1]:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        if isinstance(delta, dict):
            thought, text = _thought(delta), _visible(delta)
            if thought:
                reply.chunk(offset, thought, reasoning=True, running=running)
                if text:  # one event, both: one chunk, whose answer begins here
                    reply.answer_chunk = (
                        reply.answer_chunk if reply.answer_chunk is not None else len(reply.offsets) - 1
                    )
                    reply.sizes[-1] += len(text.encode("utf-8", "surrogatepass"))
            else:
                reply.chunk(offset, text, running=running)
        elif isinstance(said := choice.get("text"), str):
            reply.chunk(offset, said, running=running)
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            reply.finish_reason = reason
            reply.end_offset = offset


def _thought(delta: dict[str, Any]) -> str:
    """Text that the model thought and does not show: both names that are in use."""
    for key in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(text := delta.get(key), str) and text:
            return text
    return ""


def _visible(delta: dict[str, Any]) -> str:
    """Text that the user sees, or that names or fills a tool call."""
    out = ""
    for key in ("content", "refusal"):
        if isinstance(text := delta.get(key), str):
            out += text
    content = delta.get("content")
    if isinstance(content, list):
        out += "".join(p.get("text", "") for p in content if isinstance(p, dict) and isinstance(p.get("text", ""), str))
    calls = delta.get("tool_calls")
    old_call = delta.get("function_call")
    for call in [*(calls if isinstance(calls, list) else []), {"function": old_call}]:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            out += "".join(t for t in (function.get("name"), function.get("arguments")) if isinstance(t, str))
    return out


def _openai_usage(usage: dict[str, Any], reply: Reply) -> None:
    for name in ("prompt_tokens", "input_tokens"):
        if (tokens := count(usage.get(name))) is not None:
            reply.prompt_tok = tokens
    for name in ("completion_tokens", "output_tokens"):
        if (tokens := count(usage.get(name))) is not None:
            reply.output_tok = tokens
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and (cached := count(details.get("cached_tokens"))) is not None:
        reply.cached_tok = cached


def _llama_timings(timings: dict[str, Any], reply: Reply) -> None:
    """llama.cpp's own times, on its last event (or on each with `timings_per_token`), and those of the embedded server."""
    for name in ("queue_s", "prefill_s", "decode_s"):
        if (value := seconds(timings.get(name), 1.0)) is not None:
            reply.server[name] = value
    for key, name in (("prompt_ms", "prefill_s"), ("predicted_ms", "decode_s")):
        if (value := seconds(timings.get(key), 1e3)) is not None:
            reply.server[name] = value
    for key, name in (("prompt_n", "prefill_tok"), ("predicted_n", "decode_tok"), ("cache_n", "cached_tok"),
                      ("draft_n", "drafted_tok"), ("draft_n_accepted", "accepted_tok")):  # fmt: skip
        if (tokens := count(timings.get(key))) is not None:
            reply.server[name] = tokens
    if reply.cached_tok is None and "cached_tok" in reply.server:
        reply.cached_tok = int(reply.server["cached_tok"])


def _read_whole(data: bytes, reply: Reply) -> None:
    """One JSON answer where a stream was asked: complete, but nothing is known of its tokens' times."""
    if data[:64].lstrip()[:1] == b"<":
        reply.foreign = "HTML instead of a completion"
        return
    value = _json(bytes(data), reply)
    if value is None:
        return
    if value.get("error") or value.get("object") == "error":
        reply.fail(value)
        return
    choices = value.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    if first is None:
        reply.foreign = "JSON that is no completion"
        return
    reply.whole = True
    message = first.get("message")
    text = first.get("text") if message is None else _thought(message) + _visible(message)
    reply.chunk(len(data), text if isinstance(text, str) else "")
    if isinstance(usage := value.get("usage"), dict):
        _openai_usage(usage, reply)
    if isinstance(reason := first.get("finish_reason"), str):
        reply.finish_reason = reason
    reply.end_offset = len(data)
    reply.findings.add("not_streamed")


# --- Ollama ------------------------------------------------------------------------------------------------------------


def _ask_ollama_chat(ask: Ask) -> dict[str, Any]:
    messages = [*ask.history, {"role": "user", "content": ask.prompt}]
    return _ollama(ask, {"messages": messages})


def _ask_ollama_generate(ask: Ask) -> dict[str, Any]:
    return _ollama(ask, {"prompt": ask.prompt})


def _ollama(ask: Ask, what: dict[str, Any]) -> dict[str, Any]:
    options = {"num_predict": ask.osl, **{k: v for k, v in ask.fields.items() if k in _OLLAMA_OPTIONS}}
    rest = {k: v for k, v in ask.fields.items() if k not in _OLLAMA_OPTIONS}
    return {"model": ask.model, **what, "stream": True, "options": options, **rest}


_OLLAMA_OPTIONS = ("num_ctx", "temperature", "seed")


def _read_ollama(data: bytes, reply: Reply) -> None:
    """Fill `reply` from Ollama's lines of JSON; its last line holds its own durations and counts."""
    if data[:64].lstrip()[:1] == b"<":
        reply.foreign = "HTML instead of a completion"
        return
    for line, offset, ended in lines(data):
        if not line.strip():
            continue
        value = _json(line, reply, torn=not ended)
        if value is None:
            return
        if value.get("error"):
            reply.fail(value)
            reply.end_offset = offset
            return
        message = value.get("message")
        said = message if isinstance(message, dict) else {"content": value.get("response"), **_pick(value, "thinking")}
        if thought := _thought(said):
            reply.chunk(offset, thought, reasoning=True)
        else:
            reply.chunk(offset, _visible(said))
        if value.get("done") is True:
            reply.terminal = True
            reply.end_offset = offset
            reason = value.get("done_reason")
            reply.finish_reason = reason if isinstance(reason, str) else None
            _ollama_counts(value, reply)
        elif "model" not in value and message is None and "response" not in value:
            reply.foreign = "JSON that is no completion"
            return


def _pick(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {key: value[key]} if key in value else {}


def _ollama_counts(value: dict[str, Any], reply: Reply) -> None:
    reply.prompt_tok = count(value.get("prompt_eval_count"))
    reply.output_tok = count(value.get("eval_count"))
    for key, name in (
        ("total_duration", "total_s"),
        ("load_duration", "load_s"),
        ("prompt_eval_duration", "prefill_s"),
        ("eval_duration", "decode_s"),
    ):
        if (took := seconds(value.get(key), 1e9)) is not None:
            reply.server[name] = took


# --- Anthropic messages --------------------------------------------------------------------------------------------------


def _ask_anthropic(ask: Ask) -> dict[str, Any]:
    messages = [*ask.history, {"role": "user", "content": ask.prompt}]
    return {"model": ask.model, "messages": messages, "max_tokens": ask.osl, "stream": True, **ask.fields}


def _read_anthropic(data: bytes, reply: Reply) -> None:
    """Fill `reply` from the event stream of the messages API."""
    if data[:64].lstrip(b"\xef\xbb\xbf \r\n\t")[:1] in {b"{", b"<"}:
        _read_whole(data, reply)
        return
    noise = Noise()
    for name, payload, offset in events(data, noise):
        value = _json(payload, reply, torn=noise.torn)
        if value is None:
            return
        kind = value.get("type", name)
        if kind == "error":
            reply.fail(value)
            reply.end_offset = offset
            return
        delta = value.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        if kind == "message_start" and isinstance(message := value.get("message"), dict):
            _anthropic_usage(message.get("usage"), reply)
        elif kind == "content_block_delta":
            thought = delta.get("thinking")
            if isinstance(thought, str) and thought:
                reply.chunk(offset, thought, reasoning=True)
            else:
                reply.chunk(offset, "".join(t for k in ("text", "partial_json") if isinstance(t := delta.get(k), str)))
        elif kind == "message_delta":
            _anthropic_usage(value.get("usage"), reply)
            if isinstance(reason := delta.get("stop_reason"), str):
                reply.finish_reason = reason
        elif kind == "message_stop":
            reply.terminal = True
            reply.end_offset = offset
    _note(noise, reply)


def _anthropic_usage(usage: Any, reply: Reply) -> None:
    if not isinstance(usage, dict):
        return
    fresh = count(usage.get("input_tokens"))
    cached = count(usage.get("cache_read_input_tokens"))
    written = count(usage.get("cache_creation_input_tokens"))
    if fresh is not None:
        reply.prompt_tok = fresh + (cached or 0) + (written or 0)
    if cached is not None:
        reply.cached_tok = cached
    if (tokens := count(usage.get("output_tokens"))) is not None:
        reply.output_tok = tokens


# --- shared ------------------------------------------------------------------------------------------------------------


def _json(payload: bytes, reply: Reply, *, torn: bool = False) -> dict[str, Any] | None:
    """The JSON object in `payload`; None, with the reason noted, where it is none."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        if not torn:
            reply.malformed = f"not JSON: {payload[:80]!r}"
        return None
    if not isinstance(value, dict):
        reply.malformed = f"not a JSON object: {payload[:80]!r}"
        return None
    return value


def _note(noise: Noise, reply: Reply) -> None:
    for seen, code in ((noise.comments, "comments"), (noise.crlf, "crlf"), (noise.bom, "bom")):
        if seen:
            reply.findings.add(code)


_OPENAI_OPTIONAL: dict[str, Any] = {
    "temperature": 0,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
}

DIALECTS: dict[str, Dialect] = {
    d.name: d
    for d in (
        Dialect(
            name="openai-chat",
            path="/v1/chat/completions",
            ask=_ask_chat,
            read=_read_openai,
            optional=_OPENAI_OPTIONAL,
            conversations=True,
        ),
        Dialect(
            name="openai-completions",
            path="/v1/completions",
            ask=_ask_completions,
            read=_read_openai,
            optional=_OPENAI_OPTIONAL,
            token_prompts=True,
        ),
        Dialect(
            name="ollama-chat",
            path="/api/chat",
            ask=_ask_ollama_chat,
            read=_read_ollama,
            optional={"temperature": 0},
            conversations=True,
        ),
        Dialect(
            name="ollama-generate",
            path="/api/generate",
            ask=_ask_ollama_generate,
            read=_read_ollama,
            optional={"temperature": 0},
        ),
        Dialect(
            name="anthropic",
            path="/v1/messages",
            ask=_ask_anthropic,
            read=_read_anthropic,
            optional={"temperature": 0},
            headers=(("anthropic-version", "2023-06-01"),),
            key_header="x-api-key",
            conversations=True,
        ),
    )
}
