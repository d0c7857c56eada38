"""Damaged files and streams: every parser answers with a value or one sentence, never a crash, a hang or a flood of memory.

A good file is cut, has bytes replaced and inserted, or has one of its JSON values exchanged. GGUF and safetensors headers
are fuzzed in tests/facts/test_headers.py, lines of a run in tests/test_records.py.
"""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from servefit.calibrate.calibration import load_calibration
from servefit.decide.decision import parse_decision
from servefit.decide.verify import verify_text
from servefit.errors import ServefitError
from servefit.facts.configs import load_model
from servefit.facts.devices import load_device
from servefit.learn.cards import load_deck
from servefit.measure.dialects import DIALECTS
from servefit.measure.reply import Reply
from servefit.measure.settings import load_settings
from servefit.objectives import summarize
from servefit.plan.files import load_plan
from servefit.plan.spec import load_spec
from servefit.records import load_run
from servefit.workload.arrivals import schedule
from servefit.workload.traces import load_trace
from servefit.workload.workload import load_workload

GOLDEN = Path(__file__).parent / "golden" / "plan-small.json"
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

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "head_dim": 16, "max_position_embeddings": 128}  # fmt: skip
CALIBRATION = {
    "schema_version": 1,
    "step": {"const_s": 0.01, "source": "measured", "origin": "x"},
    "coefficients": {},
    "device": "x",
    "model": "y",
}
TEXTS = {
    "workload": b'n = 5\nrate_req_per_s = 4\nisl = 12\nosl = {kind = "normal", mean = 8, sd = 2}\nseed = 1\n',
    "plan.toml": b'models = ["llama-3.1-8b"]\ndevices = ["rtx-4090"]\n[workload]\nn = 10\nrate_req_per_s = 4\nisl = 5\nosl = 2\n[targets]\nttft = "500 ms"\n',
    "device": b'title = "Mine"\nkind = "gpu"\nmemory = "24 GiB"\nbandwidth_gb_per_s = 1008\nbf16_tflop_per_s = [165.2, "datasheet", "seen"]\n',
    "model": b'hidden = 64\nvocab = 100\n[[layers]]\ncount = 2\nattention = "full"\nheads = 4\nkv_heads = 2\nhead_dim = 16\nffn = 128\n',
    "settings": b'target = "a"\n[targets.a]\nurl = "http://127.0.0.1:1"\n[objectives]\nttft = "500 ms"\n[caps]\nusd_per_run = 1.0\n',
    "deck": b'[[card]]\nid = "a"\ntopic = "batching"\nquestion = "Q?"\nplain = "P"\npicture = "p"\nnumbers = ["{2 * 3|1}"]\nwords = ["Seats"]\ndeeper = "d"\nsource = "s"\n',
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
    "mooncake": b'{"timestamp": 0, "input_length": 67, "output_length": 5, "hash_ids": [0, 1]}\n{"timestamp": 3, "input_length": 7, "output_length": 5, "hash_ids": [0]}\n',
}  # fmt: skip
LOAD = {
    "workload": ("w.toml", lambda p: schedule(load_workload(p)) if load_workload(p).n < 1000 else None),
    "plan.toml": ("p.toml", load_spec),
    "device": ("d.toml", load_device),
    "model": ("m.toml", load_model),
    "settings": ("servefit.toml", lambda p: load_settings(path=p)),
    "deck": ("deck.toml", load_deck),
    "azure": ("t.csv", load_trace),
    "mooncake": ("t.jsonl", load_trace),
}


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


def _holds(read, *args) -> None:
    """A value or a ServefitError with a sentence; anything else is a crash."""
    said = "a value"
    try:
        read(*args)
    except ServefitError as error:
        said = error.message
    assert 0 < len(said) < 20_000


@pytest.mark.parametrize("kind", TEXTS)
@QUICK
@given(cuts=CUTS)
@example(cuts=[("cut", 0.0, b"")])
@example(cuts=[("put", 0.5, b"\x00\xff")])
def test_text_files(kind, tmp_path, cuts):
    """TOML of every kind, CSV and JSONL traces."""
    name, read = LOAD[kind]
    (tmp_path / name).write_bytes(_damaged(TEXTS[kind], cuts))
    _holds(read, tmp_path / name)


@QUICK
@given(which=st.integers(0, 10_000), odd=ODD)
def test_config_json(tmp_path, which, odd):
    """A model's config.json with one value exchanged."""
    (tmp_path / "config.json").write_text(json.dumps(_changed(CONFIG, which, odd)), encoding="utf-8")
    _holds(load_model, tmp_path / "config.json")


@QUICK
@given(which=st.integers(0, 10_000), odd=ODD)
def test_plan_json(tmp_path, which, odd):
    """plan.json with one of its thousands of values exchanged."""
    plan = json.loads(GOLDEN.read_text(encoding="utf-8"))
    (tmp_path / "plan.json").write_text(json.dumps(_changed(plan, which, odd)), encoding="utf-8")
    _holds(load_plan, tmp_path / "plan.json")


@QUICK
@given(which=st.integers(0, 200), odd=ODD)
def test_calibration_json(tmp_path, which, odd):
    """calibration.json with one value exchanged."""
    (tmp_path / "c.json").write_text(json.dumps(_changed(CALIBRATION, which, odd)), encoding="utf-8")
    _holds(load_calibration, tmp_path / "c.json")


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
    _holds(lambda: summarize(load_run(tmp_path)))


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
    _holds(lambda: verify_text(parse_decision(text, where="x"), decision))


CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": null}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
STREAMS = {
    "openai-chat": CHUNK * 3 + b"data: [DONE]\n\n",
    "openai-completions": CHUNK.replace(b'"delta": {"content": "hi"}', b'"text": "hi"') * 3 + b"data: [DONE]\n\n",
    "anthropic": b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}\n\n' * 3,
    "ollama-chat": b'{"message": {"content": "hi"}, "done": false}\n' * 3 + b'{"done": true, "eval_count": 3, "prompt_eval_count": 2}\n',
    "ollama-generate": b'{"response": "hi", "done": false}\n' * 3 + b'{"done": true, "eval_count": 3}\n',
}  # fmt: skip


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
