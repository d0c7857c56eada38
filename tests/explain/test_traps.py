"""Real runs over loopback against a server with known faults: measured as anyone would, and the fault is named."""

from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.explain.rules import diagnose_run
from servefit.measure.probe import find_endpoint
from servefit.measure.run import Options, measure
from servefit.traps.server import TrapServer, in_thread
from servefit.workload.workload import Lengths, Workload

CASES = {
    "plain": set(),
    "role_early": set(),
    "reasoning_content": set(),
    "comments": set(),
    "split_events": set(),
    "connection_close": set(),
    "four_tokens_an_event": {"several_tokens"},
    "running_usage": {"several_tokens"},
    "four_events_a_write": {"buffering"},
}


@pytest.fixture(scope="module")
def server():
    """The trap server, four times as fast as real servers."""
    with in_thread(speed=4.0) as running:
        yield running


def run_on(server: TrapServer, trap: str, folder: Path):
    """Six requests, one at a time."""
    workload = Workload(n=6, isl=Lengths(mean=40), osl=Lengths(mean=20), concurrency=1)
    endpoint = find_endpoint(f"{server.url}/{trap}/v1", model="m")
    return measure(endpoint, workload, Options(out=folder, probe=False))


@pytest.mark.slow
@pytest.mark.parametrize("trap", CASES)
def test_the_fault_is_named(trap: str, server: TrapServer, tmp_path: Path):
    """The cause that is there is found, and none that would blame the server for what it does not do.

    A machine that is busy may read two events at once or a token late: that is then true of it, and no fault of the rule.
    """
    found = {c.code for c in diagnose_run(run_on(server, trap, tmp_path / "run")).causes}
    busy = {"host_trouble", "buffering", "several_tokens", "cold_start"}
    assert not found - CASES[trap] - busy
    if CASES[trap]:
        assert found & (CASES[trap] | {"buffering"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trap", "said"),
    [
        ("http_429", "rate_limited"),
        ("http_401", "unauthorized"),
        ("context_cut", "prompt_cut"),
        ("fin_midstream", "reset"),
        ("not_streamed", "in one piece"),
    ],
)
def test_nothing_completed_says_why(trap: str, said: str, server: TrapServer, tmp_path: Path):
    """A run in which nothing completed is one sentence with the failures by status, never an empty diagnosis."""
    with pytest.raises(ServefitError, match=said):
        diagnose_run(run_on(server, trap, tmp_path / "run"))
