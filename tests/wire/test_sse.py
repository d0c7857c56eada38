"""Event streams as the standard has them, however they are cut into reads."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from servefit.wire.sse import Body, Noise, events, inflate, lines

STREAM = (
    b'\xef\xbb\xbf: ping\r\n\r\nid: 1\r\nevent: x\r\ndata: {"a":1}\r\n\r\ndata: one\ndata: two\n\n'
    b"data:no-space\r\rretry: 5\n\ndata: torn"
)


def test_events_with_every_line_end_comment_and_field():
    """LF, CRLF and CR end lines; comments, ids, a BOM and unknown fields are no events; data lines are joined."""
    noise = Noise()
    found = [(name, data) for name, data, _ in events(STREAM, noise)]
    assert found == [("x", b'{"a":1}'), ("", b"one\ntwo"), ("", b"no-space"), ("", b"torn")]
    assert (noise.comments, noise.crlf, noise.bom, noise.torn) == (1, True, True, True)


def test_an_event_is_readable_when_its_line_has_ended():
    """The offset of an event lies just past the first byte of its last line's end, not at the blank line."""
    noise = Noise()
    stream = b"data: a\n\ndata: b\r\n\r\n"
    assert [at for _, _, at in events(stream, noise)] == [8, 17]


@given(st.lists(st.integers(0, 200), max_size=20))
def test_the_time_of_an_offset_is_that_of_the_read_that_brought_it(sizes: list[int]):
    """However the bytes are cut, the byte before an offset has the time of its own read."""
    ends = array("q")
    total = 0
    for size in sizes:
        total += size + 1
        ends.append(total)
    if not ends:
        return
    body = Body(data=b"x" * total, ends=ends, times_ns=array("q", range(len(ends))))
    start = 0
    for read, end in enumerate(ends):
        assert body.time_ns(start + 1) == body.time_ns(end) == read
        start = end


def test_gzip_is_undone_read_by_read():
    """What a compressed read brought is known once it is unpacked, and has that read's time."""
    import zlib

    packer = zlib.compressobj(wbits=31)
    first = packer.compress(b"data: a\n\n") + packer.flush(zlib.Z_SYNC_FLUSH)
    second = packer.compress(b"data: b\n\n") + packer.flush()
    ends = array("q", [len(first), len(first + second)])
    body = inflate(Body(data=first + second, ends=ends, times_ns=array("q", [10, 20])), "gzip")
    assert [body.time_ns(at) for _, _, at in events(body.data, Noise())] == [10, 20]


def test_lines_without_end():
    """A last line without an end is given, and said to have none."""
    assert list(lines(b"a\nb")) == [(b"a", 2, True), (b"b", 3, False)]
