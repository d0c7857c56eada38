"""Whose CPU time it was: ours, the server's, everybody else's."""

import os
import socket
import subprocess
import sys

import pytest

from servefit.host import others
from servefit.host.others import Reading, Usage, between, server_pids
from servefit.measure.health import Health, _about_machine

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


def reading(at_s: float, busy_s: float, ours_s: float, server_s: float | None = None) -> Reading:
    """A reading with nothing stolen."""
    return Reading(at_s=at_s, busy_s=busy_s, steal_s=0.0, ours_s=ours_s, server_s=server_s, waited_s=0.0)


def test_others_are_what_is_left():
    """Of 15 busy seconds in 10, 1 was ours and 8 the server's: others used 0.6 cores."""
    use = between(reading(0, 0, 0, 0.0), reading(10, 15, 1, 8.0))
    assert (use.others, use.server) == (pytest.approx(0.6), pytest.approx(0.8))


def test_nothing_is_known_without_proc():
    """Where nothing could be read, nothing is claimed."""
    assert between(None, reading(10, 15, 1)).others is None


@linux
def test_the_server_is_found_by_its_port():
    """A listener in another process is found with its children; ours is never taken for the server."""
    code = "import socket,sys; s=socket.socket(); s.bind(('127.0.0.1',0)); s.listen(); print(s.getsockname()[1],flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        found = server_pids(int(child.stdout.readline()))
        child.communicate("")
    assert child.pid in found
    assert os.getpid() not in found
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        assert server_pids(own.getsockname()[1]) == frozenset()


@linux
def test_readings_grow():
    """Two readings of this process, with some work between: some of the time is ours."""
    before = others.read()
    sum(range(10**6))
    after = others.read()
    assert before is not None
    assert after is not None
    assert after.ours_s > before.ours_s
    assert between(before, after).idle_frac is not None


@pytest.mark.parametrize(
    ("use", "loopback", "level"),
    [
        (Usage(cores=2, others=1.6, server=0.2, idle_frac=0.0), True, "suspect"),
        (Usage(cores=2, others=0.3, server=1.6, idle_frac=0.0), True, "note"),
        (Usage(cores=2, others=0.1, server=1.8, idle_frac=0.0), True, None),
        (Usage(cores=2, others=1.0, idle_frac=0.4), False, "note"),
        (Usage(cores=2, others=1.9, idle_frac=0.0), False, "suspect"),
    ],
)
def test_a_busy_machine_is_said_where_it_matters(use: Usage, loopback: bool, level: str | None):
    """Other programs beside a server on this machine make a run suspect; the server's own work does not."""
    health = Health(usage=use, loopback=loopback, server_pids=frozenset({1} if loopback else ()), wall_s=10.0)
    assert [f.level for f in _about_machine(health) if f.code == "busy_machine"] == ([level] if level else [])
