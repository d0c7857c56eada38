"""The client against every trap: what it says beside what is true. `servefit measure --selftest`."""

import shutil
import socket
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from servefit.measure.probe import find_endpoint, get_json
from servefit.measure.run import Options, measure
from servefit.records import Run
from servefit.traps.self_signed import write_pem
from servefit.traps.server import LATENESS, in_process
from servefit.traps.suite import TOKENS, TRAPS, Trap, Truth
from servefit.wire.client import Client, Limits
from servefit.workload.workload import Lengths, Workload

_WORKLOAD = Workload(n=4, isl=Lengths(mean=64), osl=Lengths(mean=TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one trap."""

    name: str
    about: str
    said: str
    complaints: tuple[str, ...]


def selftest(*, timed: bool = True, tell: Callable[[Verdict], None] | None = None) -> list[Verdict]:
    """Every trap's verdict, in order; with `timed`, times must hold within max(2 ms, 1%) (a quiet machine)."""
    out = []
    with _servers() as (plain, tls, pem):
        folder = Path(tempfile.mkdtemp(prefix="servefit-selftest-"))
        try:
            for trap in TRAPS.values():
                base = tls if trap.tls else plain
                for attempt in range(3 if timed else 1):  # a busy machine delays the server's own reading, too
                    run = run_trap(base, trap, folder / f"{trap.name}-{attempt}", ca_file=pem)
                    verdict = judge_trap(late(trap, base, ca_file=pem), run, timed=timed)
                    if not verdict.complaints or judge_trap(trap, run, timed=False).complaints:
                        break
                out.append(verdict)
                if tell is not None:
                    tell(verdict)
            verdict = _refused(folder)
            out.append(verdict)
            if tell is not None:
                tell(verdict)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return out


@contextmanager
def _servers() -> Iterator[tuple[str, str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="servefit-selftest-"))
    try:
        pem = write_pem(folder / "loopback.pem")
        with in_process() as plain, in_process(pem) as tls:
            yield plain, tls, str(pem)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_trap(base_url: str, trap: Trap, out: Path, *, ca_file: str | None = None, silent_s: float = 0.6) -> Run:
    """Four requests to the trap, with nothing asked before."""
    endpoint = find_endpoint(f"{base_url}/{trap.name}", dialect=trap.dialect, model="m", ca_file=ca_file)
    limits = Limits(connect_s=2.0, silent_s=silent_s, total_s=10.0)
    return measure(endpoint, replace(_WORKLOAD, concurrency=trap.users), Options(out=out, probe=False, limits=limits))


def late(trap: Trap, base_url: str, *, ca_file: str | None = None) -> Trap:
    """The trap with its truth moved by how late the server's own writes were, as the server says."""
    endpoint = find_endpoint(f"{base_url}/{trap.name}", ca_file=ca_file)
    client = Client(endpoint.address)
    try:
        told = get_json(client, endpoint, f"/{LATENESS}") or {}
    finally:
        client.close()
    requests = [r for r in told.get("late_s", []) if len(r) == len(trap.script.writes)]
    truth = trap.truth
    if not requests or truth.ttft_s is None:
        return trap

    def moved(at: float | None) -> float | None:
        near = [i for i, (when, _) in enumerate(trap.script.writes) if at is not None and abs(when - at) < 1e-6]
        return at + statistics.median(r[near[0]] for r in requests) if at is not None and near else at

    first, last = moved(truth.ttft_s), moved(truth.e2e_s)
    tpot = truth.tpot_s
    if tpot and first and last and truth.e2e_s:
        tpot *= (last - first) / (truth.e2e_s - truth.ttft_s)
    now = replace(truth, ttft_s=first, e2e_s=last, tpot_s=tpot, answer_s=moved(truth.answer_s))
    return replace(trap, truth=now)


def _refused(folder: Path) -> Verdict:
    """A port where nobody listens: four refused rows."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    trap = Trap(name="connection_refused", about="nobody listens", script=TRAPS["plain"].script,
                truth=Truth(by_status={"refused": 4}))  # fmt: skip
    run = run_trap(f"http://127.0.0.1:{port}", trap, folder / trap.name)
    return judge_trap(trap, run, timed=False)


def judge_trap(trap: Trap, run: Run, *, timed: bool, speed: float = 1.0) -> Verdict:
    """What the run says of the trap, played `speed` times as fast, and where that is not the truth."""
    truth, rows = trap.truth, run.load_rows
    statuses = dict(Counter(row.status for row in rows))
    complaints = []
    if statuses != truth.by_status:
        complaints.append(f"statuses are {statuses}, should be {truth.by_status}")
    lacking = {code: sum(code not in row.findings for row in rows) for code in sorted(truth.findings)}
    complaints.extend(f"{count} rows lack the finding {code}" for code, count in lacking.items() if count)
    good = [row for row in rows if row.ok]
    counted = {row.osl for row in (good or rows)}
    if truth.osl is not None and counted != {truth.osl}:
        complaints.append(f"output tokens are {sorted(map(str, counted))}, should be {truth.osl}")
    figures: dict[str, tuple[float | None, list[float | None]]] = {
        "ttft_s": (truth.ttft_s, [row.ttft_s for row in good]),
        "tpot_s": (truth.tpot_s, [row.tpot_s for row in good]),
        "e2e_s": (truth.e2e_s, [row.e2e_s for row in good]),
        "answer_s": (truth.answer_s, [row.chunk_s[row.answer_chunk] - row.due_s for row in good
                                      if row.answer_chunk is not None]),
    }  # fmt: skip
    said = [", ".join(f"{n} {s}" for s, n in statuses.items())]
    for name, (true, values) in figures.items():
        seen = [v * speed for v in values if v is not None]
        if true is None:
            continue
        if not seen:
            complaints.append(f"{name} was not observed")
            continue
        middle = statistics.median(seen)
        said.append(f"{name.removesuffix('_s')} {middle * 1e3:.1f} ms")
        # Without a quiet machine only what is wrong by design is caught: half too small, or far too large.
        low, high = (max(0.002, 0.01 * true),) * 2 if timed else (0.7 * true, 20 * true + 10)
        if not true - low <= middle <= true + high:
            complaints.append(f"{name} is {middle * 1e3:.1f} ms, should be {true * 1e3:.1f}")
    return Verdict(name=trap.name, about=trap.about, said=", ".join(said), complaints=tuple(complaints))
