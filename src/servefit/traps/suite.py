"""The conformance suite: answers that load generators get wrong, each with its truth.

The plain stream is the measure of all: first token after 120 ms, 20 tokens, one every 15 ms. Every other trap
bends one thing. `servefit measure --selftest` and the tests run all of them; the truth stands beside the script.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from servefit.traps.server import Script

TTFT_S = 0.120
GAP_S = 0.015
TOKENS = 20
E2E_S = TTFT_S + (TOKENS - 1) * GAP_S
WORD = "tok "


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What an honest client must say of a trap. None where there is nothing to say."""

    by_status: dict[str, int]
    """Of four requests."""
    findings: frozenset[str] = frozenset()
    """Codes that every row must have."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    osl: int | None = None
    answer_s: float | None = None
    """Due to the first visible token, where reasoning came first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A script, what is true of it, and which dialect it speaks."""

    name: str
    about: str
    script: Script
    truth: Truth
    dialect: str = "openai-chat"
    tls: bool = False
    users: int = 4


TRAPS: dict[str, Trap] = {}


def script_for(path: str, _asked: dict[str, Any], _served: int) -> Script:
    """The script of the trap that the path names; 404 where it names none."""
    trap = TRAPS.get(path.strip("/").partition("/")[0])
    if trap is None or "/v1/models" in path or path.endswith(("/props", "/version")):
        return _plain_answer("404 Not Found", b'{"error":{"message":"not found"}}')
    return trap.script


# --- pieces ------------------------------------------------------------------------------------------------------------


def event(value: Any, end: bytes = b"\n\n") -> bytes:
    """One server-sent event holding `value` as JSON."""
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + end


def delta(content: Any = WORD, /, *, finish: str | None = None, **other: Any) -> dict[str, Any]:
    """An OpenAI chat chunk."""
    inside = other or ({"content": content} if content is not None else {})
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": inside, "finish_reason": finish}],
    }


USAGE = {"prompt_tokens": 64, "completion_tokens": TOKENS, "total_tokens": 64 + TOKENS}
DONE = b"data: [DONE]\n\n"
FINISH = event(delta(None, finish="length"))
TAIL = FINISH + event({"choices": [], "usage": USAGE}) + DONE


def stream(pieces: list[bytes], *, tail: bytes = TAIL, gap_s: float = GAP_S, **changes: Any) -> Script:
    """A stream of events, the first at TTFT, the others a gap apart; the tail comes with the last one's time."""
    writes = [(TTFT_S + i * gap_s, piece) for i, piece in enumerate(pieces)]
    if tail:
        writes.append((writes[-1][0] + 0.001 if writes else TTFT_S, tail))
    return replace(Script(writes=tuple(writes)), **changes)


def _plain_answer(status: str, body: bytes, *, kind: str = "application/json", extra: tuple[str, ...] = ()) -> Script:
    return Script(status=status, headers=(f"Content-Type: {kind}", *extra), framing="length", writes=((0.0, body),))


def tokens(count: int = TOKENS) -> list[bytes]:
    """Plain token events."""
    return [event(delta()) for _ in range(count)]


ALL_OK = {"ok": 4}
STEADY = Truth(by_status=ALL_OK, ttft_s=TTFT_S, tpot_s=GAP_S, e2e_s=E2E_S, osl=TOKENS)


def _add(name: str, about: str, script: Script, truth: Truth = STEADY, **other: Any) -> None:
    TRAPS[name] = Trap(name=name, about=about, script=script, truth=truth, **other)


def _failing(status: str, *findings: str) -> Truth:
    return Truth(by_status={status: 4}, findings=frozenset(findings))


def _with(*findings: str, **changes: Any) -> Truth:
    return replace(STEADY, findings=frozenset(findings), **changes)


# --- streams that are whole ----------------------------------------------------------------------------------------------


def _whole_streams() -> None:
    _add("plain", "nothing odd", stream(tokens()))
    role = event(delta(None, role="assistant", content=""))
    early = stream(tokens())
    _add("role_early", "an empty role chunk comes at once", replace(early, writes=((0.0, role), *early.writes)))
    _add("role_late", "the role chunk comes with the first token", stream([role + event(delta()), *tokens(19)]))
    null = event(delta(None, role="assistant", content=None))
    _add("role_null", "the role chunk's content is null", replace(early, writes=((0.0, null), *early.writes)))
    for key in ("reasoning_content", "reasoning"):
        thoughts = [event(delta(**{key: WORD})) for _ in range(10)]
        truth = replace(STEADY, answer_s=TTFT_S + 10 * GAP_S)
        _add(key, f"ten tokens of {key}, then ten of content", stream([*thoughts, *tokens(10)]), truth)
    calls = [
        event(delta(tool_calls=[{"index": 0, "function": {"name": "f"} if i == 0 else {"arguments": WORD}}]))
        for i in range(TOKENS)
    ]
    _add("tool_calls", "tokens come as tool-call deltas", stream(calls))
    _add("four_tokens_an_event", "several tokens in one event",
         stream([event(delta(WORD * 4)) for _ in range(5)], gap_s=4 * GAP_S),
         _with("several_tokens_a_chunk", e2e_s=TTFT_S + 16 * GAP_S))  # fmt: skip
    _add("four_events_a_write", "several events in one write",
         stream([b"".join(tokens(4)) for _ in range(5)], gap_s=4 * GAP_S),
         _with("bursty", e2e_s=TTFT_S + 16 * GAP_S))  # fmt: skip
    halves = [(TTFT_S + i * GAP_S - lead, part) for i, whole in enumerate(tokens())
              for lead, part in ((0.005, whole[:40]), (0.0, whole[40:]))]  # fmt: skip
    _add("split_events", "each event in two writes, 5 ms apart", Script(writes=(*halves, (E2E_S + 0.001, TAIL))))
    _add("split_events_tls", "the same in two TLS records", Script(writes=(*halves, (E2E_S + 0.001, TAIL))), tls=True)
    _add("plain_tls", "nothing odd, over TLS", stream(tokens()), tls=True)
    smile = "\N{GRINNING FACE}"
    cut = event(delta(smile))
    place = cut.index(smile.encode()) + 2
    bits = [(TTFT_S + i * GAP_S - lead, part) for i in range(TOKENS)
            for lead, part in ((0.005, cut[:place]), (0.0, cut[place:]))]  # fmt: skip
    _add("split_utf8", "writes end inside a UTF-8 sequence", Script(writes=(*bits, (E2E_S + 0.001, TAIL))))
    _add("held_utf8", "tokens without a whole character are held back",
         stream([event(delta(smile)) for _ in range(10)], gap_s=2 * GAP_S),
         _with("several_tokens_a_chunk", e2e_s=TTFT_S + 18 * GAP_S))  # fmt: skip
    _add("empty_chunks", "empty chunks between the tokens", stream([event(delta("")) + e for e in tokens()]))
    _add("unknown_delta", "deltas of unknown shape between the tokens",
         stream([event(delta(None, shape={"a": [1]})) + e for e in tokens()]))  # fmt: skip


def _framings() -> None:
    crlf = [e.replace(b"\n", b"\r\n") for e in tokens()]
    _add("crlf", "CRLF line ends", stream(crlf, tail=TAIL.replace(b"\n", b"\r\n")), _with("crlf"))
    pings = stream(tokens())
    ping = tuple((0.02 * i, b": ping\n\n") for i in range(1, 5))
    _add("comments", "keep-alive comments before the first token",
         replace(pings, writes=(*ping, *pings.writes)), _with("comments"))  # fmt: skip
    _add("crlf_comments", "comments and CRLF together",
         stream([b": ping\r\n\r\n" + e for e in crlf], tail=TAIL.replace(b"\n", b"\r\n")),
         _with("comments", "crlf"))  # fmt: skip
    _add(
        "event_id_lines", "event:, id: and retry: lines", stream([b"event: m\nid: 7\nretry: 9\n" + e for e in tokens()])
    )
    _add("bom", "a byte order mark first", stream([b"\xef\xbb\xbf" + event(delta()), *tokens(19)]), _with("bom"))
    parts = [json.dumps(delta(), indent=1).encode() for _ in range(TOKENS)]
    lines = [b"".join(b"data: " + line + b"\n" for line in part.split(b"\n")) + b"\n" for part in parts]
    _add("data_lines", "one event's JSON over several data: lines", stream(lines))
    _add("no_space", "no space after data:", stream([e.replace(b"data: ", b"data:") for e in tokens()]))
    packer = zlib.compressobj(wbits=31)
    packed = [packer.compress(e) + packer.flush(zlib.Z_SYNC_FLUSH) for e in tokens()]
    _add("gzip", "compressed, though identity was asked",
         stream(packed, tail=packer.compress(TAIL) + packer.flush(),
                headers=("Content-Type: text/event-stream", "Content-Encoding: gzip")),
         _with("compressed"))  # fmt: skip
    _add("http10", "HTTP/1.0, ended by closing", stream(tokens(), version="HTTP/1.0", framing="close"))
    _add("connection_close", "a new connection for each request", stream(tokens(), keep_alive=False))
    _add("content_length", "a stream of known length", stream(tokens(), framing="length"))
    _add("closed_under_us", "keep-alive is promised, then closed under the next request",
         stream(tokens(), drop_next=True), replace(STEADY, by_status={"ok": 2, "reset": 2}), users=1)  # fmt: skip
    big = event(delta("x" * 10_000_000))
    _add("ten_megabytes", "one event of 10 MB",
         stream([*tokens(10), big, *tokens(9)]), replace(STEADY, e2e_s=None, tpot_s=None))  # fmt: skip


# --- counts --------------------------------------------------------------------------------------------------------------


def _counts() -> None:
    _add("no_usage", "no usage", stream(tokens(), tail=FINISH + DONE), _with("no_usage"))
    low = event({"choices": [], "usage": {**USAGE, "completion_tokens": 3}})
    _add("usage_too_low", "usage counts fewer tokens than came", stream(tokens(), tail=FINISH + low + DONE),
         _with("usage_mismatch"))  # fmt: skip
    high = event({"choices": [], "usage": {**USAGE, "completion_tokens": 9999}})
    _add("usage_too_high", "usage counts more tokens than were asked", stream(tokens(), tail=FINISH + high + DONE),
         _with("usage_mismatch"))  # fmt: skip
    odd = event({"choices": [], "usage": {"prompt_tokens": "64", "completion_tokens": None}})
    _add("usage_nonsense", "usage holds no numbers", stream(tokens(), tail=FINISH + odd + DONE), _with("no_usage"))
    _add("usage_on_finish", "usage rides on the finish chunk, unasked",
         stream(tokens(), tail=event({**delta(None, finish="length"), "usage": USAGE}) + DONE))  # fmt: skip
    running = [event({**delta(WORD * 4), "usage": {**USAGE, "completion_tokens": 4 * (i + 1)}}) for i in range(5)]
    _add("running_usage", "several tokens an event, counted as they come", stream(running, gap_s=4 * GAP_S),
         replace(STEADY, e2e_s=TTFT_S + 16 * GAP_S))  # fmt: skip
    few = {**USAGE, "completion_tokens": 5}
    _add("stops_early", "fewer tokens than asked, though end-of-text is off",
         stream(tokens(5), tail=FINISH + event({"choices": [], "usage": few}) + DONE),
         Truth(by_status={"short": 4}, osl=5))  # fmt: skip
    cut = event({"choices": [], "usage": {**USAGE, "prompt_tokens": 9}})
    _add("context_cut", "the prompt was silently cut", stream(tokens(), tail=FINISH + cut + DONE),
         Truth(by_status={"prompt_cut": 4}, osl=TOKENS))  # fmt: skip
    _add("no_text", "complete, with no token that carries text",
         stream([], tail=TAIL), _failing("empty"))  # fmt: skip
    whole = {"choices": [{"message": {"role": "assistant", "content": WORD * TOKENS}, "finish_reason": "length"}],
             "usage": USAGE}  # fmt: skip
    _add("not_streamed", "one JSON answer where a stream was asked",
         Script(headers=("Content-Type: application/json",), framing="length",
                writes=((E2E_S, json.dumps(whole).encode()),)),
         Truth(by_status=ALL_OK, findings=frozenset({"not_streamed"}), osl=TOKENS))  # fmt: skip


# --- ends ----------------------------------------------------------------------------------------------------------------


def _ends() -> None:
    _add("no_done", "no [DONE]", stream(tokens(), tail=FINISH + event({"choices": [], "usage": USAGE})))
    _add("no_finish_reason", "[DONE] without a finish reason",
         stream(tokens(), tail=event({"choices": [], "usage": USAGE}) + DONE))  # fmt: skip
    _add("eof_without_finish", "ends cleanly after 5 tokens, with no finish reason, usage or [DONE]",
         stream(tokens(5), tail=b""), _failing("truncated"))  # fmt: skip
    _add("close_without_finish", "HTTP/1.0 that closes after 5 tokens",
         stream(tokens(5), tail=b"", version="HTTP/1.0", framing="close"), _failing("truncated"))  # fmt: skip
    _add("half_an_event", "ends inside an event",
         stream([*tokens(5), event(delta())[:30]], tail=b""), _failing("truncated"))  # fmt: skip
    _add("fin_midstream", "closed inside the answer", stream(tokens(5), tail=b"", end="fin"), _failing("reset"))
    _add("rst_midstream", "reset inside the answer", stream(tokens(5), tail=b"", end="rst"), _failing("reset"))
    _add("rst_before_headers", "reset before the answer", Script(framing="none", end="rst"), _failing("reset"))
    _add(
        "fin_after_done",
        "closed after [DONE], without HTTP's own end",
        stream(tokens(), end="fin"),
        _with("no_http_end"),
    )
    _add("open_after_done", "left open after [DONE]", stream(tokens(), end="hang"), _with("no_http_end"))
    _add("stall", "goes silent after 5 tokens", stream(tokens(5), tail=b"", end="hang"), _failing("timeout"))
    _add("no_headers", "accepts, and never answers", Script(framing="none", end="hang"), _failing("timeout"))
    _add("endless", "never stops", stream(tokens(), tail=event(delta()), repeat_last=True), _failing("too_long"))
    error = event({"error": {"message": "CUDA out of memory", "type": "server_error", "code": 500}})
    _add("error_before_tokens", "an error object in a 200 stream", stream([error], tail=DONE), _failing("stream_error"))
    _add("error_after_tokens", "an error object after 5 tokens", stream([*tokens(5), error], tail=DONE),
         _failing("stream_error"))  # fmt: skip
    named = b"event: error\n" + event({"object": "error", "message": "boom", "code": 500})
    _add("error_event", "an error as vLLM and SGLang send it", stream([*tokens(5), named], tail=b""),
         _failing("stream_error"))  # fmt: skip
    limited = event({"error": {"message": "slow down", "code": 429}})
    _add("limit_in_stream", "a rate limit inside a 200 stream", stream([limited], tail=b""), _failing("rate_limited"))
    _add("bad_json", "an event that is not JSON", stream([*tokens(5), b"data: {oops}\n\n"]), _failing("bad_stream"))


def _refusals() -> None:
    def said(text: str) -> bytes:
        return json.dumps({"error": {"message": text}}).encode()

    _add(
        "http_429", "rate limited", _plain_answer("429 Too Many Requests", said("slow down")), _failing("rate_limited")
    )
    _add("http_429_retry_after", "rate limited, with Retry-After",
         _plain_answer("429 Too Many Requests", said("slow down"), extra=("Retry-After: 1",)),
         _failing("rate_limited"))  # fmt: skip
    for code, words, status in (
        ("400", "Bad Request", "unprocessable"), ("401", "Unauthorized", "unauthorized"),
        ("403", "Forbidden", "unauthorized"), ("404", "Not Found", "not_found"),
        ("422", "Unprocessable Entity", "unprocessable"), ("500", "Internal Server Error", "http_error"),
        ("502", "Bad Gateway", "unavailable"), ("503", "Service Unavailable", "unavailable"),
        ("504", "Gateway Timeout", "unavailable"),
    ):  # fmt: skip
        _add(f"http_{code}", words.lower(), _plain_answer(f"{code} {words}", said(words)), _failing(status))
    page = b"<!doctype html><html><body>Welcome</body></html>"
    _add("html", "a web page with 200", _plain_answer("200 OK", page, kind="text/html"), _failing("not_an_llm"))
    _add(
        "html_502",
        "a proxy's error page",
        _plain_answer("502 Bad Gateway", page, kind="text/html"),
        _failing("unavailable"),
    )
    _add("other_json", "JSON of another kind", _plain_answer("200 OK", b'{"hello": "world"}'), _failing("not_an_llm"))
    _add("redirect", "a redirect", _plain_answer("302 Found", b"", extra=("Location: http://127.0.0.1:1/",)),
         _failing("redirected"))  # fmt: skip
    _add("not_http", "a server that speaks no HTTP",
         Script(framing="none", writes=((0.0, b"SSH-2.0-OpenSSH_9.2\r\n"),), end="fin"), _failing("bad_stream"))  # fmt: skip
    error = _plain_answer("200 OK", said("model is loading"))
    _add("json_error_200", "an error object with 200", error, _failing("stream_error"))


# --- other dialects --------------------------------------------------------------------------------------------------------


def _dialects() -> None:
    def line(value: Any) -> bytes:
        return json.dumps({"model": "m", **value}).encode() + b"\n"

    last = {"done": True, "done_reason": "length", "total_duration": 410_000_000, "load_duration": 5_000_000,
            "prompt_eval_count": 64, "prompt_eval_duration": 110_000_000, "eval_count": TOKENS,
            "eval_duration": 290_000_000}  # fmt: skip
    lines = ("Content-Type: application/x-ndjson",)
    chat = [line({"message": {"role": "assistant", "content": WORD}, "done": False}) for _ in range(TOKENS)]
    _add("ollama_chat", "Ollama's own chat", stream(chat, tail=line({"message": {"content": ""}, **last}), headers=lines),
         dialect="ollama-chat")  # fmt: skip
    generate = [line({"response": WORD, "done": False}) for _ in range(TOKENS)]
    _add("ollama_generate", "Ollama's own generate", stream(generate, tail=line({"response": "", **last}), headers=lines),
         dialect="ollama-generate")  # fmt: skip
    _add("ollama_error", "an error after 5 tokens", stream([*chat[:5], line({"error": "out of memory"})], tail=b"", headers=lines),
         _failing("stream_error"), dialect="ollama-chat")  # fmt: skip
    _add("ollama_cut", "ends after 5 tokens without done", stream(chat[:5], tail=b"", headers=lines),
         _failing("truncated"), dialect="ollama-chat")  # fmt: skip
    text = [event({"choices": [{"index": 0, "text": WORD, "finish_reason": None}]}) for _ in range(TOKENS)]
    ended = (
        event({"choices": [{"text": "", "finish_reason": "length"}]}) + event({"choices": [], "usage": USAGE}) + DONE
    )
    _add("completions", "the completions route", stream(text, tail=ended), dialect="openai-completions")
    _anthropic()
    _add("transformers", "a role chunk at once, usage on the finish chunk, no [DONE]",
         Script(writes=((0.0, event(delta(None, role="assistant"))), *stream(tokens(), tail=b"").writes,
                        (E2E_S + 0.001, event({**delta(None, finish="length"), "usage": USAGE})))))  # fmt: skip


def _anthropic() -> None:
    def named(kind: str, **value: Any) -> bytes:
        return f"event: {kind}\n".encode() + event({"type": kind, **value})

    start = named("message_start", message={"usage": {"input_tokens": 64, "output_tokens": 1}})
    texts = [named("content_block_delta", index=0, delta={"type": "text_delta", "text": WORD}) for _ in range(TOKENS)]
    tail = named("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": TOKENS})
    whole = stream(texts, tail=tail + named("message_stop"))
    _add("anthropic", "Anthropic's messages, with pings",
         replace(whole, writes=((0.0, start), (0.05, named("ping")), *whole.writes)), dialect="anthropic")  # fmt: skip
    overloaded = named("error", error={"type": "overloaded_error", "message": "Overloaded"})
    _add("anthropic_error", "overloaded after 5 tokens", stream([start + texts[0], *texts[1:5], overloaded], tail=b""),
         _failing("stream_error"), dialect="anthropic")  # fmt: skip


_BUILDERS: tuple[Callable[[], None], ...] = (_whole_streams, _framings, _counts, _ends, _refusals, _dialects)
for _build in _BUILDERS:
    _build()
