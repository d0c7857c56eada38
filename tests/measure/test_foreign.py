"""Result files of other tools as runs: each format read, what it lacks said, damaged files refused in a sentence."""

import json

import pytest

from servefit.errors import ServefitError
from servefit.measure.foreign import import_file
from servefit.objectives import summarize

VLLM = {
    "date": "20261130-101010", "backend": "openai-chat", "model_id": "qwen", "request_rate": "inf", "max_concurrency": 2,
    "duration": 4.0, "completed": 2, "total_input_tokens": 30, "total_output_tokens": 7, "request_throughput": 0.5,
    "input_lens": [10, 20, 30], "output_lens": [3, 4, 0], "ttfts": [0.1, 0.2, 0.0],
    "itls": [[0.01, 0.02], [0.03, 0.05], []], "errors": ["", "", "HTTP 500"],
}  # fmt: skip
LLAMA_BENCH = [
    {"build_commit": "abc", "build_number": 9000, "backends": "CPU", "cpu_info": "a CPU", "gpu_info": "", "model_type": "qwen2 0.5B",
     "model_filename": "q.gguf", "n_prompt": 512, "n_gen": 0, "n_depth": 0, "samples_ns": [1_000_000_000, 2_000_000_000]},
    {"build_commit": "abc", "build_number": 9000, "backends": "CPU", "cpu_info": "a CPU", "gpu_info": "", "model_type": "qwen2 0.5B",
     "model_filename": "q.gguf", "n_prompt": 0, "n_gen": 128, "n_depth": 64, "samples_ns": [4_000_000_000]},
]  # fmt: skip
AIPERF = [
    {"metadata": {"request_start_ns": 1_000_000_000, "request_end_ns": 1_400_000_000, "benchmark_phase": "profiling"},
     "metrics": {"input_sequence_length": {"value": 50, "unit": "tokens"}, "time_to_first_token": {"value": 100.0, "unit": "ms"},
                 "inter_chunk_latency": {"value": [10.0, 20.0], "unit": "ms"},
                 "output_sequence_length": {"value": 3, "unit": "tokens"}}, "error": None},
    {"metadata": {"request_start_ns": 2_000_000_000, "request_end_ns": 2_500_000_000, "benchmark_phase": "profiling"},
     "metrics": {"time_to_first_token": {"value": 200.0, "unit": "ms"}, "inter_token_latency": {"value": 5.0, "unit": "ms"},
                 "output_sequence_length": {"value": 11, "unit": "tokens"}}, "error": None},
    {"metadata": {"request_start_ns": 3_000_000_000, "request_end_ns": 3_100_000_000, "was_cancelled": True},
     "metrics": {"error_isl": {"value": 50, "unit": "tokens"}}, "error": {"code": 499, "message": "cancelled"}},
]  # fmt: skip


def guidellm():
    """A report of one benchmark with a good request and a failed one."""
    good = {
        "request_id": "a", "prompt_tokens": 12, "output_tokens": 5,
        "info": {"timings": {"targeted_start": 100.0, "request_start": 100.1, "first_token_iteration": 100.5,
                             "last_token_iteration": 100.9, "request_end": 101.0}},
    }  # fmt: skip
    bad = {"request_id": "b", "info": {"error": "boom", "timings": {"request_start": 102.0, "request_end": 102.5}}}
    requests = {"successful": [good], "errored": [bad], "incomplete": [], "total": None}
    config = {"strategy": {"type_": "concurrent", "streams": 4}, "backend": {"model": "qwen"}}
    return {"metadata": {}, "benchmarks": [{"config": config, "requests": requests}] * 2}


def read(tmp_path, value, *, lines=False):
    """The runs of a file that holds `value`."""
    path = tmp_path / "result.json"
    path.write_text("\n".join(json.dumps(v) for v in value) + "\n" if lines else json.dumps(value))
    return import_file(path)


def codes(run):
    """The codes of a run's findings."""
    return {f.code for f in run.header.findings}


def test_vllm(tmp_path):
    """TTFT and every gap; an error is a failed row; more tokens than chunks are shared out; throughput by its own duration."""
    (run,) = read(tmp_path, VLLM)
    a, b, c = sorted(run.rows, key=lambda row: row.id)
    assert (a.ttft_s, [round(g, 9) for g in a.itl_s], a.osl) == (0.1, [0.01, 0.02], 3)
    assert (b.chunk_tok, b.osl, len(b.itl_s)) == ((2, 1, 1), 4, 2)
    assert (c.status, c.error, c.ttft_s) == ("http_error", "HTTP 500", None)
    summary = summarize(run)
    assert (summary.duration_s, summary.output_tok_per_s, summary.failed) == (4.0, 7 / 4, 1)
    header = run.header
    assert (header.clock, header.kind, header.model, header.workload_sha256) == ("imported", "measured", "qwen", "")
    assert header.load["concurrency"] == 2 and header.load["kind"] == "closed"
    assert codes(run) == {"no_due_times", "no_start_times"}


def test_vllm_with_start_times(tmp_path):
    """Newer files say when each began: arrivals are then known."""
    (run,) = read(tmp_path, VLLM | {"start_times": [50.0, 51.0, 52.0], "request_rate": 1.0, "max_concurrency": None})
    assert sorted(row.due_s for row in run.rows) == [0.0, 1.0, 2.0]
    assert codes(run) == {"no_due_times"}
    assert run.header.load["rate_req_per_s"] == 1.0


def test_guidellm(tmp_path):
    """A run a benchmark; TTFT from the due time; TPOT from first and last token; no gap is made up."""
    runs = read(tmp_path, guidellm())
    assert len(runs) == 2
    good, bad = runs[0].rows
    assert (round(good.ttft_s, 9), round(good.ttft_from_send_s, 9), round(good.tpot_s, 9)) == (0.5, 0.4, 0.1)
    assert good.itl_s == () and summarize(runs[0]).itl_s.n == 0
    assert (bad.status, bad.error, bad.due_s) == ("http_error", "boom", 2.0)
    assert runs[0].header.load["concurrency"] == 4 and runs[0].header.model == "qwen"
    assert codes(runs[0]) == {"gaps_not_recorded"}


def test_aiperf(tmp_path):
    """Records of a JSONL file: with the chunks' gaps where they were exported, first and last where not; cancelled is cancelled."""
    (run,) = read(tmp_path, AIPERF, lines=True)
    full, thin, cut = sorted(run.rows, key=lambda row: row.id)
    assert (full.due_s, full.ttft_s, [round(g, 9) for g in full.itl_s], full.done_s) == (0.0, 0.1, [0.01, 0.02], 0.4)
    assert (thin.due_s, round(thin.ttft_s, 9), round(thin.tpot_s, 9), thin.itl_s) == (1.0, 0.2, 0.005, ())
    assert (cut.status, cut.http_status, cut.error, cut.isl) == ("cancelled", 499, "cancelled", 50)
    assert codes(run) == {"no_due_times", "gaps_not_recorded"}


def test_llama_bench(tmp_path):
    """A row a repetition; the paces are the server's own times; no TTFT is made up; a list or lines."""
    (run,) = read(tmp_path, LLAMA_BENCH)
    assert [(row.id, row.server) for row in run.rows] == [
        ("pp512-0", {"prefill_s": 1.0}), ("pp512-1", {"prefill_s": 2.0}), ("tg128@d64-0", {"decode_s": 4.0}),
    ]  # fmt: skip
    assert summarize(run).ttft_s.n == 0 and summarize(run).output_tok_per_s is None
    assert run.header.engine["build"] == "9000"
    assert len(read(tmp_path, LLAMA_BENCH, lines=True)[0].rows) == 3


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"hello": 1}, "is no result file that servefit knows"),
        ([], "is no result file that servefit knows"),
        (17, "is no result file that servefit knows"),
        (VLLM | {"ttfts": []}, "is a file of vLLM bench serve without any request"),
        ({"benchmarks": [{"no": "requests"}]}, "looks like a file of guidellm, but 'requests' is missing"),
        ([{"metadata": {}, "metrics": {}}], "looks like a file of aiperf, but 'request_start_ns' is missing"),
        ([AIPERF[0] | {"metrics": {"time_to_first_token": {"value": 1.0, "unit": "h"}}}], "a time has the unit 'h'"),
        ([LLAMA_BENCH[0] | {"samples_ns": ["x"]}], "looks like a file of llama-bench"),
    ],
)
def test_what_is_none_of_these_is_one_sentence(tmp_path, value, words):
    """The file and what is wrong with it; the hint names what can be read."""
    with pytest.raises(ServefitError) as error:
        read(tmp_path, value)
    assert words in error.value.message and error.value.hint


def test_damage(tmp_path):
    """Neither JSON nor JSONL is said with its line; a torn last line of a JSONL file is dropped."""
    path = tmp_path / "x.jsonl"
    path.write_text("not json\n{}")
    with pytest.raises(ServefitError, match="neither JSON nor JSONL: line 1"):
        import_file(path)
    path.write_text("\n".join(json.dumps(v) for v in AIPERF) + '\n{"metadata": {"requ')
    assert len(import_file(path)[0].rows) == 3


def test_the_summary_of_aiperf_leads_to_its_records(tmp_path):
    """A summary has no request: the records beside it are imported, and where there are none a sentence names them."""
    summary = tmp_path / "profile_export_aiperf.json"
    summary.write_text(json.dumps({"request_latency": {"unit": "ms", "avg": 900.0, "p50": 900.0}}), encoding="utf-8")
    with pytest.raises(ServefitError, match="aiperf's summary") as caught:
        import_file(summary)
    assert "profile_export.jsonl" in (caught.value.hint or "")
    record = {
        "metadata": {"benchmark_phase": "profiling", "request_start_ns": 1_000, "request_end_ns": 900_001_000},
        "metrics": {
            "request_latency": {"value": 900.0, "unit": "ms"},
            "time_to_first_token": {"value": 100.0, "unit": "ms"},
        },
    }
    (tmp_path / "profile_export.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    (run,) = import_file(summary)
    assert len(run.rows) == 1 and run.rows[0].isl is None
