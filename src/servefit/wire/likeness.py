"""Reading a stream fast without reading it wrongly: events that differ from a parsed one in their text alone.

Most servers send hundreds of events that are equal but for the text of one token. Once one was parsed as JSON, an event with
the same bytes before and after a string that holds no quote and no backslash is the same JSON with another text. Anything
else is parsed as JSON again.
"""

import re
from itertools import takewhile

from servefit.wire.reply import Reply

_KEYS = ((b'"content":', False), (b'"text":', False), (b'"reasoning_content":', True), (b'"reasoning":', True))
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]+')
_AT_ONCE_BYTES = 1 << 16
"""Compared in one go: enough for most answers, and little to have copied in vain where events are not alike."""


class Likeness:
    """What the last parsed event looked like, and the reading of those that follow it."""

    def __init__(self, data: bytes, reply: Reply) -> None:
        self._data = data
        self._reply = reply
        self._before = self._after = b""
        """The bytes around the text in an event's JSON; none where nothing was learnt."""
        self._reasoning = False
        self._learnt = 0

    def learn(self, payload: bytes) -> None:
        """Take the shape of an event that was one plain chunk of text."""
        if self._learnt >= 8:  # every event is different here
            return
        self._learnt += 1
        self._before = b""
        found = [(payload.find(key), key, reasoning) for key, reasoning in _KEYS if payload.count(key) == 1]
        texts = [(at + len(key), reasoning) for at, key, reasoning in found if _is_text(payload, at + len(key))]
        if len(texts) != 1 or self._reply.counted[-1] is not None:
            return
        start, self._reasoning = texts[0]
        start = payload.index(b'"', start) + 1
        end = payload.index(b'"', start)
        if b"\\" not in payload[start:end]:
            self._before, self._after = payload[:start], payload[end:]

    def skip(self, start: int) -> int:
        """Read the events from `start` that are alike; where the first that is not begins."""
        if not self._before:
            return start
        data, reply = self._data, self._reply
        head = (b"data: " if data.startswith(b"data: ", start) else b"data:") + self._before
        tail = self._after + b"\n\n"
        count = len(reply.offsets)
        while data.startswith(head, start):
            begin = start + len(head)
            texts = data[begin : begin + _AT_ONCE_BYTES].split(tail + head)
            last, ended, _ = texts.pop().partition(tail)
            if ended:
                texts.append(last)
            if not (all(texts) and _PLAIN.fullmatch(b"".join(texts))):
                texts = list(takewhile(_PLAIN.fullmatch, texts))
            if not texts:
                break
            start = self._take(texts, start, len(head) + len(tail))
        new = len(reply.offsets) - count
        reply.counted.extend([None] * new)
        if self._reasoning:
            reply.reasoning_chunks += new
        elif new and reply.answer_chunk is None:
            reply.answer_chunk = count
        return start

    def _take(self, texts: list[bytes], start: int, around: int) -> int:
        """Note the texts of events that stand one after the other from `start`; where the last ends."""
        reply = self._reply
        sizes = list(map(len, texts))
        for size in sizes:
            start += around + size
            reply.offsets.append(start - 1)
        reply.sizes += sizes
        if reply.keep_text:
            reply.texts += (text.decode("utf-8", "replace") for text in texts)
        return start


def _is_text(payload: bytes, at: int) -> bool:
    """Whether a JSON string that is not empty stands at `at`."""
    rest = payload[at : at + 8].lstrip()
    return rest[:1] == b'"' and rest[1:2] != b'"'
