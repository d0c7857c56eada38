"""From the bytes of an answer to its events, each with the place in the buffer where it became readable.

Server-sent events as the standard has them: lines end with LF, CRLF or CR; a BOM may stand first; comments start no clock;
several `data:` lines of one event are joined. Source: WHATWG HTML, 9.2.6 "Interpreting an event stream".
"""

import re
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True, kw_only=True)
class Body:
    """An answer's bytes, and which read brought which part of them."""

    data: bytes
    ends: "array[int]"
    times_ns: "array[int]"

    def time_ns(self, offset: int) -> int:
        """When the byte before `offset` arrived."""
        return self.times_ns[min(bisect_left(self.ends, offset), len(self.times_ns) - 1)]


@dataclass(slots=True, kw_only=True)
class Noise:
    """What an event stream held besides events."""

    comments: int = 0
    crlf: bool = False
    bom: bool = False
    torn: bool = False
    """The last event had no end: not even a line end."""


def inflate(body: Body, encoding: str) -> Body:
    """The body with its content coding (gzip or deflate) undone, read by read. Raises ValueError."""
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise ValueError(f"content coding '{encoding}' is not understood")
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32 if "gzip" in encoding else zlib.MAX_WBITS)
    out, before = bytearray(), 0
    ends: array[int] = array("q")
    try:
        for end in body.ends:
            out += inflater.decompress(body.data[before:end])
            ends.append(len(out))
            before = end
    except zlib.error as error:
        raise ValueError(f"the {encoding} coding is broken: {error}") from None
    return Body(data=bytes(out), ends=ends, times_ns=body.times_ns)


def lines(data: bytes, skip: Callable[[int], int] | None = None) -> Iterator[tuple[bytes, int, bool]]:
    """Each line, the offset just past the first byte of its end, and whether it had an end."""
    view = data
    start = len(_BOM) if view.startswith(_BOM) else 0
    if b"\r" not in view:
        find = view.find
        while (end := find(b"\n", start)) >= 0:
            yield view[start:end], end + 1, True
            start = skip(end + 1) if skip is not None and end == start else end + 1
    else:
        for match in _LINE_END.finditer(view, start):
            yield view[start : match.start()], match.start() + 1, True
            start = match.end()
    if start < len(view):
        yield view[start:], len(view), False


def events(data: bytes, noise: Noise, skip: Callable[[int], int] | None = None) -> Iterator[tuple[str, bytes, int]]:
    """Each event of the stream as (name, data, offset at which it could be read); `noise` is filled on the way.

    Where lines end with LF alone, `skip` is asked before each event and may read some itself: it returns where to go on.
    """
    noise.bom = data.startswith(_BOM)
    noise.crlf = b"\r\n" in data
    name, at = "", 0
    parts: list[bytes] = []
    for line, offset, ended in lines(data, skip):
        if not line:
            if parts:
                yield name, b"\n".join(parts), at
            name, parts = "", []
            continue
        if not ended:
            noise.torn = True
        if line.startswith(b"data:"):
            parts.append(line[6:] if line[5:6] == b" " else line[5:])
            at = offset
        elif line.startswith(b":"):
            noise.comments += 1
        elif line.startswith(b"event:"):
            name = line[6:].strip().decode("utf-8", "replace")
        # id: and retry: mean nothing here; an unknown field is passed over, as the standard says
    if parts:
        yield name, b"\n".join(parts), at
