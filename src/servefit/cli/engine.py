"""`servefit engine start | list | stop`: the engines that come from packages."""

import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import click

from servefit.cli import amounts
from servefit.cli.show import emit_json, table
from servefit.errors import CannotMeasure, ServefitError
from servefit.servers import engines, running
from servefit.units import fmt_s


@click.group()
def command() -> None:
    """Start and stop the engines that come with servefit."""


@command.command()
@click.argument("name", default="embedded")
@click.option("--port", type=amounts.PORT, help="Port on 127.0.0.1; a free one unless said.")
@click.option("--policy", type=click.Choice(engines.POLICIES), default="continuous", show_default=True,
              help="Who computes together.")  # fmt: skip
@click.option("--seats", type=amounts.SEATS, default=8, show_default=True, help="Requests in the running batch.")
@click.option("--budget-tok", type=amounts.TOK, help="Tokens a step may compute; 256 for chunked unless said.")
@click.option("--context-tok", type=amounts.TOK, default=2048, show_default=True, help="Longest prompt + answer.")
@click.option("--kv-tok", type=amounts.TOK, help="KV pool in tokens; seats x context unless said.")
@click.option(
    "--prefix-cache/--no-prefix-cache", default=False, show_default=True, help="Reuse the KV of equal beginnings."
)
@click.option(
    "--timeout", "timeout_s", type=amounts.SECONDS, help="Seconds an incomplete batch waits (static, dynamic)."
)
@click.option("--threads", type=amounts.PROCESSES, help="Threads; every allowed core unless said.")
@click.option("--model-file", type=click.Path(path_type=Path), help="Another GGUF file.")
@click.option(
    "--speculation", type=click.Choice(["ngram"]), help="Draft what followed the same words before (llamacpp)."
)
@click.option("--keep", is_flag=True, help="Go on when the program that started this one ends.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout when it is ready.")
def start(name: str, *, port: int | None, keep: bool, as_json: bool, **switches: Any) -> None:
    """Start the engine NAME (embedded, llamacpp) on loopback and serve until Ctrl-C."""
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: end.set())
    click.echo(f"Loading {name} ...", err=True)
    parent = os.getppid()
    with engines.start(name, port=_port(port), **switches) as engine:
        info = engine.info
        entry = running.enter(name, engine.url, policy=info["policy"], seats=info["seats"])
        try:
            if as_json:
                emit_json(info)
            else:
                click.echo(f"ready: {name} at {engine.url} after {fmt_s(info['load_s'])}: {_switches(info)}")
                click.echo(
                    f"next: servefit measure {name} (in another terminal); Ctrl-C or `servefit engine stop` ends it."
                )
            while not end.wait(0.2):
                if not engine.alive:
                    raise CannotMeasure(f"The engine '{name}' ended by itself (code {engine.process.returncode}).",
                                        hint="Start it again.")  # fmt: skip
                if not keep and os.getppid() != parent:
                    click.echo(
                        "The program that started this one has ended, so the engine stops (--keep goes on).", err=True
                    )
                    break
        except KeyboardInterrupt:
            click.echo("", err=True)
        finally:
            entry.unlink(missing_ok=True)
    click.echo(f"{name} stopped.", err=True)


def _port(asked: int | None) -> int:
    if asked is not None:
        return asked
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", running.USUAL_PORT))
        except OSError:
            return 0
    return running.USUAL_PORT


def _switches(info: dict[str, Any]) -> str:
    cache = "on" if info["prefix_cache"] else "off"
    return (f"{info['model']}, policy {info['policy']}, {info['seats']} seats, budget {info['budget_tok']} tok, "
            f"context {info['context_tok']} tok, prefix cache {cache}, {info['threads']} threads")  # fmt: skip


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def list_engines(*, as_json: bool) -> None:
    """The engines that could be started, and those that run."""
    kinds = [{"name": kind.name, "title": kind.title, "installed": _installed(kind.name), "policies": kind.policies}
             for kind in engines.ENGINES.values()]  # fmt: skip
    alive = running.entries()
    if as_json:
        emit_json({"engines": kinds, "running": alive})
        return
    rows = [
        [str(k["name"]), "yes" if k["installed"] else "no: pip install 'servefit[local]'", str(k["title"])]
        for k in kinds
    ]
    table(["engine", "installed", "what it is"], rows)
    for e in alive:
        click.echo(f"running: {e.name} at {e.url}, policy {e.policy}, {e.seats} seats (process {e.pid})")
    click.echo(f"next: servefit {'measure ' + alive[0].name if alive else 'engine start embedded'}")


def _installed(name: str) -> bool:
    try:
        engines.find_engine(name)
    except ServefitError:
        return False
    return True


@command.command()
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Every engine that runs.")
def stop(name: str | None, *, every: bool) -> None:
    """Stop the engine NAME, the one on port NAME, or the only one that runs. Where none runs, that is said, and all is well."""
    alive = running.entries()
    chosen = [
        e for e in alive if every or name is None or name in (e.name, e.url, e.url.rpartition(":")[2], str(e.pid))
    ]
    if not chosen and name is not None:
        raise CannotMeasure(f"No engine {name!r} runs here.", hint="servefit engine list")
    if not chosen:
        click.echo("No engine runs here: there is nothing to stop.")
    if len(chosen) > 1 and not every:
        urls = ", ".join(e.url for e in chosen)
        raise ServefitError(f"{len(chosen)} engines run: {urls}.", hint="Name one by its port, or use --all.")
    for entry in chosen:
        running.stop(entry)
        click.echo(f"stopped: {entry.name} at {entry.url}")
