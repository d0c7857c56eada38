"""`servefit tour`: the whole loop here, now, offline, on the engine and the model that come with the install.

Each step is a command that anyone can type; the tour prints it, runs it, and leaves its files in one movable folder.
"""

import contextlib
import io
import json
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from servefit.errors import AnswerIsNo, DoesNotVerify, ServefitError

WORKLOAD = {"n": 96, "concurrency": 16, "isl": 256, "osl": 48}
"""What the tour plans for: sixteen users, each asking again when answered."""
LONGEST_S = 40.0
"""A slow machine is asked for fewer of them, so that the last run takes no longer than about this."""
GOODPUT_FRAC = 0.95
ROOM = 1.25
ASSUMED = "Nobody's real traffic was measured: the sixteen users and their token shape are made up for the tour."
CATALOGUE = ("raspberry-pi-4", "l4", "rtx-4090", "m4-max-36gb")
"""Beside this machine: a small CPU that the floor alone rules out, and devices whose rows are lower bounds."""


@click.command("tour")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("tour"), show_default=True, help="Where its files go."
)
@click.option("--force", is_flag=True, help="Start over in a folder that holds a tour already.")
def command(out: Path, force: bool) -> None:
    """Show me all of it, here, now, offline: about two minutes on two quiet cores."""
    from servefit.servers.engines import start

    _fresh(out, force=force)
    began = time.monotonic()
    with contextlib.chdir(out):
        _step(1, "What is this machine?")
        _run("check")
        Path("check.json").write_text(_quietly("check", "--json", "--no-servers"), encoding="utf-8")

        _step(2, "How long do users wait? Ten short prompts, ten long ones, a small load.")
        click.echo("(starting the embedded engine: OpenVINO GenAI with SmolLM2-135M, on loopback)")
        with start("embedded", policy="chunked", seats=8, budget_tok=256, context_tok=2048) as engine:
            _name_target(engine.url)
            _run("measure", "tour", "-n", "10", "--isl", "32", "--osl", "32", "--out", "runs/short")
            _run("measure", "tour", "-n", "10", "--isl", "1000", "--osl", "32", "--out", "runs/long")
            _run(
                "measure", "tour", "-n", "24", "--concurrency", "8", "--isl", "256", "--osl", "48", "--out", "runs/load"
            )

            _step(3, "Why does a long prompt take so long?")
            _run("explain", "runs/long", "--model", "smollm2-135m")

            _step(4, "What does one engine step cost here?")
            _run("calibrate", "tour", "--quick", "--force", "--runs", "runs/calibrate", "--out", "calibration.json")

        _step(5, "Which device, policy and batch limit, for which traffic, at which targets?")
        _write_question()
        _run("plan", "plan.toml", "--out", "plan.json")

        _step(6, "Write it up, every number bound to where it came from.")
        pick, told = _pick()
        _run("decide", "plan.json", *told, "--assume", ASSUMED)

        _step(7, "Does it stand? The chosen configuration on the real engine.")
        click.echo(f"(starting the embedded engine with policy {pick['policy']}, {pick['seats']} seats)")
        budget = pick["budget_tok"] if pick["policy"] == "chunked" else None
        with start(
            "embedded", policy=pick["policy"], seats=pick["seats"], budget_tok=budget, context_tok=2048
        ) as engine:
            _name_target(engine.url)
            _run("measure", "tour", "--workload", "workload.toml", "--out", "runs/final")
        _run("verify", "decision.md", "--against", "runs/final")

        _step(8, "And does every number in it still hold?")
        _run("verify", "decision.md")
        _run("decide", "decision.md", "--html", "report.html")
    _close(out, time.monotonic() - began)


def _fresh(out: Path, *, force: bool) -> None:
    """An empty folder to work in. Only a folder that a tour made is ever emptied."""
    import shutil

    if out.exists() and any(out.iterdir()):
        ours = (out / "plan.toml").exists() or (out / "check.json").exists()
        if not ours:
            raise ServefitError(f"{out} is not empty and holds no tour.", hint="Name another folder with --out.")
        if not force and (out / "decision.md").exists():
            click.echo(f"({out} held an earlier tour, which is replaced)")
        shutil.rmtree(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServefitError(
            f"{out} cannot be made: {error.strerror}.", hint="Name another folder with --out."
        ) from None


def _step(number: int, question: str) -> None:
    click.secho(f"\n=== {number}. {question}", bold=True)


def _run(*args: str) -> None:
    """Run one verb as a user would, its command line shown; a "no" is an answer, and the tour goes on."""
    from servefit.cli.main import main

    click.secho(f"\n$ servefit {shlex.join(args)}", fg="cyan")
    try:
        main.main(args=list(args), prog_name="servefit", standalone_mode=False)
    except (AnswerIsNo, DoesNotVerify) as error:
        click.echo(f"{error.message}\n  {error.hint}")


def _quietly(*args: str) -> str:
    """What a verb prints on stdout, with its progress kept off the screen."""
    from servefit.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as out, _no_stderr():
        main.main(args=list(args), prog_name="servefit", standalone_mode=False)
    return out.getvalue()


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    with Path(os.devnull).open("w", encoding="utf-8") as sink, contextlib.redirect_stderr(sink):
        yield


def _name_target(url: str) -> None:
    """servefit.toml: the running engine under the name `tour`, so that each command can be typed again."""
    Path("servefit.toml").write_text(f'[targets.tour]\nurl = "{url}"\n', encoding="utf-8")


def sized(req_per_s: float) -> dict[str, int]:
    """The question's workload, for a machine that is predicted to answer so many requests a second: fewer where all would take long.

    Each user asks three to six times.

    >>> sized(3.0)["n"], sized(1.3)["n"], sized(0.1)["n"]
    (96, 48, 48)
    """
    users = WORKLOAD["concurrency"]
    rounds = min(max(int(LONGEST_S * req_per_s / users), 3), WORKLOAD["n"] // users)
    return {**WORKLOAD, "n": rounds * users}


def _write_question() -> None:
    """plan.toml and workload.toml: targets that this machine can be asked about, from what it was just calibrated to do.

    Fixed targets would all pass on a fast machine and all fail on a slow one, and then there would be nothing to decide.
    """
    shape = [f"--{name} {value}" if len(name) > 1 else f"-{name} {value}" for name, value in WORKLOAD.items()]
    asked = shlex.split(
        "--calibration calibration.json --model smollm2-135m --policy chunked --seats 8 --budget-tok 256 "
        + " ".join(shape)
    )
    _run("simulate", *asked)
    predicted = json.loads(_quietly("simulate", *asked, "--json"))["summary"]
    ttft, tpot = _round(predicted["ttft_s"]["p99"] * ROOM), _round(predicted["tpot_s"]["p99"] * ROOM)
    workload = [f"{name} = {value}" for name, value in sized(predicted["req_per_s"]).items()]
    Path("workload.toml").write_text("\n".join(workload) + "\n", encoding="utf-8")
    devices = ", ".join(f'"{d}"' for d in ("this-machine", *CATALOGUE))
    Path("plan.toml").write_text(
        "\n".join(
            [
                'name = "tour"',
                'models = ["smollm2-135m"]',
                f"devices = [{devices}]",
                'policies = ["none", "static", "continuous", "chunked"]',
                "budgets_tok = [256]",
                'calibrations = ["calibration.json"]',
                'pick = "measured"',
                "",
                "[workload]",
                *workload,
                "",
                "[targets]",
                f'ttft = "{ttft * 1e3:g} ms"',
                f'tpot = "{tpot * 1e3:g} ms"',
                "memory_frac = 1.0",
                f"goodput_frac = {GOODPUT_FRAC}",
                "",
            ]
        ),
        encoding="utf-8",
    )
    click.echo(
        f"\nThe question, in plan.toml: {WORKLOAD['concurrency']} users, each asking again when answered, {WORKLOAD['isl']} tokens in "
        f"and {WORKLOAD['osl']} out; p99 TTFT at most {ttft * 1e3:g} ms, p99 TPOT at most {tpot * 1e3:g} ms, all of it in memory, "
        f"{GOODPUT_FRAC:.0%} of the requests good. The latency targets leave a quarter of room on what 8 seats are predicted to give."
    )


def _round(value: float) -> float:
    """Two significant digits, as a person would state a target."""
    digits = 1 - math.floor(math.log10(value))
    return round(value, digits)


def _pick() -> tuple[dict[str, Any], list[str]]:
    """The configuration to run here, and what `decide` must be told: the plan's pick where it is this machine's and passes.

    Where nothing passes clearly on this machine (a busy one makes wide intervals), the one that is predicted to do best is
    taken despite that, with the reason in the decision, and the real run tells.
    """
    plan = json.loads(Path("plan.json").read_text(encoding="utf-8"))
    here = [c for c in plan["candidates"] if c["device"] == "this-machine" and c["figures"]]
    recommended = (plan["recommended"] or {}).get("id")
    chosen = next((c for c in here if c["id"] == recommended), None)
    if chosen:
        return chosen, []

    def least(c: dict[str, Any]) -> float:
        return min(-math.inf if check["margin"] is None else float(check["margin"]) for check in c["checks"])

    best = max(here, key=lambda c: (c["verdict"] == "pass", least(c)))
    told = ["--candidate", best["id"]]
    return best, told if best["verdict"] == "pass" else [
        *told,
        "--despite",
        "The best on this machine; the run that follows tells.",
    ]


def _close(out: Path, took_s: float) -> None:
    click.secho(f"\nThat was the loop, in {took_s:.0f} s. In {out}/:", bold=True)
    for name, what in (
        ("decision.md", "what was decided, and what it rests on"),
        ("report.html", "the same with figures; open it in a browser"),
        ("plan.toml, plan.json", "the question, and every candidate's answer"),
        ("calibration.json", "what a step costs on this machine"),
        ("runs/", "every request that was sent, raw"),
    ):
        click.echo(f"  {name:22} {what}")
    for line in _what_next(out):
        click.echo(line)


def _what_next(out: Path) -> Iterator[str]:
    """What to type next, so that it runs as it stands: the environment to enter and the packages to add come first."""
    if shutil.which("servefit") is None:
        yield f"next: . {shlex.quote(str(Path(sys.prefix) / 'bin' / 'activate'))}   (puts servefit on your path)"
    extras = [e for e, module in (("web", "uvicorn"), ("learn", "fsrs")) if find_spec(module) is None]
    if extras:
        yield f"next: pip install 'servefit[{','.join(extras)}]'   (what the next two need)"
    yield f"next: cd {out}; servefit web   (see it, play with it), servefit learn   (lock it in)"
