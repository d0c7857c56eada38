"""Damaged files and streams: every parser answers with a value or one sentence, never a crash, a hang or a flood of memory.

A good file is cut, has bytes replaced and inserted, or has one of its JSON values exchanged. GGUF and safetensors headers
are fuzzed in tests/facts/test_headers.py, lines of a run in tests/test_records.py.
"""

import copy
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parsers import CALIBRATION, CONFIG, FILES, GOLDEN, STREAMS, TEXTS, good, holds, names, reader
from servefit.calibrate.calibration import load_calibration
from servefit.decide.decision import parse_decision
from servefit.decide.verify import verify_text
from servefit.facts.configs import load_model
from servefit.objectives import summarize
from servefit.plan.files import load_plan
from servefit.records import load_run
from servefit.wire.dialects import DIALECTS
from servefit.wire.reply import Reply

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.just([[[]]]), st.just({"a": {"b": None}}), st.just(1e308), st.just(-1), st.just("9" * 5000),
)  # fmt: skip
CUTS = st.lists(
    st.tuples(st.sampled_from(["cut", "put", "drop", "twice"]), st.floats(0, 1), st.binary(max_size=6)),
    min_size=1,
    max_size=4,
)


def _damaged(data: bytes, cuts) -> bytes:
    for kind, where, more in cuts:
        at = int(where * len(data))
        if kind == "cut":
            data = data[:at]
        elif kind == "put":
            data = data[:at] + more + data[at:]
        elif kind == "drop":
            data = data[:at] + data[at + 1 + len(more) :]
        else:
            data += data[at:]
    return data


def _paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from _paths(child, (*path, key))


def _changed(value, which: int, odd):
    """The value with one of its parts exchanged (or, at the root, replaced)."""
    paths = list(_paths(value))
    path = paths[which % len(paths)]
    if not path:
        return odd
    made = copy.deepcopy(value)
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = odd
    return made


@pytest.mark.parametrize("kind", TEXTS)
@QUICK
@given(cuts=CUTS)
@example(cuts=[("cut", 0.0, b"")])
@example(cuts=[("put", 0.5, b"\x00\xff")])
def test_text_files(kind, tmp_path, cuts):
    """TOML of every kind, CSV and JSONL traces."""
    name, read = FILES[kind]
    (tmp_path / name).write_bytes(_damaged(TEXTS[kind], cuts))
    holds(read, tmp_path / name)


@QUICK
@given(which=st.integers(0, 10_000), odd=ODD)
def test_config_json(tmp_path, which, odd):
    """A model's config.json with one value exchanged."""
    (tmp_path / "config.json").write_text(json.dumps(_changed(CONFIG, which, odd)), encoding="utf-8")
    holds(load_model, tmp_path / "config.json")


@QUICK
@given(which=st.integers(0, 10_000), odd=ODD)
def test_plan_json(tmp_path, which, odd):
    """plan.json with one of its thousands of values exchanged."""
    plan = json.loads(GOLDEN.read_text(encoding="utf-8"))
    (tmp_path / "plan.json").write_text(json.dumps(_changed(plan, which, odd)), encoding="utf-8")
    holds(load_plan, tmp_path / "plan.json")


@QUICK
@given(which=st.integers(0, 200), odd=ODD)
def test_calibration_json(tmp_path, which, odd):
    """calibration.json with one value exchanged."""
    (tmp_path / "c.json").write_text(json.dumps(_changed(CALIBRATION, which, odd)), encoding="utf-8")
    holds(load_calibration, tmp_path / "c.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The header and the rows of a run, as they lie on disk."""
    from servefit import Workload, save_run, simulate

    home = tmp_path_factory.mktemp("run")
    save_run(simulate(Workload(n=4, concurrency=2), model="llama-3.1-8b", device="rtx-4090"), home)
    return json.loads((home / "run.json").read_text()), [
        json.loads(line) for line in (home / "requests.jsonl").read_text().splitlines()
    ]


@QUICK
@given(which=st.integers(0, 2000), odd=ODD, header=st.booleans())
def test_runs(run, tmp_path, which, odd, header):
    """A run with one value of its header or of a row exchanged is read and summed up, or refused."""
    head, rows = run
    if header:
        head = _changed(head, which, odd)
    else:
        rows = [_changed(rows[0], which, odd), *rows[1:]]
    (tmp_path / "run.json").write_text(json.dumps(head), encoding="utf-8")
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    holds(lambda: summarize(load_run(tmp_path)))


@pytest.fixture(scope="module")
def decision(tmp_path_factory):
    """A decision as it is written, with its plan beside it."""
    from servefit import write_decision

    home = tmp_path_factory.mktemp("decision")
    (home / "plan.json").write_text(GOLDEN.read_text(encoding="utf-8"), encoding="utf-8")
    write_decision(home / "plan.json", home / "decision.md", deciders=["Ada"], assume=["Half of it is chat."])
    return home / "decision.md"


@settings(parent=QUICK, max_examples=25)
@given(cuts=CUTS)
def test_decisions(decision, cuts):
    """A damaged decision is verified, with findings, or refused."""
    text = _damaged(decision.read_bytes(), cuts).decode("utf-8", "replace")
    holds(lambda: verify_text(parse_decision(text, where="x"), decision))


@pytest.mark.parametrize("name", sorted(DIALECTS))
@QUICK
@given(cuts=CUTS, which=st.integers(0, 40), odd=ODD)
def test_streams(name, cuts, which, odd):
    """Damaged streams in each dialect, and streams whose JSON holds something else than was asked for."""
    read = DIALECTS[name].read
    read(_damaged(STREAMS[name], cuts), Reply())
    line = next(text for text in STREAMS[name].splitlines() if b"{" in text)
    head, _, body = line.partition(b"{")
    other = json.dumps(_changed(json.loads(b"{" + body), which, odd)).encode()
    read(head + other + b"\n\n" + STREAMS[name], Reply())


@pytest.mark.parametrize("name", names())
def test_the_good_inputs_are_good(name, tmp_path):
    """What bench/fuzz.py starts from is read without a complaint, or it would only fuzz the first refusal."""
    reader(name, tmp_path)(good(name))
