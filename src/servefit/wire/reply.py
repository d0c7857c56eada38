"""What an answer said: texts with their places, counts, how it ended. Filled by a dialect, judged by `rows`."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Reply:
    """An answer as read; mutable, since a dialect fills it event by event."""

    offsets: list[int] = field(default_factory=list)
    """Where in the body each chunk that carries text could be read."""
    sizes: list[int] = field(default_factory=list)
    """UTF-8 bytes of text in each of them: the weights where tokens have to be spread."""
    counted: list[int | None] = field(default_factory=list)
    """The server's running count of output tokens at each of them, where it gives one."""
    answer_chunk: int | None = None
    reasoning_chunks: int = 0
    end_offset: int | None = None
    """Where the terminal event could be read."""
    finish_reason: str | None = None
    terminal: bool = False
    error: str | None = None
    error_code: int | None = None
    malformed: str | None = None
    foreign: str | None = None
    """Why this is no completion at all."""
    whole: bool = False
    """One JSON answer, not a stream."""
    prompt_tok: int | None = None
    output_tok: int | None = None
    cached_tok: int | None = None
    server: dict[str, float] = field(default_factory=dict)
    findings: set[str] = field(default_factory=set)
    keep_text: bool = False
    texts: list[str] = field(default_factory=list)

    def chunk(self, offset: int, text: str, *, reasoning: bool = False, running: int | None = None) -> None:
        """Note a piece of text; an empty one is no token."""
        if not text:
            return
        if reasoning:
            self.reasoning_chunks += 1
        elif self.answer_chunk is None:
            self.answer_chunk = len(self.offsets)
        self.offsets.append(offset)
        self.sizes.append(len(text.encode("utf-8", "surrogatepass")))
        self.counted.append(running)
        if self.keep_text:
            self.texts.append(text)

    def fail(self, value: Any) -> None:
        """Note an error object, whatever its shape."""
        if isinstance(value, dict):
            inner = value.get("error", value)
            if isinstance(inner, dict):
                code = inner.get("code")
                self.error_code = code if isinstance(code, int) else None
                value = inner.get("message") or inner.get("type") or inner
            else:
                value = inner
        self.error = str(value)[:500] or "an error without a message"


def count(value: Any) -> int | None:
    """A token count of the server; None where it is no sensible number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def seconds(value: Any, per_s: float) -> float | None:
    """A duration of the server in seconds; None where it is no sensible number."""
    return value / per_s if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None
