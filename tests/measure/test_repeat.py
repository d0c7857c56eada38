"""Repeats are whole runs of the same schedule; their spread is what one run cannot say of itself."""

from dataclasses import replace
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.measure.probe import find_endpoint
from servefit.measure.repeat import between, repeat
from servefit.measure.run import Options
from servefit.traps.server import TrapServer, in_thread
from servefit.workload.workload import Lengths, Workload

LOAD = Workload(n=4, concurrency=2, isl=Lengths(mean=64), osl=Lengths(mean=20))


@pytest.fixture(scope="module")
def server():
    """The trap server, eight times as fast as its scripts."""
    with in_thread(speed=8) as running:
        yield running


def test_repeats_ask_the_same_with_other_words(server: TrapServer, tmp_path: Path):
    """Same schedule, one look at the server, prompts that no repeat shares with another."""
    before = len(server.seen.requests)
    runs = list(repeat(find_endpoint(f"{server.url}/plain"), LOAD, Options(out=tmp_path), 2))
    assert [path for path, _ in runs] == [tmp_path / "1", tmp_path / "2"]
    assert len({run.header.schedule_sha256 for _, run in runs}) == 1
    assert [len(run.load_rows) for _, run in runs] == [4, 4]
    bodies = [body for _, _, body in server.seen.requests[before:] if isinstance(body, dict) and "messages" in body]
    prompts = [body["messages"][-1]["content"] for body in bodies]
    assert len(set(prompts)) == len(prompts) == 3 + 4 + 4


def test_spread_between_repeats():
    """Median, least, most and their distance; nothing where nothing was observed."""
    found = between([0.10, 0.11, 0.12, None])
    assert found is not None
    assert (found.n, found.spread_frac) == (3, pytest.approx(0.181818))
    assert between([None]) is None


def test_a_repeat_is_a_whole_run(server: TrapServer, tmp_path: Path):
    """Going on with a run and repeating it do not go together."""
    with pytest.raises(ServefitError, match="--resume"):
        list(repeat(find_endpoint(f"{server.url}/plain"), LOAD, Options(out=tmp_path, resume=True), 2))


def test_turns_are_sent_as_a_conversation(server: TrapServer, tmp_path: Path):
    """A later turn carries the earlier messages, and goes out after its session's answer came."""
    before = len(server.seen.requests)
    load = replace(LOAD, n=6, turns=3, isl=Lengths(mean=40), osl=Lengths(mean=20))
    options = Options(out=tmp_path, probe=False)
    [(_, run)] = repeat(find_endpoint(f"{server.url}/plain", model="m"), load, options, 1)
    sent = [body["messages"] for _, _, body in server.seen.requests[before:]]
    assert sorted(len(messages) for messages in sent) == [1, 1, 3, 3, 5, 5]
    rows = {int(row.id): row for row in run.load_rows}
    for earlier, later in ((0, 1), (1, 2), (3, 4), (4, 5)):
        assert (rows[later].sent_s or 0) >= (rows[earlier].done_s or 9e9)
