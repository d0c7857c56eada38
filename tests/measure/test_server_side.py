"""The server's own counters are read by name, summed over labels and told as differences."""

from servefit.measure.server_side import difference, read_metrics

VLLM = """# HELP vllm:prompt_tokens_total x
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 20.0
vllm:num_requests_waiting{engine="0"} 3.0
vllm:request_queue_time_seconds_sum{engine="0"} 1.5
vllm:request_queue_time_seconds_sum broken
python_gc_objects_collected_total 7
"""


def test_known_names_are_summed_over_labels():
    """Two engines are one server; a broken line and a foreign counter are passed over."""
    assert read_metrics(VLLM) == {"prompt_tok": 120.0, "waiting": 3.0, "queue_s": 1.5}


def test_counters_are_differences_and_gauges_are_not():
    """What the load added, and how things stand after it."""
    after = read_metrics(VLLM.replace("100.0", "160.0"))
    assert difference(read_metrics(VLLM), after) == {"prompt_tok": 60.0, "waiting": 3.0, "queue_s": 0.0}
    assert difference({}, {}) == {}


def test_sglang_has_the_same_names_for_us():
    """SGLang's counters and gauges are told by the names that vLLM's have here."""
    text = 'sglang:num_queue_reqs{model_name="m"} 3.0\nsglang:token_usage{model_name="m"} 0.25\nsglang:prompt_tokens_total 8128.0\n'
    assert read_metrics(text) == {"waiting": 3.0, "kv_used_frac": 0.25, "prompt_tok": 8128.0}
