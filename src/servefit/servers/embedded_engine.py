"""The embedded engine itself: OpenVINO GenAI in a process of its own, spoken to in JSON lines over its pipes.

`step()` holds the interpreter's lock for as long as it computes, so whoever shares a process with it sees tokens in
bursts. Here nobody does: the HTTP front (`embedded.py`) runs next door, and this process does nothing but admit, step
and tell. Admission is ours (the policy), the paged scheduler, chunking and the prefix cache are the engine's.

In, one JSON object a line:   submit {id, tokens | text | messages, max_tok, ...}, cancel {id}, tokenize {id, text},
                              detokenize {id, tokens}, stats {id}
Out:                          ready {...}, accepted {id, prompt_tok}, refused {id, status, message},
                              out {id, text, tok, finish, timings}, answer {id, ...}
"""

import codecs
import json
import os
import resource
import select
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a policy sees before a step: who waits, who computes."""

    waiting: int
    running: int
    seats: int
    oldest_wait_s: float
    timeout_s: float


Admit = Callable[[Line], int]
"""How many of the waiting are seated before the next step."""


def admit_one(line: Line) -> int:
    """One at a time: the next is seated when the last has left."""
    return min(line.waiting, 1) if line.running == 0 else 0


def admit_batch(line: Line) -> int:
    """A whole batch, when the last one has left altogether, and `seats` wait or the oldest has waited `timeout_s`.

    >>> admit_batch(Line(waiting=3, running=0, seats=4, oldest_wait_s=0.01, timeout_s=0.05))
    0
    >>> admit_batch(Line(waiting=3, running=0, seats=4, oldest_wait_s=0.05, timeout_s=0.05))
    3
    """
    ready = line.waiting >= line.seats or (line.waiting > 0 and line.oldest_wait_s >= line.timeout_s)
    return min(line.waiting, line.seats) if line.running == 0 and ready else 0


def admit_free(line: Line) -> int:
    """Every free seat is filled at once."""
    return min(line.waiting, line.seats - line.running)


ADMIT: Final[dict[str, Admit]] = {
    "none": admit_one,
    "static": admit_batch,
    "dynamic": admit_batch,
    "continuous": admit_free,
    "chunked": admit_free,
}
"""The admission rule of each policy. "chunked" also splits prompts into its token budget, the others never do."""


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request inside this process: state that changes."""

    id: int
    tokens: list[int]
    options: dict[str, Any]
    arrived_s: float
    handle: Any = None
    seated_s: float = 0.0
    first_s: float | None = None
    out_tok: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


class Pipes:
    """Our end of the two pipes: lines in without waiting longer than asked, lines out whole."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink, self.rest, self.closed = source, sink, b"", False
        os.set_blocking(source, False)

    def lines(self, wait_s: float | None) -> list[dict[str, Any]]:
        """The messages that have come, after at most `wait_s` (None: until one comes or the pipe closes)."""
        if not self.closed and select.select([self.source], [], [], wait_s)[0]:
            while True:
                try:
                    data = os.read(self.source, 1 << 18)
                except BlockingIOError:
                    break
                if not data:
                    self.closed = True
                    break
                self.rest += data
        *whole, self.rest = self.rest.split(b"\n")
        return [json.loads(line) for line in whole]

    def tell(self, message: dict[str, Any]) -> None:
        """One message out."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(self.sink, data) :]


@contextmanager
def writable(file: Path) -> Iterator[Path]:
    """The file, or a copy of it for as long as the engine loads it, where this user may only read it.

    OpenVINO GenAI 2026.4 opens a GGUF file for reading and writing, though it writes nothing: a package that root installed fails.
    """
    if os.access(file, os.W_OK):
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="servefit-model-") as folder:
        copy = Path(folder) / file.name
        shutil.copyfile(file, copy)
        yield copy


class Engine:
    """The pipeline with its waiting line and its seats."""

    def __init__(self, config: dict[str, Any], pipes: Pipes) -> None:
        import openvino
        import openvino_genai as genai

        self.genai, self.tensor, self.pipes, self.config = genai, openvino.Tensor, pipes, config
        self.seats = 1 if config["policy"] == "none" else int(config["seats"])
        self.admit = ADMIT[config["policy"]]
        with writable(Path(config["model_file"])) as file:
            self.pipeline = genai.ContinuousBatchingPipeline(
                str(file), self._scheduler(), "CPU", {"INFERENCE_NUM_THREADS": int(config["threads"])}
            )
        self.tokenizer = self.pipeline.get_tokenizer()
        self.pieces = {i: bytes(piece) for piece, i in self.tokenizer.get_vocab().items()}
        self.special = {
            i for i, p in self.pieces.items() if p[:1] == b"<" and p[-1:] == b">" and not self.tokenizer.decode([i])
        }
        self.eos_id = int(self.tokenizer.get_eos_token_id())
        self.waiting: deque[Asked] = deque()
        self.running: dict[int, Asked] = {}
        self.totals = {"requests": 0, "prompt_tok": 0, "output_tok": 0, "cancelled": 0, "steps": 0, "step_s": 0.0}
        self.steps: deque[tuple[float, float, int, int]] = deque(maxlen=8192)

    def _scheduler(self) -> Any:
        c, s = self.config, self.genai.SchedulerConfig()
        s.max_num_seqs = self.seats
        s.dynamic_split_fuse = c["policy"] == "chunked"
        s.max_num_batched_tokens = int(c["budget_tok"])
        s.num_kv_blocks = int(c["kv_blocks"])
        s.enable_prefix_caching = bool(c["prefix_cache"])
        return s

    def serve(self) -> None:
        """Until the pipe closes: read what came, seat who may, step, tell."""
        while not self.pipes.closed:
            for message in self.pipes.lines(self._patience()):
                self._take(message)
            self._seat()
            if self.running:
                self._step()

    def _patience(self) -> float | None:
        if self.running:
            return 0.0
        if self.waiting:
            left = float(self.config["timeout_s"]) - (time.monotonic() - self.waiting[0].arrived_s)
            return max(0.0, left)
        return None

    def _take(self, m: dict[str, Any]) -> None:
        if m["op"] == "submit":
            self._submit(m)
        elif m["op"] == "cancel":
            self._cancel(m["id"])
        elif m["op"] == "tokenize":
            ids = self._encode(m["text"], special=bool(m.get("special")))
            self.pipes.tell({"ev": "answer", "id": m["id"], "tokens": ids})
        elif m["op"] == "detokenize":
            known = [self.pieces.get(int(i), b"") for i in m["tokens"]]
            self.pipes.tell({"ev": "answer", "id": m["id"], "text": b"".join(known).decode("utf-8", "replace")})
        elif m["op"] == "stats":
            self.pipes.tell({"ev": "answer", "id": m["id"], **self.stats()})

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and what is in memory now."""
        metrics = self.pipeline.get_metrics()
        pool_bytes = int(metrics.kv_cache_size_in_bytes)
        return {
            **self.totals, "running": len(self.running), "waiting": len(self.waiting),
            "kv_used_frac": metrics.cache_usage / 100.0, "kv_pool_bytes": pool_bytes or None,
            "kv_bytes_per_tok": pool_bytes / (int(self.config["kv_blocks"]) * int(self.config["block_tok"])) if pool_bytes else None,
            "rss_max_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "recent_steps": list(self.steps),
        }  # fmt: skip

    def _encode(self, text: str, *, special: bool) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=special).input_ids.data
        return [int(i) for i in ids.reshape(-1)]

    def _tokens(self, m: dict[str, Any]) -> list[int]:
        if "tokens" in m:
            return [int(i) for i in m["tokens"]]
        if "messages" in m:
            text = self.tokenizer.apply_chat_template(m["messages"], add_generation_prompt=True)
            return self._encode(text, special=False)
        return self._encode(m["text"], special=True)

    def _submit(self, m: dict[str, Any]) -> None:
        try:
            tokens = self._tokens(m)
        except Exception as error:  # noqa: BLE001 - whatever the template or the tokenizer cannot read
            return self._refuse(m["id"], "invalid_request_error", f"The prompt cannot be read: {_first_line(error)}.")
        if not tokens:
            return self._refuse(m["id"], "invalid_request_error", "The prompt is empty: at least one token is needed.")
        if odd := [i for i in tokens if i not in self.pieces]:
            return self._refuse(m["id"], "invalid_request_error", f"The token id {odd[0]} is not in the vocabulary.")
        context = int(self.config["context_tok"])
        asked = m.get("max_tok")
        room = context - len(tokens)
        if room < (asked or 1):
            text = f"The context length is {context} tokens; this request has {len(tokens)} in its prompt and asks for {asked or 1} more."
            return self._refuse(m["id"], "context_length_exceeded", text, n_prompt_tokens=len(tokens), n_ctx=context)
        options = {**m, "max_tok": asked or room}
        self.pipes.tell({"ev": "accepted", "id": m["id"], "prompt_tok": len(tokens)})
        self.waiting.append(Asked(id=m["id"], tokens=tokens, options=options, arrived_s=time.monotonic()))
        return None

    def _refuse(self, who: int, code: str, message: str, **more: int) -> None:
        self.pipes.tell({"ev": "refused", "id": who, "status": 400, "code": code, "message": message, **more})

    def _cancel(self, who: int) -> None:
        self.waiting = deque(a for a in self.waiting if a.id != who)
        if asked := self.running.pop(who, None):
            asked.handle.cancel()
            self.totals["cancelled"] += 1

    def _generation(self, o: dict[str, Any]) -> Any:
        g = self.genai.GenerationConfig()
        g.max_new_tokens = int(o["max_tok"])
        g.min_new_tokens = min(int(o.get("min_tok") or 0), g.max_new_tokens)
        g.ignore_eos = bool(o.get("ignore_eos"))
        g.eos_token_id = self.eos_id
        g.stop_token_ids = {self.eos_id}
        if float(o.get("temperature") or 0.0) > 0.0:
            g.do_sample = True
            g.temperature = float(o["temperature"])
            g.top_p = float(o.get("top_p") or 1.0)
            if o.get("top_k"):
                g.top_k = int(o["top_k"])
            if o.get("seed") is not None:
                g.rng_seed = int(o["seed"]) % 2**32
        return g

    def _seat(self) -> None:
        now = time.monotonic()
        oldest = now - self.waiting[0].arrived_s if self.waiting else 0.0
        line = Line(
            waiting=len(self.waiting),
            running=len(self.running),
            seats=self.seats,
            oldest_wait_s=oldest,
            timeout_s=float(self.config["timeout_s"]),
        )
        import numpy as np

        for _ in range(self.admit(line)):
            asked = self.waiting.popleft()
            ids = self.tensor(np.asarray([asked.tokens], dtype=np.int64))
            asked.handle = self.pipeline.add_request(asked.id, ids, self._generation(asked.options))
            asked.seated_s = now
            self.running[asked.id] = asked

    def _step(self) -> None:
        started = time.monotonic()
        self.pipeline.step()
        now = time.monotonic()
        first = told = 0
        for asked in list(self.running.values()):
            status = asked.handle.get_status()
            done = status != self.genai.GenerationStatus.RUNNING
            if asked.handle.can_read():
                first += asked.first_s is None
                for output in asked.handle.read().values():
                    told += len(output.generated_ids)
                    self._tell_tokens(asked, list(output.generated_ids), now, output.finish_reason if done else None)
            elif done:
                self._tell_tokens(asked, [], now, self.genai.GenerationFinishReason.STOP)
            if done:
                del self.running[asked.id]
        self.totals["steps"] += 1
        self.totals["step_s"] += now - started
        self.steps.append((round(started, 6), round(now - started, 6), first, told))

    def _tell_tokens(self, asked: Asked, ids: list[int], now: float, finish: Any) -> None:
        if asked.first_s is None and ids:
            asked.first_s = now
        asked.out_tok += len(ids)
        shown = bool(asked.options.get("ignore_eos"))
        raw = b"".join(b"" if i in self.special and not shown else self.pieces.get(i, b"") for i in ids)
        message = {"ev": "out", "id": asked.id, "text": asked.decoder.decode(raw, finish is not None), "tok": len(ids)}
        if finish is not None:
            length = finish == self.genai.GenerationFinishReason.LENGTH
            first = asked.first_s if asked.first_s is not None else now
            message["finish"] = "length" if length else "stop"
            message["timings"] = {
                "queue_s": round(asked.seated_s - asked.arrived_s, 6),
                "prefill_s": round(first - asked.seated_s, 6),
                "decode_s": round(now - first, 6),
            }
            self.totals["requests"] += 1
            self.totals["prompt_tok"] += len(asked.tokens)
            self.totals["output_tok"] += asked.out_tok
        self.pipes.tell(message)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")


def main() -> None:
    """Serve on standard input and output until the input closes. The engine's own chatter goes to standard error."""
    from servefit.servers.lifeline import die_with_parent

    die_with_parent()
    sink = os.dup(1)
    os.dup2(2, 1)
    pipes = Pipes(0, sink)
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # it stays off: importing it fails, as if absent
    try:
        started = time.monotonic()
        engine = Engine(json.loads(sys.argv[1]), pipes)
        import openvino_genai

        ready = {"build": openvino_genai.__version__, "load_s": round(time.monotonic() - started, 3)}
    except Exception as error:  # noqa: BLE001 - a damaged file, too little memory: told to the front, which says it
        pipes.tell({"ev": "failed", "message": _first_line(error)})
        return
    pipes.tell({"ev": "ready", "seats": engine.seats, **ready})
    engine.serve()


if __name__ == "__main__":
    main()
