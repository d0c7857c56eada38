"""The fast reading of alike events says exactly what parsing each of them says."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.wire import dialects
from servefit.wire.dialects import DIALECTS
from servefit.wire.reply import Reply


def stream(texts: list[str], key: str, *, raw: bool) -> bytes:
    """An event stream of these texts, as servers write JSON: with escapes or without."""
    out = b""
    for text in texts:
        inside = {"text": text} if key == "text" else {"delta": {key: text}}
        value = {"id": "c", "choices": [{"index": 0, **inside, "finish_reason": None}]}
        out += b"data: " + json.dumps(value, ensure_ascii=not raw).encode("utf-8", "surrogatepass") + b"\n\n"
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    return out + b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n"


def read(data: bytes) -> Reply:
    """What the dialect reads."""
    reply = Reply(keep_text=True)
    DIALECTS["openai-chat"].read(data, reply)
    return reply


class Never:
    """No likeness at all: every event is parsed."""

    def __init__(self, data: bytes, reply: Reply) -> None:
        """Keep nothing."""

    def learn(self, payload: bytes) -> None:
        """Learn nothing."""

    def skip(self, start: int) -> int:
        """Skip nothing."""
        return start


@given(
    st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=6), max_size=12),
    st.sampled_from(["content", "text", "reasoning_content", "reasoning"]),
    st.booleans(),
)
def test_fast_and_slow_agree(texts: list[str], key: str, raw: bool):
    """Quotes, backslashes, escapes, control characters, empty texts: the two readings are equal."""
    data = stream(texts, key, raw=raw)
    fast = read(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialects, "Likeness", Never)
        slow = read(data)
    assert fast == slow
    assert "".join(slow.texts) == "".join(texts)


def test_a_later_error_or_change_is_not_passed_over():
    """An error, a finish reason or a usage among alike events is read."""
    token = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    other = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}\n\n'
    reply = read(token * 5 + other + token * 2 + b'data: {"error":{"message":"boom"}}\n\n' + token)
    assert (len(reply.offsets), reply.finish_reason, reply.error) == (8, "length", "boom")


@pytest.mark.parametrize("size", [1, 700, 65_400, 70_000])
def test_long_answers_and_long_events(size: int):
    """Answers that are compared in several goes, and events longer than one, are read as they are."""
    texts = [f"{n:05d}" + "x" * size for n in range(140_000 // (size + 90) + 3)]
    data = stream(texts, "content", raw=True)
    fast = read(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialects, "Likeness", Never)
        assert fast == read(data)
    assert fast.texts == texts
