"""Causes provoked on the real engines that come with servefit, measured over loopback, and named from what was measured.

Nothing here asserts a time: a busy machine is slower, and `host_trouble` beside the cause is then simply true.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servefit.errors import ServefitError
from servefit.explain.experiments import conclude_speculation
from servefit.explain.rules import diagnose_run
from servefit.measure.probe import find_endpoint
from servefit.measure.run import Options, measure
from servefit.records import Run, load_run
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
    """Three users on one seat: waiting for a seat, with and without the server's own times.

    Without them it is told by the order of what arrived, which a busy machine does not change.
    """
    workload = Workload(n=9, isl=Lengths(mean=24), osl=Lengths(mean=40), concurrency=3)
    with engines.start(name, policy="none", seats=1, context_tok=512) as engine:
        run = measure(find_endpoint(engine.url), workload, Options(out=tmp_path / "run"))
    # a seat that is taken by reading is not seen from outside: then it is a queue
    assert named(run) & {"seats_full", "queueing"}
    assert named(untold(run)) & {"seats_full", "queueing"}
    assert "prompts_ahead" not in named(run) | named(untold(run)), "seats are the knob here"


@pytest.mark.parametrize("name", ["embedded", "llamacpp"])
def test_cached_prefix_and_long_prompt(name: str, tmp_path: Path):
    """The same long text again is a cache, where one is on; new long prompts are long prompts, and no cache."""
    text = "You answer questions about the rules of our shop. " * 60
    again = Workload(n=3, osl=Lengths(mean=3), concurrency=1)
    new = Workload(n=3, isl=Lengths(mean=350), osl=Lengths(mean=3), concurrency=1)
    with engines.start(name, seats=2, context_tok=1280, prefix_cache=True) as engine:
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


def test_memory_that_runs_out_on_llamacpp(tmp_path: Path):
    """llama.cpp's slots share one cache and set nobody back: when it is full, all that run are broken off, and that is named."""
    load = Workload(n=4, isl=Lengths(mean=24), osl=Lengths(mean=90), concurrency=4)
    short = Workload(n=2, isl=Lengths(mean=24), osl=Lengths(mean=4), concurrency=1)
    with engines.start("llamacpp", seats=4, context_tok=256, kv_tok=256) as engine:
        endpoint = find_endpoint(engine.url)
        full = measure(endpoint, load, Options(out=tmp_path / "full"))
        calm = measure(endpoint, short, Options(out=tmp_path / "calm"))
    assert {r.status for r in full.load_rows} == {"stream_error"}
    with pytest.raises(ServefitError, match="4 stream_error") as caught:
        diagnose_run(full)
    assert "Context size has been exceeded" in caught.value.hint
    # the same with answers beside them that were whole, as where load comes and goes
    both = replace(full, rows=(*full.rows, *calm.load_rows))
    found = diagnose_run(both).causes
    assert found[0].code == "memory_full"
    assert "4 of 6 answers" in found[0].saw
    assert "preemption" not in {c.code for c in found}


@pytest.fixture(scope="module")
def cached_server():
    """The embedded engine with its prefix cache on, and a context that a ladder can reach the end of."""
    with engines.start("embedded", seats=2, context_tok=512, prefix_cache=True) as engine:
        yield engine


def experiment(cli: Any, tmp_path: Path, *words: str) -> dict[str, Any]:
    """What the experiment says as JSON, its runs in the test's folder."""
    code, out, err = cli("experiment", *words, "--quiet", "--json", "--osl", "4", "--out", tmp_path / "runs")
    assert code == 0, err
    said: dict[str, Any] = json.loads(out)
    assert said["runs"]
    assert all(load_run(Path(run)).header.finished for run in said["runs"])
    return said


def test_experiment_prefix_on_an_engine(cached_server: engines.RunningEngine, cli: Any, tmp_path: Path):
    """With its cache on, the engine reads the stable part once: put it first, says the sentence."""
    said = experiment(cli, tmp_path, "prefix", cached_server.url, "--stable-tok", "320", "--fresh-tok", "32", "-n", "3")
    assert said["sentence"].startswith("Put the stable part first: with 320 stable tokens at the start")
    assert [row[0] for row in said["rows"]] == ["changing part first", "stable part first"]
    assert [row[3:] for row in said["rows"]] == [
        ["-", "3"],
        ["-", "3"],
    ]  # this engine does not count what its cache gave
    assert said["values"]["cached_frac"] is None
    assert said["values"]["times"] > 1.3  # six to eight here: 352 tokens read against 32
    assert len(said["runs"]) == 2


def test_experiment_context_on_an_engine(cached_server: engines.RunningEngine, cli: Any, tmp_path: Path):
    """Two rungs are read whole, the third is longer than the context of 512: refused, and the end lies between them.

    How TTFT grows is not asserted: two requests a rung on a shared machine have no order to rely on, and the sentence then says so.
    """
    said = experiment(cli, tmp_path, "context", cached_server.url, "--lengths", "64,320,900", "-n", "2")
    read = said["values"]["read_most_tok"]
    assert read == pytest.approx(320, abs=8), (
        "a prompt of words is a few tokens longer or shorter than asked, by the words"
    )
    assert said["sentence"].endswith(f"{read} tokens are read whole, 900 are refused: the context ends between them.")
    assert [int(row[0]) for row in said["rows"]] == pytest.approx([64, 320, 900], abs=8)
    assert said["rows"][2][-1] == "refused"
    assert said["values"]["cut_at_tok"] == 900
    assert any("512" in note for note in said["notes"])


def test_experiment_moe_on_an_engine(cached_server: engines.RunningEngine, cli: Any, tmp_path: Path):
    """A dense model asked about its experts: at 1 MB/s a gap leaves no time for more than a part, at 1 TB/s for more than all of it."""
    words = ("moe", cached_server.url, "--weights", "96.6MB", "--users", "2", "--isl", "24", "-n", "2", "--bandwidth")
    fast = experiment(cli, tmp_path / "fast", *words, "1TB/s")
    assert "which is more than the whole model" in fast["sentence"]
    assert [row[0] for row in fast["rows"]] == ["1 user", "2 users"]
    assert fast["values"]["growth"] > 0
    slow = experiment(cli, tmp_path / "slow", *words, "1MB/s")
    assert "only a part of it is active" in slow["sentence"]
    assert 0 < slow["values"]["active_frac_low"] < slow["values"]["active_frac_high"] < 0.5
