"""What the server says of itself, before and after the load: the counters of vLLM's, SGLang's and llama.cpp's /metrics.

Put beside our own figures, never in their place: queue, prefill and decode time, cached tokens, preemptions, KV use.
"""

from typing import Any

from servefit.measure.probe import Endpoint, ask_once
from servefit.wire.client import Client, Limits

_COUNTERS = {
    "vllm:request_queue_time_seconds_sum": "queue_s",
    "vllm:request_prefill_time_seconds_sum": "prefill_s",
    "vllm:request_decode_time_seconds_sum": "decode_s",
    "vllm:time_to_first_token_seconds_sum": "ttft_s",
    "vllm:time_to_first_token_seconds_count": "ttft_n",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prompt_tokens_total": "prompt_tok",
    "vllm:generation_tokens_total": "output_tok",
    "vllm:prefix_cache_queries_total": "cache_queries_tok",
    "vllm:prefix_cache_hits_total": "cache_hits_tok",
    "llamacpp:prompt_tokens_total": "prompt_tok",
    "llamacpp:prompt_seconds_total": "prefill_s",
    "llamacpp:tokens_predicted_total": "output_tok",
    "llamacpp:tokens_predicted_seconds_total": "decode_s",
    "llamacpp:n_decode_total": "decode_calls",
    "sglang:prompt_tokens_total": "prompt_tok",
    "sglang:generation_tokens_total": "output_tok",
    "sglang:cached_tokens_total": "cached_tok",
    "sglang:time_to_first_token_seconds_sum": "ttft_s",
    "sglang:time_to_first_token_seconds_count": "ttft_n",
}
_GAUGES = {
    "vllm:kv_cache_usage_perc": "kv_used_frac",
    "vllm:gpu_cache_usage_perc": "kv_used_frac",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "llamacpp:kv_cache_usage_ratio": "kv_used_frac",
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:n_busy_slots_per_decode": "busy_seats_mean",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv_used_frac",
    "sglang:cache_hit_rate": "cache_hit_frac",
}


def read_metrics(text: str) -> dict[str, float]:
    r"""The counters and gauges that we know, by our names, summed over their labels.

    >>> read_metrics('vllm:prompt_tokens_total{model="m"} 5.0\nvllm:prompt_tokens_total{model="n"} 2\nother 1')
    {'prompt_tok': 7.0}
    """
    out: dict[str, float] = {}
    known = {**_COUNTERS, **_GAUGES}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if name not in known:
            continue
        try:
            value = float(line.rsplit(" ", 1)[-1])
        except ValueError:
            continue
        out[known[name]] = out.get(known[name], 0.0) + value
    return out


def ask_metrics(endpoint: Endpoint) -> dict[str, float]:
    """The server's counters now; empty where it has none, and for paid targets, which are not asked."""
    if endpoint.paid or endpoint.engine.get("name") not in {"vllm", "llama.cpp", "sglang"}:
        return {}
    client = Client(endpoint.address, limits=Limits(connect_s=2.0, silent_s=3.0, total_s=5.0))
    try:
        exchange = ask_once(client, endpoint.get_wire("/metrics"))
    finally:
        client.close()
    if exchange.http_status != 200:
        return {}
    return read_metrics(bytes(exchange.body).decode("utf-8", "replace"))


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """What the load added to each counter, and the gauges as they were after it; empty where nothing was told."""
    counters = set(_COUNTERS.values())
    return {
        name: round(value - before.get(name, 0.0), 6) if name in counters else value for name, value in after.items()
    }
