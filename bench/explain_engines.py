"""Does explain name the cause that is there on real engines? Each is provoked on an engine that comes with servefit.

    python bench/explain_engines.py embedded|llamacpp [--only WORD] [--out FOLDER] [--json]

Each row is a cause that was provoked (or a calm run), what explain found from the rows as measured, heaviest first, and what
it found without the server's own times. A busy machine is one more cause: run it on an idle one.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from servefit.explain.rules import diagnose_run
from servefit.measure.probe import find_endpoint
from servefit.measure.run import Options, measure
from servefit.records import Run
from servefit.servers import engines
from servefit.workload.workload import Lengths, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cause, the engine's switches and the load that provoke it, and the codes that name it."""

    name: str
    named: frozenset[str]
    load: Workload
    switches: dict[str, Any] = field(default_factory=dict)
    prompt: str | None = None
    burners: int = 0
    """Processes that do nothing but take the processor, while the load runs."""
    only: str | None = None


def load(n: int, isl: int, osl: int, **how: Any) -> Workload:
    """`n` requests of one length; one user unless said."""
    if "rate_req_per_s" not in how:
        how.setdefault("concurrency", 1)
    return Workload(n=n, isl=how.pop("lengths", None) or Lengths(mean=isl), osl=Lengths(mean=osl), **how)


MIXED = Lengths(mean=260, kind="uniform", sd=110, min=64, max=456)
CASES = (
    Case(name="calm", named=frozenset(), load=load(8, 48, 48), switches={"seats": 4}),
    Case(name="long prompt", named=frozenset({"long_prompt"}), load=load(4, 1200, 24), switches={"seats": 2}),
    Case(name="queue", named=frozenset({"queueing", "seats_full"}), load=load(24, 32, 40, concurrency=6), switches={"seats": 2}),
    Case(name="small context", named=frozenset({"context_refused", "prompt_cut"}), load=load(10, 260, 16, lengths=MIXED),
         switches={"seats": 2, "context_tok": 320}),
    Case(name="cache on", named=frozenset({"cached_prefix"}), load=load(6, 48, 16), switches={"seats": 2, "prefix_cache": True},
         prompt="You answer questions about the rules of our shop. " * 60),
    Case(name="prefill stall", named=frozenset({"prefill_stall"}), load=load(14, 240, 200, rate_req_per_s=0.5, arrivals="constant"),
         switches={"seats": 8}),
    Case(name="taken processor", named=frozenset({"host_trouble"}), load=load(8, 48, 48), switches={"seats": 4}, burners=4),
    Case(name="preemption", named=frozenset({"preemption"}), load=load(12, 64, 160, concurrency=6),
         switches={"seats": 6, "kv_tok": 512, "context_tok": 512}, only="embedded"),
)  # fmt: skip
MAY_COME_TOGETHER = {
    "prefill stall": {"long_prompt", "queueing", "prompts_ahead"},
    "preemption": {"queueing", "prompts_ahead", "prefill_stall", "seats_full"},
}
"""What a provoked cause brings with it: true beside it, but not above it."""


def burn() -> None:
    """Take one processor for good."""
    while True:
        pass


@contextmanager
def taken(count: int) -> Iterator[None]:
    """`count` processes that take the processor."""
    others = [multiprocessing.Process(target=burn, daemon=True) for _ in range(count)]
    for process in others:
        process.start()
    try:
        yield
    finally:
        for process in others:
            process.kill()


def run_case(engine: str, case: Case, folder: Path) -> Run:
    """The run that provokes the case."""
    with engines.start(engine, **({"context_tok": 2048} | case.switches)) as server, taken(case.burners):
        return measure(find_endpoint(server.url), case.load, Options(out=folder, prompt=case.prompt))


def look(engine: str, case: Case, folder: Path) -> dict[str, Any]:
    """What explain found, as measured and from outside."""
    run = run_case(engine, case, folder)
    outside = replace(run, rows=tuple(replace(r, server=None, cached_tok=None) for r in run.rows))
    told, untold = ([c.code for c in diagnose_run(r).causes] for r in (run, outside))
    may = MAY_COME_TOGETHER.get(case.name, set())
    # a first request that was slow and is not in the figures is true on an engine that does no warm-up, and weighs nothing
    first = (not case.named and not set(told) - {"cold_start"}) or bool(told and told[0] in case.named)
    extra = [c for c in told if c not in case.named | may | {"cold_start"}]
    return {"provoked": case.name, "first": first, "found": told, "others": extra, "untold": untold,
            "load_1min": os.getloadavg()[0]}  # fmt: skip


def main() -> None:
    """Provoke each cause once and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=sorted(engines.ENGINES))
    parser.add_argument("--only", help="A word of the case's name.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    root = asked.out or Path(tempfile.mkdtemp(prefix="servefit-causes-"))
    chosen = [c for c in CASES if c.only in {None, asked.engine} and (asked.only or "") in c.name]
    table = []
    for case in chosen:
        row = look(asked.engine, case, root / f"{asked.engine}-{case.name.replace(' ', '-')}")
        table.append(row)
        if not asked.json:
            print(f"{row['provoked']:<16} {'first' if row['first'] else 'NOT FIRST':<10} found {', '.join(row['found']) or '-'}; "
                  f"untold {', '.join(row['untold']) or '-'}; load {row['load_1min']:.1f}", flush=True)  # fmt: skip
    if asked.json:
        print(json.dumps({"figure": "explain-engines", "engine": asked.engine, "rows": table}))


if __name__ == "__main__":
    main()
