"""Reading: what has no end or a number of thousands of digits is a sentence, not a flood of memory or a crash."""

import os
import subprocess
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.files import check_writable, read_bytes, read_json, read_lines, read_text, read_toml, write_text


@pytest.mark.skipif(os.name == "nt", reason="no /dev/zero there")
def test_a_file_without_end():
    """A device has no size and no end: no more than the limit is read."""
    with pytest.raises(ServefitError, match="does not end within 1,000 bytes"):
        read_bytes(Path("/dev/zero"), max_bytes=1000)


def test_a_file_of_the_limit(tmp_path):
    """As many bytes as the limit are read whole."""
    (tmp_path / "a").write_bytes(b"x" * 1000)
    assert len(read_bytes(tmp_path / "a", max_bytes=1000)) == 1000


@pytest.mark.parametrize(("read", "text"), [(read_json, "9" * 6000), (read_toml, "n = " + "9" * 6000)])
def test_a_number_of_thousands_of_digits(tmp_path, read, text):
    """Python refuses to make an integer of it, with a ValueError."""
    (tmp_path / "a").write_text(text, encoding="utf-8")
    with pytest.raises(ServefitError, match="digits"):
        read(tmp_path / "a")


@pytest.mark.parametrize("name", ["", "file/under", "b" * 300 + "/under"])
def test_check_writable(tmp_path, name):
    """A folder, and what would lie under a file or under a name that cannot be, are refused before the work."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    check_writable(tmp_path / "new" / "plan.json")
    with pytest.raises(ServefitError, match=r"folder|cannot be written"):
        check_writable(tmp_path / name)


@pytest.mark.skipif(os.name == "nt", reason="no named pipes there")
def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    """A pipe gets the bytes and is still a pipe after: the same holds for /dev/null, which root could replace."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_writable(pipe)
        write_text(pipe, "plan")
        assert os.read(reader, 100) == b"plan"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_stays_a_link(tmp_path):
    """What the link names is written, there or not yet."""
    link = tmp_path / "plan.json"
    link.symlink_to(tmp_path / "versions" / "one.json")
    write_text(link, "1")
    write_text(link, "2")
    assert link.is_symlink() and (tmp_path / "versions" / "one.json").read_text() == "2"


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_that_name_each_other_are_one_sentence(tmp_path):
    """Neither written to nor replaced."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.symlink_to(two)
    two.symlink_to(one)
    for write in (check_writable, lambda path: write_text(path, "plan")):
        with pytest.raises(ServefitError, match="one cannot be written: Too many levels of symbolic links"):
            write(one)
    assert one.is_symlink() and two.is_symlink() and len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.name == "nt", reason="no named pipes there")
def test_a_pipe_that_somebody_reads_to_its_end_gets_everything(tmp_path):
    """`cat pipe` ends with its first writer: asking whether it may be written is no writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        check_writable(pipe)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(0.5)
        write_text(pipe, "plan")
        assert reader.communicate(timeout=60)[0] == b"plan"


@pytest.mark.skipif(os.name == "nt", reason="no such modes there")
def test_a_private_file_stays_private(tmp_path):
    """What only its owner may read is not opened to others by being written again; a new file has what the umask leaves."""
    path = tmp_path / "plan.json"
    before = os.umask(0o077)
    try:
        write_text(path, "1")
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    path.chmod(0o640)
    write_text(path, "2")
    assert path.stat().st_mode & 0o777 == 0o640 and path.read_text() == "2"


def test_lines_are_those_of_the_whole_text(tmp_path):
    """One at a time, with whatever ends a line and a BOM: the lines of the text; one without end is refused."""
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffone\r\n\n\ufefftwo\rthree\u2028four\n\nfive".encode())
    assert list(read_lines(path)) == read_text(path).splitlines()
    with pytest.raises(ServefitError, match="a line of more than 4 bytes"):
        list(read_lines(path, max_line_bytes=4))
    with pytest.raises(ServefitError, match="does not exist"):
        next(read_lines(tmp_path / "none"))
