"""Every parser of servefit with a good input for it: what tests/test_fuzz.py damages and bench/fuzz.py lets atheris change."""

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from facts.weight_files import TENSORS, TINY, write_gguf, write_safetensors
from servefit.calibrate.calibration import load_calibration
from servefit.decide.decision import parse_decision
from servefit.errors import ServefitError
from servefit.expressions import evaluate
from servefit.facts.configs import load_model
from servefit.facts.devices import load_device
from servefit.facts.headers import read_safetensors
from servefit.facts.weights import load_gguf
from servefit.learn.cards import load_deck
from servefit.measure.foreign import import_file
from servefit.objectives import summarize
from servefit.plan.files import load_plan
from servefit.plan.spec import load_spec
from servefit.records import load_run
from servefit.settings import load_settings
from servefit.wire.dialects import DIALECTS
from servefit.wire.reply import Reply
from servefit.workload.arrivals import schedule
from servefit.workload.traces import load_trace
from servefit.workload.workload import load_workload

GOLDEN = Path(__file__).parent / "golden" / "plan-small.json"

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
FILES = {
    "workload": ("w.toml", lambda p: schedule(load_workload(p)) if load_workload(p).n < 1000 else None),
    "plan.toml": ("p.toml", load_spec),
    "device": ("d.toml", load_device),
    "model": ("m.toml", load_model),
    "settings": ("servefit.toml", lambda p: load_settings(path=p)),
    "deck": ("deck.toml", load_deck),
    "azure": ("t.csv", load_trace),
    "mooncake": ("t.jsonl", load_trace),
}

CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": null}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}\n\n'
STREAMS = {
    "openai-chat": CHUNK * 3 + b"data: [DONE]\n\n",
    "openai-completions": CHUNK.replace(b'"delta": {"content": "hi"}', b'"text": "hi"') * 3 + b"data: [DONE]\n\n",
    "anthropic": b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}\n\n' * 3,
    "ollama-chat": b'{"message": {"content": "hi"}, "done": false}\n' * 3 + b'{"done": true, "eval_count": 3, "prompt_eval_count": 2}\n',
    "ollama-generate": b'{"response": "hi", "done": false}\n' * 3 + b'{"done": true, "eval_count": 3}\n',
}  # fmt: skip


def _bytes(write: Callable[..., Path], *what: object) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder) / "file", *what).read_bytes()


IMPORTED = b'[{"build_commit": "x", "model_type": "llama", "n_prompt": 512, "n_gen": 0, "avg_ts": 100.0, "samples_ts": [99.0, 101.0], "samples_ns": [5, 5]}]'
BINARY: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "gguf": ("m.gguf", _bytes(write_gguf, TINY, TENSORS), load_gguf),
    "safetensors": (
        "m.safetensors",
        _bytes(write_safetensors, {"t": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}, 8),
        read_safetensors,
    ),
    "config.json": ("config.json", json.dumps(CONFIG).encode(), load_model),
    "calibration.json": ("c.json", json.dumps(CALIBRATION).encode(), load_calibration),
    "plan.json": ("plan.json", GOLDEN.read_bytes(), load_plan),
    "import": ("results.json", IMPORTED, import_file),
}
"""Name: (file name, a good file, its reader), besides FILES."""


@cache
def written() -> Path:
    """A folder with a simulated run in run/, and a decision beside its plan."""
    from servefit import Workload, save_run, simulate, write_decision

    home = Path(tempfile.mkdtemp(prefix="servefit-parsers-"))
    save_run(simulate(Workload(n=1, concurrency=1), model="llama-3.1-8b", device="rtx-4090"), home / "run")
    shutil.copy(GOLDEN, home / "plan.json")
    write_decision(home / "plan.json", home / "decision.md", deciders=["Ada"], assume=["Half of it is chat."])
    return home


def names() -> list[str]:
    """Every parser."""
    return [*FILES, *BINARY, "requests.jsonl", "decision.md", "expression", *DIALECTS]


def good(name: str) -> bytes:
    """An input that this parser takes."""
    if name in BINARY:
        return BINARY[name][1]
    if name == "expression":
        return b"2 * max(a, 3) ** 2 / (b - 1)"
    if name == "requests.jsonl":
        return (written() / "run" / name).read_bytes()
    if name == "decision.md":
        return (written() / name).read_bytes()
    return TEXTS.get(name) or STREAMS[name]


def reader(name: str, folder: Path) -> Callable[[bytes], object]:
    """The parser as a function of bytes; files are written to the folder."""
    if name in DIALECTS:
        return lambda data: DIALECTS[name].read(data, Reply())
    if name == "expression":
        return lambda data: evaluate(data.decode("utf-8", "replace"), {"a": 2.0, "b": 3.0}, {"max": max})
    if name == "decision.md":
        return lambda data: parse_decision(data.decode("utf-8", "replace"), where="decision.md")
    if name == "requests.jsonl":
        shutil.copy(written() / "run" / "run.json", folder)
        file, read = "requests.jsonl", lambda _path: summarize(load_run(folder))
    elif name in FILES:
        file, read = FILES[name]
    else:
        file, _, read = BINARY[name]

    def whole(data: bytes) -> object:
        (folder / file).write_bytes(data)
        return read(folder / file)

    return whole


def holds(read, *args) -> None:
    """A value or a ServefitError with a sentence; anything else is a crash."""
    said = "a value"
    try:
        read(*args)
    except ServefitError as error:
        said = error.message
    assert 0 < len(said) < 20_000
