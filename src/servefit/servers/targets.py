"""Names for servers: those of servefit.toml, engines that run here, the usual ports, the hosted ones, or a URL as it is."""

import difflib
from typing import Final

from servefit.errors import CannotMeasure, ServefitError
from servefit.servers import running
from servefit.servers.engines import ENGINES
from servefit.settings import Settings, Target, load_settings

USUAL: Final[dict[str, Target]] = {
    t.name: t
    for t in (
        Target(name="ollama", url="http://127.0.0.1:11434", dialect="ollama-chat", origin="usual port"),
        Target(name="llama.cpp", url="http://127.0.0.1:8080", origin="usual port"),
        Target(name="vllm", url="http://127.0.0.1:8000", origin="usual port"),
        Target(name="lmstudio", url="http://127.0.0.1:1234", origin="usual port"),
        Target(name="mlx", url="http://127.0.0.1:8080", origin="usual port"),
        Target(name="mlx-omni", url="http://127.0.0.1:10240", origin="usual port"),
        Target(name="sglang", url="http://127.0.0.1:30000", origin="usual port"),
    )
}
"""Where these servers listen unless they are told otherwise (their own documentation, looked up 2026-11-30)."""


def _hosted(name: str, url: str, variable: str, dialect: str = "openai-chat") -> Target:
    return Target(name=name, url=url, api_key_env=variable, dialect=dialect, paid=True, origin="hosted")


HOSTED: Final[dict[str, Target]] = {
    t.name: t
    for t in (
        _hosted("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "anthropic"),
        _hosted("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
        _hosted("deepinfra", "https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
        _hosted("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
        _hosted("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        _hosted("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
        _hosted("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
        _hosted("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        _hosted("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    )
}
"""Hosted services: paid, called only when named."""


def find_target(name: str, settings: Settings | None = None) -> Target:
    """The target that `name` means: servefit.toml's, an engine that runs here, a usual port, a hosted one, else a URL.

    Raises ServefitError for a name that nobody knows (the nearest is suggested), and CannotMeasure for an engine of ours
    that does not run.
    """
    settings = settings or load_settings()
    if name in settings.targets:
        return settings.targets[name]
    if found := _running().get(name):
        return found
    if name in ENGINES:
        raise CannotMeasure(f"The engine '{name}' does not run here.", hint=f"servefit engine start {name}")
    for table in (USUAL, HOSTED):
        if name in table:
            return table[name]
    if looks_like_url(name):
        return Target(name=name, url=name, origin="given")
    known = [*settings.targets, *ENGINES, *USUAL, *HOSTED]
    near = difflib.get_close_matches(name, known, n=1)
    raise ServefitError(
        f"There is no target '{name}'.",
        hint=f"Did you mean '{near[0]}'?" if near else "Write a URL, or name it in servefit.toml under [targets].",
    )


def all_targets(settings: Settings | None = None) -> tuple[Target, ...]:
    """Every named target, servefit.toml's first; a name counts once."""
    settings = settings or load_settings()
    named = {**HOSTED, **USUAL, **_running(), **settings.targets}
    order = [*settings.targets, *_running(), *USUAL, *HOSTED]
    return tuple(named[n] for n in dict.fromkeys(order))


def looks_like_url(text: str) -> bool:
    """Whether it is a URL or host:port rather than a name, or the path of a file: a host alone before "/" has a dot.

    >>> looks_like_url("http://x"), looks_like_url("localhost:8080"), looks_like_url("10.0.0.1/v1"), looks_like_url("olama")
    (True, True, True, False)
    >>> looks_like_url("api.example.com/v1"), looks_like_url("runs/a"), looks_like_url("../runs/a")
    (True, False, False)
    """
    host, slash, _ = text.partition("/")
    if "://" in text or ":" in host or host == "localhost":
        return True
    return host.count(".") == 3 or (bool(slash) and "." in host.strip("."))


def _running() -> dict[str, Target]:
    """The newest running engine of each name, and each by its process where there are several."""
    return {
        e.name: Target(name=e.name, url=e.url, origin=f"engine that runs here (process {e.pid})")
        for e in running.entries()
    }
