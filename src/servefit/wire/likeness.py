"""Reading a stream fast without reading it wrongly: events that differ from a parsed one in their text alone.

Most servers send hundreds of events that are equal but for the text of one token. Once one was parsed as JSON, an event with
the same bytes before and after a string that holds no quote and no backslash is the same JSON with another text. Anything
else is parsed as JSON again.
"""

import re

from servefit.wire.reply import Reply

_KEYS = ((b'"content":', False), (b'"text":', False), (b'"reasoning_content":', True), (b'"reasoning":', True))


class Likeness:
    """What the last parsed event looked like, and the reading of those that follow it."""

    def __init__(self, data: bytes, reply: Reply) -> None:
        self._data = data
        self._reply = reply
        self._pattern: re.Pattern[bytes] | None = None
        self._reasoning = False
        self._learnt = 0

    def learn(self, payload: bytes) -> None:
        """Take the shape of an event that was one plain chunk of text."""
        if self._learnt >= 8:  # every event is different here: no use in compiling
            return
        self._learnt += 1
        self._pattern = None
        found = [(payload.find(key), key, reasoning) for key, reasoning in _KEYS if payload.count(key) == 1]
        texts = [(at + len(key), reasoning) for at, key, reasoning in found if _is_text(payload, at + len(key))]
        if len(texts) != 1 or self._reply.counted[-1] is not None:
            return
        start, self._reasoning = texts[0]
        start = payload.index(b'"', start) + 1
        end = payload.index(b'"', start)
        if b"\\" in payload[start:end]:
            return
        before, after = re.escape(payload[:start]), re.escape(payload[end:])
        self._pattern = re.compile(b"data: ?" + before + rb'([^"\\\x00-\x1f]++)' + after + b"\n\n")

    def skip(self, start: int) -> int:
        """Read the events from `start` that are alike; where the first that is not begins."""
        if self._pattern is None:
            return start
        match, data, reply = self._pattern.match, self._data, self._reply
        offsets, sizes = reply.offsets, reply.sizes
        before = len(offsets)
        while found := match(data, start):
            begin, end = found.span(1)
            start = found.end()
            offsets.append(start - 1)
            sizes.append(end - begin)
            if reply.keep_text:
                reply.texts.append(data[begin:end].decode("utf-8", "replace"))
        new = len(offsets) - before
        reply.counted.extend([None] * new)
        if self._reasoning:
            reply.reasoning_chunks += new
        elif new and reply.answer_chunk is None:
            reply.answer_chunk = before
        return start


def _is_text(payload: bytes, at: int) -> bool:
    """Whether a JSON string that is not empty stands at `at`."""
    rest = payload[at : at + 8].lstrip()
    return rest[:1] == b'"' and rest[1:2] != b'"'
