"""What a client's own figures say of the run: idle, near what one core holds, past it."""

import pytest

from servefit.measure.health import Health, judge_run
from servefit.records import RequestRecord, Run, RunHeader
from servefit.workload.workload import Workload

ROWS = tuple(RequestRecord(id=str(i), status="ok", due_s=0.1 * i, chunk_s=(0.1 * i + 0.1,), done_s=0.1 * i + 0.1) for i in range(100))  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "code", "verdict"),
    [(0.5, None, "valid"), (0.8, "client_near_limit", "valid"), (0.95, "client_saturated", "suspect")],
)
def test_what_one_core_holds_is_said_when_near_and_suspect_past_it(cores, code, verdict):
    """Below 70% of a core nothing; above, what one core holds of this load; above 90% the run is suspect."""
    health = Health(wall_s=10.0, cpu_s=10.0 * cores, clock="kernel", rows=100, tokens=60_000, shared=3_000)
    header = judge_run(Run(header=RunHeader(kind="measured"), rows=ROWS), health, Workload(concurrency=1))
    found = [f for f in header.findings if f.code.startswith("client")]
    assert [f.code for f in found] == ([code] if code else [])
    assert header.verdict == verdict
    if code:  # all tokens count, also those that shared a read
        assert f"{63_000 / (10 * cores):,.0f} tokens/s, {100 / (10 * cores):,.0f} requests/s" in found[0].message
        assert "--workers" in found[0].hint


def test_a_client_without_a_rest_is_behind_even_where_reads_lag_little():
    """Tokens that share reads are laid to the client once it has used up its core, not to the server."""

    def why(cores: float) -> str:
        health = Health(wall_s=10.0, cpu_s=10.0 * cores, clock="kernel", rows=100, tokens=60_000, shared=30_000)
        header = judge_run(Run(header=RunHeader(kind="measured"), rows=ROWS), health, Workload(concurrency=1))
        return next(f.message for f in header.findings if f.code == "tokens_share_reads")

    assert "this client was behind" in why(0.97)
    assert "sends in bursts" in why(0.5)
