"""Statuses, arrivals and counts of single answers, made by hand."""

import json
from array import array

import pytest

from servefit.measure.rows import Planned, make_row, spread_tokens
from servefit.records import RequestRecord, row_to_json
from servefit.wire.client import Exchange
from servefit.wire.dialects import DIALECTS

CHAT = DIALECTS["openai-chat"]


def token(text: str = "a", **more: object) -> bytes:
    """One event with a text."""
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}], **more}).encode() + b"\n\n"


def end(tokens: int | None = None, prompt: int = 10, reason: str = "length", **more: object) -> bytes:
    """The finish, with usage where `tokens` is given."""
    value: dict[str, object] = {"choices": [{"delta": {}, "finish_reason": reason}], **more}
    if tokens is not None:
        value["usage"] = {"prompt_tokens": prompt, "completion_tokens": tokens}
    return b"data: " + json.dumps(value).encode() + b"\n\ndata: [DONE]\n\n"


def row(*reads: bytes, secret: str | None = None, **plan: object) -> RequestRecord:
    """The row of an answer whose reads came 10 ms apart, sent at 0; with a `secret` its text is kept."""
    exchange = Exchange(0, b"")
    exchange.http_status, exchange.complete, exchange.sent_ns = 200, True, 0
    exchange.headers = {"content-type": "text/event-stream"}
    times = array("q")
    for number, data in enumerate(reads, 1):
        exchange.body += data
        exchange.ends.append(len(exchange.body))
        times.append(number * 10_000_000)
    exchange.times_ns = times
    exchange.done_ns = times[-1]
    known = {"secret": secret, "keep_text": True} if secret else {}
    return make_row(exchange, Planned(id="0", **plan), CHAT, start_ns=0, **known)  # type: ignore[arg-type]


def test_the_end_of_text_token_is_no_gap():
    """A count of one more than the chunks, with finish "stop", is the token that carries no text."""
    got = row(token(), token(), token(), end(4, reason="stop"))
    assert (got.osl, got.chunk_tok, got.tpot_s) == (4, (1, 1, 1), pytest.approx(0.01))


def test_tokens_that_share_a_read_share_a_time():
    """Two events in one read are one arrival of two tokens; TPOT is that of the tokens."""
    got = row(token(), token() * 2, token() * 2, end(5))
    assert got.chunk_tok == (1, 2, 2)
    assert got.itl_s == pytest.approx((0.005,) * 4)
    assert got.tpot_s == pytest.approx(0.005)
    assert "bursty" in got.findings


def test_running_usage_says_how_many_each_chunk_carries():
    """Where the server counts along, nothing is guessed."""
    counted = [token("ab", usage={"prompt_tokens": 10, "completion_tokens": n}) for n in (1, 4, 6)]
    assert row(*counted, end(6)).chunk_tok == (1, 3, 2)


def test_a_prompt_that_was_cut_is_no_success():
    """Fewer prompt tokens read than sent: how far depends on how well the sent number is known."""
    assert row(token(), end(1, prompt=90), isl=100, isl_tolerance_frac=0.02).status == "prompt_cut"
    assert row(token(), end(1, prompt=90), isl=100, isl_tolerance_frac=0.45).status == "ok"
    assert row(token(), end(1, prompt=2050), isl=8000, isl_tolerance_frac=0.45).status == "prompt_cut"


def test_short_answers():
    """Below the asked number is a failure only where the server was told not to stop, and took it."""
    assert row(token(), end(1), osl=5, eos_off=True).status == "short"
    free = row(token(), end(1, reason="stop"), osl=5)
    assert (free.status, free.findings) == ("ok", ("fewer_tokens_than_asked",))


def test_the_servers_own_times_stand_beside_ours():
    """llama.cpp's timings: prefill, decode, cached tokens."""
    timings = {"prompt_n": 7, "prompt_ms": 120.0, "predicted_n": 2, "predicted_ms": 20.0, "cache_n": 3}
    got = row(token(), token(), end(2, timings=timings))
    assert got.server == {"prefill_s": 0.12, "decode_s": 0.02, "prefill_tok": 7, "decode_tok": 2, "cached_tok": 3}
    assert got.cached_tok == 3


def test_control_characters_do_not_reach_the_row_raw():
    """What the model wrote is kept only on request."""
    assert row(token("\x1b[31m"), end(1)).text is None


def test_no_echo_brings_the_key_into_a_row():
    """A server that writes the key into its answer, its finish or a count: the row holds it nowhere."""
    key = "sk-very-secret-0123456789"
    got = row(
        token(f"your key is {key}"),
        token("b", model=key, id=key),
        end(2, reason=key, system_fingerprint=key),
        secret=key,
    )
    assert got.text == "your key is ***b"
    assert got.finish_reason == "***"
    assert key not in row_to_json(got)


@pytest.mark.parametrize(("total", "sizes"), [(7, [1, 1, 1]), (3, [9, 1, 1]), (100, [1, 50, 3])])
def test_spread_keeps_the_sum(total: int, sizes: list[int]):
    """Every token is somewhere, and every arrival has one at least."""
    out = spread_tokens(total, sizes)
    assert sum(out) == total
    assert min(out) >= 1


def test_an_error_page_nested_without_end():
    """A server's error of brackets alone is text like any other."""
    exchange = Exchange(0, b"")
    exchange.http_status, exchange.complete, exchange.sent_ns, exchange.done_ns = 500, True, 0, 1
    exchange.body += b"[" * 60_000
    got = make_row(exchange, Planned(id="0"), CHAT, start_ns=0)
    assert got.status == "http_error"
    assert got.error is not None
    assert got.error.endswith("[[[[")
