"""Causes provoked on the real engines that come with servefit, measured over loopback, and named from what was measured.

Nothing here asserts a time: a busy machine is slower, and `host_trouble` beside the cause is then simply true.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from servefit.explain.experiments import conclude_speculation
from servefit.explain.rules import diagnose_run
from servefit.measure.probe import find_endpoint
from servefit.measure.run import Options, measure
from servefit.records import Run
from servefit.servers import engines
from servefit.workload.workload import Lengths, Workload

pytestmark = [pytest.mark.engine, pytest.mark.slow]
BESIDE = {"host_trouble", "cold_start"}


def untold(run: Run) -> Run:
    """The same run as seen from outside: without the server's own times."""
    return replace(run, rows=tuple(replace(r, server=None) for r in run.rows))


def named(run: Run) -> set[str]:
    """The causes found, those of this machine apart."""
    return {c.code for c in diagnose_run(run).causes} - BESIDE


@pytest.mark.parametrize("name", ["embedded", "llamacpp"])
def test_full_seats(name: str, tmp_path: Path):
    """Three users on one seat: waiting for a seat, with and without the server's own times."""
    workload = Workload(n=6, isl=Lengths(mean=24), osl=Lengths(mean=6), concurrency=3)
    with engines.start(name, policy="none", seats=1, context_tok=512) as engine:
        run = measure(find_endpoint(engine.url), workload, Options(out=tmp_path / "run"))
    # with answers this short the seat is mostly taken by reading, which is not seen from outside: a queue then
    assert named(run) & {"seats_full", "queueing"}
    assert named(untold(run)) & {"seats_full", "queueing"}


@pytest.mark.parametrize("name", ["embedded", "llamacpp"])
def test_cached_prefix_and_long_prompt(name: str, tmp_path: Path):
    """The same long text again is a cache, where one is on; new long prompts are long prompts, and no cache."""
    text = "You answer questions about the rules of our shop. " * 30
    again = Workload(n=3, osl=Lengths(mean=3), concurrency=1)
    new = Workload(n=3, isl=Lengths(mean=350), osl=Lengths(mean=3), concurrency=1)
    with engines.start(name, seats=2, context_tok=768, prefix_cache=True) as engine:
        endpoint = find_endpoint(engine.url)
        cached = measure(endpoint, again, Options(out=tmp_path / "again", prompt=text))
        fresh = measure(endpoint, new, Options(out=tmp_path / "new"))
    assert "cached_prefix" in named(cached)
    assert named(fresh) == {"long_prompt"}


def test_speculation_is_counted_by_the_server(tmp_path: Path):
    """A text that repeats itself, drafted by n-grams: the server counts the drafts, and no proxy is blamed for the bursts."""
    again = Workload(n=3, osl=Lengths(mean=32), concurrency=1)
    runs = []
    for kind in (None, "ngram"):
        with engines.start("llamacpp", seats=1, context_tok=512, speculation=kind) as engine:
            endpoint = find_endpoint(f"{engine.url}/v1/completions")
            runs.append(measure(endpoint, again, Options(out=tmp_path / str(kind), prompt="1 2 3 4 5 6 7 8 " * 12)))
    off, on = runs
    assert named(on) & {"speculative", "buffering", "several_tokens"} == {"speculative"}
    assert "speculative" not in named(off)
    told = conclude_speculation(off, on, draft_tok=4, draft_cost=0.0)
    assert "the server counts" in told.sentence
    assert (told.values["tok_per_step"] or 0) > 1.1
