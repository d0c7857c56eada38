"""The embedded server: OpenAI's routes in front of OpenVINO GenAI, which computes in a process of its own.

Run by `engines.start` as `python -m servefit.servers.embedded CONFIG`; it prints one JSON line when it is ready (or why it
is not) and ends when its lifeline closes, or on SIGTERM or SIGINT.

Beyond OpenAI's protocol, said in every answer's own fields:
    - every token is a chunk of its own; a chunk whose token ends inside a character has an empty text and `"held_tok": 1`,
      and the chunk that completes the character says how many tokens it shows, `"shown_tok": k`
    - the last chunk has `timings`: queue_s (waiting for a seat), prefill_s (seated to first token), decode_s (first to last)
    - `ignore_eos`, `min_tokens`, token-id prompts, /tokenize, /detokenize, /props, /metrics, /steps
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from servefit.servers.embedded_http import MAX_HEAD_BYTES, Answer, HttpFault, HttpRequest, serve_connection

Event = dict[str, Any]


@dataclass(slots=True)
class Front:
    """The server's side of the pipe: who waits for which answers."""

    config: dict[str, Any]
    engine: asyncio.subprocess.Process
    ready: Event = field(default_factory=dict)
    inbox: dict[int, asyncio.Queue[Event]] = field(default_factory=dict)
    last_id: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self, op: str, **fields: Any) -> tuple[int, asyncio.Queue[Event]]:
        """Send a message to the engine; its events arrive in the queue until `forget`."""
        if self.stopping.is_set():
            raise HttpFault(503, "The engine has stopped.", "engine_stopped")
        self.last_id += 1
        queue = self.inbox[self.last_id] = asyncio.Queue()
        self._send({"op": op, "id": self.last_id, **fields})
        return self.last_id, queue

    def forget(self, who: int, *, cancel: bool) -> None:
        """No more events are wanted; `cancel` frees the seat."""
        if self.inbox.pop(who, None) is not None and cancel:
            self._send({"op": "cancel", "id": who})

    def _send(self, message: Event) -> None:
        assert self.engine.stdin is not None, "the engine was started with pipes"
        self.engine.stdin.write(json.dumps(message).encode() + b"\n")

    async def once(self, op: str, **fields: Any) -> Event:
        """One question, one answer."""
        who, queue = self.ask(op, **fields)
        event = await queue.get()
        self.inbox.pop(who, None)
        return event

    async def pump(self) -> None:
        """Events from the engine to whoever waits for them, until it ends; then everyone is told."""
        assert self.engine.stdout is not None, "the engine was started with pipes"
        while line := await self.engine.stdout.readline():
            event = json.loads(line)
            if queue := self.inbox.get(event.get("id", 0)):
                queue.put_nowait(event)
        self.stopping.set()
        for queue in self.inbox.values():
            queue.put_nowait(
                {"ev": "refused", "status": 503, "code": "engine_stopped", "message": "The engine has stopped."}
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One completion as asked, after its fields were checked."""

    chat: bool
    stream: bool
    include_usage: bool
    stop: tuple[str, ...]
    model: str
    asked: dict[str, Any]


def _number(body: dict[str, Any], name: str, low: float, high: float, *, whole: bool = False) -> Any:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not low <= value <= high:
        raise HttpFault(
            400, f"{name} is {value!r}; it must be {'a whole number ' if whole else ''}from {low:g} to {high:g}."
        )
    return value


def read_job(body: dict[str, Any], config: dict[str, Any], *, chat: bool) -> Job:
    """The completion that `body` asks for. Raises HttpFault 400 or 404 with the field and its value."""
    model = body.get("model", config["model"])
    if model != config["model"]:
        raise HttpFault(404, f"The model '{model}' is not served here; '{config['model']}' is.", "model_not_found")
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            raise HttpFault(400, f"{name} is {body[name]!r}; this server gives one choice a request.")
    limit = int(config["context_tok"])
    new = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    max_tok = _number(body, new, 1, 10**9, whole=True)
    asked = {
        "max_tok": max_tok if max_tok is not None or chat else 16,
        "min_tok": _number(body, "min_tokens", 0, limit, whole=True),
        "ignore_eos": bool(body.get("ignore_eos")),
        "temperature": _number(body, "temperature", 0, 100),
        "top_p": _number(body, "top_p", 1e-9, 1),
        "top_k": _number(body, "top_k", 0, 10**9, whole=True),
        "seed": _number(body, "seed", -(2**63), 2**63, whole=True),
        **(_messages(body) if chat else _prompt(body)),
    }
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or any(not isinstance(s, str) or not s for s in stop):
        raise HttpFault(400, "stop must be a text, or a list of texts.")
    options = body.get("stream_options") or {}
    usage = bool(options.get("include_usage")) if isinstance(options, dict) else False
    return Job(
        chat=chat, stream=bool(body.get("stream")), include_usage=usage, stop=tuple(stop), model=model, asked=asked
    )


def _messages(body: dict[str, Any]) -> dict[str, Any]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise HttpFault(400, "messages must be a list with at least one message.")
    read = []
    for m in messages:
        content = m.get("content") if isinstance(m, dict) else None
        if isinstance(content, list):
            content = "".join(p.get("text", "") for p in content if isinstance(p, dict) and p.get("type") == "text")
        if not isinstance(content, str) or not isinstance(m.get("role"), str):
            raise HttpFault(400, "Each message needs a role and a content, both texts.")
        read.append({"role": m["role"], "content": content})
    return {"messages": read}


def _prompt(body: dict[str, Any]) -> dict[str, Any]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list | str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return {"text": prompt}
    if isinstance(prompt, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in prompt):
        return {"tokens": prompt}
    raise HttpFault(400, "prompt must be a text, or one list of token ids.")


class Voice:
    """Turns the engine's tokens into OpenAI's objects, and cuts at the stop texts."""

    def __init__(self, job: Job, who: int) -> None:
        self.job, self.text, self.held, self.kept_tok = job, "", "", 0
        self.head = {
            "id": f"{'chatcmpl' if job.chat else 'cmpl'}-{who}",
            "object": ("chat.completion" if job.chat else "text_completion")
            + (".chunk" if job.chat and job.stream else ""),
            "created": int(time.time()),
            "model": job.model,
        }

    def hear(self, text: str, *, last: bool) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop text was found: it and what follows are not shown."""
        if not self.job.stop:
            return text, False
        self.held += text
        found = [i for i in (self.held.find(s) for s in self.job.stop) if i >= 0]
        if found:
            return self.held[: min(found)], True
        keep = 0
        if not last:
            tails = range(1, min(len(self.held), max(map(len, self.job.stop))) + 1)
            keep = max((k for k in tails if any(s.startswith(self.held[-k:]) for s in self.job.stop)), default=0)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown, False

    def chunk(self, text: str | None, finish: str | None, **more: Any) -> str:
        """One event of the stream; `text` None is the role-only chunk."""
        if self.job.chat:
            delta: dict[str, Any] = {} if finish and not text else {"content": text}
            if text is None:
                delta = {"role": "assistant", "content": ""}
            choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
        else:
            choice = {"index": 0, "text": text, "finish_reason": finish}
        return json.dumps({**self.head, "choices": [{**choice, "logprobs": None}], **more}, ensure_ascii=False)

    def usage_chunk(self, usage: dict[str, Any]) -> str:
        """The event with the counts and no choice, sent where the client asked for it."""
        return json.dumps({**self.head, "choices": [], "usage": usage})

    def whole(self, text: str, finish: str, usage: dict[str, Any], timings: dict[str, float] | None) -> dict[str, Any]:
        """The whole answer."""
        said = {"message": {"role": "assistant", "content": text}} if self.job.chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": finish, "logprobs": None}
        return {**self.head, "choices": [choice], "usage": usage, "timings": timings}


async def complete(front: Front, request: HttpRequest, answer: Answer, *, chat: bool) -> None:
    """POST /v1/chat/completions and /v1/completions."""
    job = read_job(request.json(), front.config, chat=chat)
    who, queue = front.ask("submit", **job.asked)
    try:
        first = await _next(queue, answer)
        if first is None:
            return
        if first["ev"] == "refused":
            more = {k: v for k, v in first.items() if k.startswith("n_")}
            raise HttpFault(first["status"], first["message"], first["code"], **more)
        await _speak(front, Voice(job, who), queue, first["prompt_tok"], answer)
    finally:
        front.forget(who, cancel=True)


async def _next(queue: asyncio.Queue[Event], answer: Answer) -> Event | None:
    """The engine's next event; None as soon as the client is gone."""
    while not answer.client_gone:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(queue.get(), 0.2) if queue.empty() else queue.get_nowait()
    return None


async def _speak(front: Front, voice: Voice, queue: asyncio.Queue[Event], prompt_tok: int, answer: Answer) -> None:
    job, parts, out_tok = voice.job, [], 0
    timings: dict[str, float] | None = None
    finish: str | None = None
    while finish is None:
        event = await _next(queue, answer)
        if event is None:
            return
        if event["ev"] == "refused":
            if job.stream and answer.begun:
                answer.events(json.dumps(HttpFault(503, event["message"], event["code"]).body()))
                answer.end_events()
                return
            raise HttpFault(event["status"], event["message"], event["code"])
        finish, timings = event.get("finish"), event.get("timings")
        out_tok += event["tok"]
        text, stopped = voice.hear(event["text"], last=finish is not None)
        if stopped:
            finish = "stop"
        parts.append(text)
        if job.stream:
            _stream_token(voice, answer, text, event["tok"])
            await answer.writer.drain()
    usage: dict[str, Any] = {
        "prompt_tokens": prompt_tok,
        "completion_tokens": out_tok,
        "total_tokens": prompt_tok + out_tok,
    }
    if not front.config["prefix_cache"]:
        usage["prompt_tokens_details"] = {"cached_tokens": 0}  # with a cache the engine does not tell: left out
    if job.stream:
        answer.events(
            voice.chunk("", finish, timings=timings),
            *([voice.usage_chunk(usage)] if job.include_usage else []),
            "[DONE]",
        )
        answer.end_events()
    else:
        answer.json(200, voice.whole("".join(parts), finish, usage, timings))


def _stream_token(voice: Voice, answer: Answer, text: str, tok: int) -> None:
    if not answer.begun:
        answer.begin_events()
        if voice.job.chat:
            answer.events(voice.chunk(None, None))
    if not tok and not text:
        return
    voice.kept_tok += tok
    if not text:
        answer.events(voice.chunk("", None, held_tok=tok))
        return
    more = {} if voice.kept_tok == 1 else {"shown_tok": voice.kept_tok}
    answer.events(voice.chunk(text, None, **more))
    voice.kept_tok = 0


async def route(front: Front, request: HttpRequest, answer: Answer) -> None:
    """One request to its answer."""
    posts = {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}
    gets = {"/health", "/v1/models", "/props", "/metrics", "/steps", "/"}
    if request.path not in posts | gets:
        raise HttpFault(404, f"There is no route {request.path} here.", "not_found")
    if request.method != ("POST" if request.path in posts else "GET"):
        raise HttpFault(405, f"{request.path} does not take {request.method}.", "method_not_allowed")
    if request.path.endswith("completions"):
        await complete(front, request, answer, chat="chat" in request.path)
    elif request.path == "/tokenize":
        body = request.json()
        text = body.get("content", body.get("prompt"))
        if not isinstance(text, str):
            raise HttpFault(400, "content must be a text.")
        done = await front.once("tokenize", text=text, special=bool(body.get("add_special")))
        answer.json(200, {"tokens": done["tokens"], "count": len(done["tokens"])})
    elif request.path == "/detokenize":
        tokens = request.json().get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(i, int) for i in tokens):
            raise HttpFault(400, "tokens must be a list of token ids.")
        answer.json(200, {"content": (await front.once("detokenize", tokens=tokens))["text"]})
    elif request.path == "/v1/models":
        about = {"id": front.config["model"], "object": "model", "owned_by": "servefit", "created": 0}
        answer.json(200, {"object": "list", "data": [{**about, "max_model_len": front.config["context_tok"]}]})
    else:
        await _status(front, request.path, answer)


async def _status(front: Front, path: str, answer: Answer) -> None:
    if path == "/health":
        answer.json(200, {"status": "ok"})
        return
    stats = await front.once("stats")
    steps = stats.pop("recent_steps", [])
    counts = {k: v for k, v in stats.items() if k not in ("ev", "id")}
    if path == "/steps":
        answer.json(200, {"columns": ["start_s", "step_s", "first_tokens", "tokens"], "steps": steps})
    elif path == "/metrics":
        lines = [f"servefit:{k} {v}" for k, v in counts.items() if isinstance(v, int | float)]
        answer.whole(200, ("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4")
    else:
        answer.json(200, {**describe(front), **counts})


def describe(front: Front) -> dict[str, Any]:
    """What runs here: engine, build, model and every switch."""
    config = {k: v for k, v in front.config.items() if k != "lifeline"}
    return {"engine": "openvino-genai", "build": front.ready.get("build"), **config,
            "seats": front.ready.get("seats", config["seats"]), "load_s": front.ready.get("load_s"),
            "engine_pid": front.engine.pid, "pid": os.getpid()}  # fmt: skip


async def start_engine(config: dict[str, Any]) -> Front:
    """The engine's process, loaded and ready. Raises RuntimeError with its own words where it cannot."""
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "servefit.servers.embedded_engine", json.dumps(config),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=64 * 2**20,
    )  # fmt: skip
    assert engine.stdout is not None, "the engine was started with pipes"
    line = await engine.stdout.readline()
    event = json.loads(line) if line else {"ev": "failed", "message": f"it ended with code {await engine.wait()}"}
    if event["ev"] != "ready":
        raise RuntimeError(event["message"])
    return Front(config=config, engine=engine, ready=event)


async def stop_engine(front: Front) -> None:
    """End the engine: it stops when its input closes; where it does not in time, it is killed."""
    assert front.engine.stdin is not None, "the engine was started with pipes"
    front.engine.stdin.close()
    try:
        await asyncio.wait_for(front.engine.wait(), 5)
    except TimeoutError:
        front.engine.kill()
        await front.engine.wait()


async def serve(config: dict[str, Any]) -> None:
    """Serve until told to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if config.get("lifeline") is not None:
        loop.add_reader(config["lifeline"], stop.set)  # nothing is ever written to it: readable means closed
    starting = asyncio.ensure_future(start_engine(config))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return
    try:
        front = starting.result()
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return

    async def handle(request: HttpRequest, answer: Answer) -> None:
        await route(front, request, answer)

    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        connections.add(task)
        task.add_done_callback(connections.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await serve_connection(reader, writer, handle)

    pump = asyncio.ensure_future(front.pump())
    try:
        server = await asyncio.start_server(
            connected, config["host"], config["port"], limit=MAX_HEAD_BYTES, backlog=1024
        )
    except OSError as error:
        print(
            json.dumps({"error": f"port {config['port']} cannot be used: {error.strerror}", "port": True}), flush=True
        )
        await stop_engine(front)
        return
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"url": f"http://{config['host']}:{port}", **describe(front), "port": port}), flush=True)
    await asyncio.wait({stopped, asyncio.ensure_future(front.stopping.wait())}, return_when=asyncio.FIRST_COMPLETED)
    server.close()
    await stop_engine(front)
    await pump
    for task in connections:
        task.cancel()
    await asyncio.gather(*connections)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
