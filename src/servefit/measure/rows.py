"""From an exchange to its row: the status, with evidence; the times of its tokens; the counts, and whose they are."""

import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

from servefit.records import RequestRecord
from servefit.wire.client import Exchange
from servefit.wire.dialects import Dialect
from servefit.wire.reply import Reply
from servefit.wire.sse import Body, inflate

_STATUS_OF_HTTP = {
    400: "unprocessable", 401: "unauthorized", 403: "unauthorized", 404: "not_found", 413: "unprocessable",
    422: "unprocessable", 429: "rate_limited", 502: "unavailable", 503: "unavailable", 504: "unavailable",
}  # fmt: skip
_RATE_LIMITS = {"rate_limit_exceeded", "rate_limit_error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the plan says of one request, beside what is on the wire."""

    id: str
    phase: str = "load"
    isl: int | None = None
    """Prompt tokens that were meant, with the chat template's where it is known."""
    isl_tolerance_frac: float = 0.45
    """How far below `isl` the server's count may lie before the prompt was cut: wide where `isl` is an estimate."""
    osl: int | None = None
    eos_off: bool = False
    user: int | None = None
    session: int | None = None
    expect_failure: bool = False


def make_row(exchange: Exchange, planned: Planned, dialect: Dialect, *, start_ns: int, keep_text: bool = False,
             secret: str = "") -> RequestRecord:  # fmt: skip
    """The row of an exchange that has ended, times in seconds since `start_ns`."""
    reply = Reply(keep_text=keep_text)
    body = Body(data=bytes(exchange.body), ends=exchange.ends, times_ns=exchange.times_ns)
    if exchange.http_status is not None and exchange.body:
        body = _decoded(exchange, body, reply)
        if exchange.http_status == 200 and reply.malformed is None:
            dialect.read(body.data, reply)
    times, tokens, answer = _arrivals(body, reply)
    osl, osl_source, chunk_tok = _output_tokens(reply, tokens, planned)
    status, error = _judge(exchange, reply, planned, osl)
    prompt_known = reply.prompt_tok is not None

    def at(ns: int | None) -> float | None:
        return None if ns is None else round((ns - start_ns) / 1e9, 9)

    end_ns = exchange.done_ns
    if reply.end_offset is not None and len(body.times_ns):
        end_ns = body.time_ns(reply.end_offset)
    return RequestRecord(
        id=planned.id,
        status=status,
        phase=planned.phase,  # type: ignore[arg-type]
        expected_failure=planned.expect_failure,
        due_s=at(exchange.due_ns) or 0.0,
        sent_s=at(exchange.sent_ns),
        connect_s=exchange.connect_ns / 1e9 if exchange.connect_ns is not None else None,
        headers_s=at(exchange.head_ns),
        chunk_s=tuple((ns - start_ns) / 1e9 for ns in times),
        chunk_tok=chunk_tok,
        answer_chunk=answer,
        done_s=at(end_ns),
        isl_asked=planned.isl,
        isl=reply.prompt_tok if prompt_known else planned.isl,
        isl_source="usage" if prompt_known else "asked" if planned.isl is not None else "none",
        osl_asked=planned.osl,
        osl=osl,
        osl_source=osl_source,  # type: ignore[arg-type]
        cached_tok=reply.cached_tok,
        finish_reason=_scrub(reply.finish_reason, secret),
        http_status=exchange.http_status,
        error=_scrub(error, secret),
        findings=tuple(sorted(reply.findings)),
        server=_server_side(exchange, reply),
        user=planned.user,
        text=_scrub("".join(reply.texts), secret) if keep_text else None,
    )


def _decoded(exchange: Exchange, body: Body, reply: Reply) -> Body:
    encoding = exchange.headers.get("content-encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        return body
    reply.findings.add("compressed")
    try:
        return inflate(body, encoding)
    except ValueError as error:
        reply.malformed = str(error)
        return body


def _judge(exchange: Exchange, reply: Reply, planned: Planned, osl: int | None) -> tuple[str, str | None]:
    """The row's status, and a sentence for anything that is not ok."""
    code = exchange.http_status
    evidence = reply.terminal or reply.finish_reason is not None
    if code is not None and code != 200:
        return _judge_http(code, exchange)
    if reply.error is not None:
        limited = reply.error_code == 429 or reply.error in _RATE_LIMITS
        return ("rate_limited" if limited else "stream_error"), reply.error
    if exchange.failure is not None:
        if not (evidence and exchange.failure in {"no_http_end", "reset", "timeout"}):
            failure = "truncated" if exchange.failure == "no_http_end" else exchange.failure
            return failure, _what_failed(exchange)
        reply.findings.add("no_http_end")
    if reply.foreign is not None:
        return "not_an_llm", reply.foreign
    if reply.malformed is not None:
        return "bad_stream", reply.malformed
    kind = exchange.headers.get("content-type", "").lower()
    if not evidence and not reply.offsets and exchange.body and "event-stream" not in kind:
        return "not_an_llm", f"no event in an answer of type '{kind or 'none'}'"
    if not evidence:
        return "truncated", f"ended after {len(reply.offsets)} chunks without a finish reason or a terminal event"
    if not reply.offsets:
        return "empty", "complete, but no token carried text"
    return _judge_lengths(reply, planned, osl or 0)


def _judge_http(code: int, exchange: Exchange) -> tuple[str, str]:
    if 300 <= code < 400:
        return "redirected", f"HTTP {code} to {exchange.headers.get('location', 'nowhere')}"
    said = _error_text(exchange)
    status = _STATUS_OF_HTTP.get(code, "http_error" if code >= 400 else "not_an_llm")
    if retry := exchange.headers.get("retry-after"):
        said = f"{said}; Retry-After: {retry[:40]}"
    return status, f"HTTP {code}: {said}"


def _judge_lengths(reply: Reply, planned: Planned, wrote: int) -> tuple[str, str | None]:
    """Whether as much was read as was sent, and as much written as was asked."""
    if planned.isl is not None and reply.prompt_tok is not None and reply.prompt_tok > 0:
        allowed = max(4.0, planned.isl * planned.isl_tolerance_frac)
        if reply.prompt_tok < planned.isl - allowed:
            about = "" if planned.isl_tolerance_frac < 0.1 else "about "
            return "prompt_cut", f"the server read {reply.prompt_tok:,} prompt tokens of {about}{planned.isl:,} sent"
    if planned.osl is not None and wrote < planned.osl:
        if planned.eos_off and "no_usage" not in reply.findings:
            return "short", f"{wrote:,} tokens of {planned.osl:,} asked, though the end-of-text token was switched off"
        if planned.phase == "load":
            reply.findings.add("fewer_tokens_than_asked")
    if planned.osl is not None and len(reply.offsets) > planned.osl + 1:
        reply.findings.add("more_tokens_than_asked")
    return "ok", None


def _what_failed(exchange: Exchange) -> str:
    if exchange.failure == "reset" and exchange.reused and exchange.http_status is None:
        return f"{exchange.error} (on a connection kept alive from an earlier request)"
    return exchange.error


def _arrivals(body: Body, reply: Reply) -> tuple[list[int], list[int] | None, int | None]:
    """Arrival times, tokens in each arrival where known, and the index of the first visible one.

    Chunks that came in one read came at one time as far as anybody can tell: they are one arrival of several tokens.
    """
    counted = _running_counts(reply)
    ends = body.ends.tolist()
    times: list[int] = []
    sizes: list[int] = []
    units: list[int] = []
    last, shared, answer, reads = -1, 0, None, len(ends)
    for index, offset in enumerate(reply.offsets):
        read = last + 1  # mostly the next read brought the next chunk
        if not (read < reads and ends[read] >= offset and (last < 0 or ends[last] < offset)):
            read = bisect_left(ends, offset, max(last, 0))
        unit = counted[index] if counted else 1
        if read == last:
            shared += 1
            sizes[-1] += reply.sizes[index]
            units[-1] += unit
        else:
            times.append(body.times_ns[min(read, len(body.times_ns) - 1)])
            sizes.append(reply.sizes[index])
            units.append(unit)
            last = read
        if index == reply.answer_chunk and reply.reasoning_chunks:
            answer = len(times) - 1
    if shared and shared * 10 >= len(reply.offsets):
        reply.findings.add("bursty")
    if shared:
        reply.server["shared_reads"] = shared
        if (first := bisect_right(reply.offsets, ends[min(bisect_left(ends, reply.offsets[0]), len(ends) - 1)])) > 1:
            reply.server["first_read_chunks"] = first
    reply.sizes = sizes
    if counted:
        return times, units, answer
    return times, (units if shared else None), answer


def _running_counts(reply: Reply) -> list[int] | None:
    """Tokens of each chunk from the server's running count, where every chunk has one and it only grows."""
    if not reply.counted or any(c is None for c in reply.counted):
        return None
    running = [c for c in reply.counted if c is not None]
    steps = [b - a for a, b in zip([0, *running], running, strict=False)]
    return steps if all(s >= 1 for s in steps) else None


def _output_tokens(
    reply: Reply, units: list[int] | None, planned: Planned
) -> tuple[int | None, str, tuple[int, ...] | None]:
    """Output tokens, whose count that is, and how many came at each arrival (None means one each)."""
    chunks = len(reply.offsets)
    arrivals = len(reply.sizes)
    told = reply.output_tok
    if told is None and "decode_tok" in reply.server:
        told = int(reply.server["decode_tok"])
    if told is None:
        if chunks:
            reply.findings.add("no_usage")
        return (chunks or None), ("chunks" if chunks else "none"), tuple(units) if units else None
    asked = planned.osl if planned.osl is not None else told
    if told < chunks or (told > asked + 1 and chunks <= asked):
        reply.findings.add("usage_mismatch")
        return chunks, "chunks", tuple(units) if units else None
    if arrivals == 0:
        return told, "usage", None
    carried = sum(units) if units else chunks
    if told == carried:
        return told, "usage", tuple(units) if units else None
    if told == carried + 1 and reply.finish_reason == "stop":  # the end-of-text token is counted and carries no text
        return told, "usage", tuple(units) if units else (1,) * arrivals
    if told > chunks:
        reply.findings.add("several_tokens_a_chunk")
    return told, "usage", spread_tokens(told, reply.sizes)


def spread_tokens(total: int, sizes: list[int]) -> tuple[int, ...]:
    """`total` tokens over arrivals in proportion to their bytes of text, at least one each; largest remainders first.

    >>> spread_tokens(20, [16, 16, 16, 16, 16]), spread_tokens(5, [4, 1, 1])
    ((4, 4, 4, 4, 4), (3, 1, 1))
    """
    assert total >= len(sizes), f"{total} tokens cannot fill {len(sizes)} arrivals"
    extra, weight = total - len(sizes), sum(sizes)
    out = [1 + extra * size // weight for size in sizes]
    order = sorted(range(len(sizes)), key=lambda i: (-(extra * sizes[i] % weight), i))
    for i in order[: total - sum(out)]:
        out[i] += 1
    return tuple(out)


def _server_side(exchange: Exchange, reply: Reply) -> dict[str, float] | None:
    """The server's own times: from its answer, and from the headers that some send."""
    out = dict(reply.server)
    for header, name, per_s in _TIMING_HEADERS:
        try:
            out[name] = float(exchange.headers[header]) / per_s
        except (KeyError, ValueError):
            continue
    return out or None


_TIMING_HEADERS = (
    ("fireworks-server-time-to-first-token", "ttft_s", 1),
    ("fireworks-prefill-queue-duration", "queue_s", 1),
    ("fireworks-prefill-duration", "prefill_s", 1),
    ("fireworks-generation-queue-duration", "decode_queue_s", 1),
    ("fireworks-cached-prompt-tokens", "cached_tok", 1),
    ("fireworks-prompt-tokens", "prompt_tok", 1),
    ("x-envoy-upstream-service-time", "upstream_s", 1000),
    ("openai-processing-ms", "processing_s", 1000),
    ("retry-after", "retry_after_s", 1),
)


def _error_text(exchange: Exchange) -> str:
    """What the server said went wrong, in at most 300 characters."""
    body = bytes(exchange.body[:65536])
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace").strip()
        return "an HTML page" if text[:1] == "<" else text[:300] or "no text"
    if isinstance(value, dict):
        inner = value.get("error", value.get("detail", value.get("message", value)))
        if isinstance(inner, dict):
            inner = inner.get("message", inner)
        return str(inner)[:300]
    return str(value)[:300]


def _scrub(text: str | None, secret: str) -> str | None:
    """`text` without the API key, should the server have quoted it."""
    return text.replace(secret, "***") if text and secret else text
