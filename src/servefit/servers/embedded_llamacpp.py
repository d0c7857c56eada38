"""The second engine: an unmodified llama.cpp server, from the xllamacpp wheel, in a process of its own.

Run by `engines.start` as `python -m servefit.servers.embedded_llamacpp CONFIG`; prints one JSON line when it is ready. Its
protocol, its scheduler and its numbers are llama.cpp's own; a policy here is a set of llama.cpp's own switches.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from servefit.servers.lifeline import watch


def params(config: dict[str, Any], xllamacpp: Any) -> Any:
    """llama.cpp's parameters for our switches. The context is asked for once per seat; all seats share one KV cache.

    A smaller cache (`kv_tok`) can run out: llama.cpp then breaks off every answer that is being written.

    That is what llama-server does unless it is told how many slots it has (and with --kv-unified). With one cache a slot,
    only requests in neighbouring slots would be computed together.
    """
    seats = 1 if config["policy"] == "none" else int(config["seats"])
    p = xllamacpp.CommonParams()
    p.model.path = config["model_file"]
    p.model_alias = {config["model"]}
    p.n_ctx = int(config.get("kv_tok") or int(config["context_tok"]) * seats)
    p.n_parallel = seats
    p.kv_unified = True
    p.kv_unified_per_slot = int(config["context_tok"])
    p.cont_batching = config["policy"] != "static"
    p.n_batch = p.n_ubatch = int(config["budget_tok"])
    p.hostnames, p.port = [config["host"]], int(config["port"])
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(config["threads"])
    p.endpoint_metrics = p.endpoint_slots = p.endpoint_props = True
    p.cache_prompt = bool(config["prefix_cache"])
    p.cache_ram_mib = 0
    p.warmup = True
    if config.get("speculation") == "ngram":
        p.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    return p


def main() -> None:
    """Serve until the lifeline closes, or SIGTERM, or SIGINT. llama.cpp's own log goes to standard error."""
    config = json.loads(sys.argv[1])
    sink = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    if config.get("lifeline") is not None:
        # the server's threads cannot be asked to stop while a prompt is computed, and nothing is lost by ending at once
        watch(config["lifeline"], lambda: os._exit(0))
    import xllamacpp

    started = time.monotonic()
    try:
        server = xllamacpp.Server(params(config, xllamacpp))
        url = str(server.listening_address)
    except Exception as error:  # noqa: BLE001 - whatever the library raises is told in one line
        print(json.dumps({"error": str(error).strip() or type(error).__name__}), file=sink, flush=True)
        os._exit(1)
    seats = 1 if config["policy"] == "none" else int(config["seats"])
    about = {k: v for k, v in config.items() if k != "lifeline"}
    ready = {**about, "url": url, "port": int(url.rsplit(":", 1)[1]), "engine": "llama.cpp", "seats": seats,
             "build": build(xllamacpp), "load_s": round(time.monotonic() - started, 3), "pid": os.getpid()}  # fmt: skip
    print(json.dumps(ready), file=sink, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        ended.wait()
    os._exit(0)  # its threads have nothing to save, and joining them can wait for a whole prompt


def build(xllamacpp: Any) -> str:
    """The wheel's version; llama.cpp's own build stamp is unknown in this wheel."""
    from importlib.metadata import version

    return f"xllamacpp {version('xllamacpp')} ({getattr(xllamacpp, 'BUILD_INFO', 'build unknown')})"


if __name__ == "__main__":
    main()
