"""Times that physics does not allow are findings about the measurement."""

from servefit.facts.devices import find_device
from servefit.facts.models import find_model
from servefit.measure.plausible import about_physics, known_shape
from servefit.records import RequestRecord, Run, RunHeader

H100, LLAMA = find_device("h100-sxm"), find_model("llama-3.1-8b")


def run(ttft_s: float, gap_s: float, n: int = 40, cached_tok: int | None = None) -> Run:
    """Answers of 64 tokens to prompts of 4,096."""
    times = tuple(ttft_s + gap_s * i for i in range(64))
    rows = tuple(
        RequestRecord(id=str(i), status="ok", due_s=0.0, sent_s=0.0, chunk_s=times, osl=64, isl=4096, cached_tok=cached_tok)
        for i in range(n)
    )  # fmt: skip
    return Run(header=RunHeader(kind="measured"), rows=rows)


def test_a_token_faster_than_the_weights_can_be_read():
    """3.47 ms a token for an 8B in 16 bit on an H100, whose weights alone take 4.5 ms; 6 ms may be."""
    assert [f.code for f in about_physics(run(0.2, 0.00347), H100, LLAMA, "bf16")] == ["tpot_below_floor"]
    assert about_physics(run(0.2, 0.006), H100, LLAMA, "bf16") == []


def test_a_prompt_faster_than_the_peak():
    """4,096 tokens in 10 ms is above the peak, unless the server says that they were cached."""
    assert [f.code for f in about_physics(run(0.010, 0.006), H100, LLAMA, "bf16")] == ["ttft_below_floor"]
    assert about_physics(run(0.010, 0.006, cached_tok=4000), H100, LLAMA, "bf16") == []


def test_an_unknown_precision_is_taken_as_small():
    """Without a precision only what 4-bit weights do not explain either is found."""
    assert about_physics(run(0.2, 0.00347), H100, LLAMA) == []
    assert about_physics(run(0.2, 0.0005), H100, LLAMA)


def test_an_unknown_model_has_no_shape():
    """A name that no catalogue knows is passed over for the next."""
    assert known_shape(["no-such-model"]) is None
    assert known_shape(["no-such-model", "llama-3.1-8b"]) == LLAMA
