"""The conformance suite: every trap is told as it is, in status, findings and counts, with times that are not absurd."""

import ssl
from pathlib import Path

import pytest

from servefit.traps.self_signed import server_context, write_pem
from servefit.traps.selftest import judge_trap, run_trap
from servefit.traps.server import TrapServer, in_thread
from servefit.traps.suite import TRAPS

SPEED = 4.0


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh key and certificate for 127.0.0.1."""
    return write_pem(tmp_path_factory.mktemp("tls") / "loopback.pem")


@pytest.fixture(scope="module")
def server():
    """The trap server, in a thread."""
    with in_thread(speed=SPEED) as running:
        yield running


@pytest.fixture(scope="module")
def tls_server(pem: Path):
    """The trap server over TLS."""
    context: ssl.SSLContext = server_context(pem)
    with in_thread(tls=context, speed=SPEED) as running:
        yield running


def test_there_are_traps_enough():
    """Thirty were promised."""
    assert len(TRAPS) >= 80


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TRAPS))
def test_trap(name: str, server: TrapServer, tls_server: TrapServer, pem: Path, tmp_path: Path):
    """The client says of this trap what is true of it."""
    trap = TRAPS[name]
    used = tls_server if trap.tls else server
    run = run_trap(used.url, trap, tmp_path / "run", ca_file=str(pem), silent_s=2.0)
    verdict = judge_trap(trap, run, timed=False, speed=SPEED)
    assert not verdict.complaints, f"{verdict.complaints}: {[row.error for row in run.rows if row.error]}"
    assert len(run.load_rows) == 4
    asked = [path for path, _, _ in used.seen.requests if path.startswith(f"/{name}/")]
    assert len(asked) == 4, "each request is sent once: nothing is retried"


def test_an_unknown_certificate_is_not_trusted(tls_server: TrapServer, tmp_path: Path):
    """Without its certificate named, the TLS server is refused, and the rows say why."""
    run = run_trap(tls_server.url, TRAPS["plain_tls"], tmp_path / "run")
    assert {row.status for row in run.rows} == {"refused"}
    assert "certificate" in (run.rows[0].error or "").lower()
