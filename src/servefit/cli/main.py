"""The command line: one file a verb, each imported only when it is called; errors are printed here and nowhere else."""

import importlib
import importlib.util
import io
import os
import re
import sys
from typing import Any

import click

from servefit import __version__
from servefit.errors import ServefitError

VERBS = {
    "check": "What is this machine, how big a model fits, how fast can it type at most?",
    "measure": "How long do users wait, on this endpoint, for this workload?",
    "explain": "Why is it slow: slow to start, or slow to type? Which wall?",
    "calibrate": "What does one engine step cost here?",
    "simulate": "What would this one configuration do under this load?",
    "plan": "Which device, policy and batch limit meets every target, and by how much?",
    "decide": "Write the decision up, every number bound to where it came from.",
    "verify": "Does every number in a decision still hold?",
    "bill": "What does a request cost, what is still billing, what is the cap?",
    "learn": "Do I understand it? Cards, worked examples, say it out loud.",
    "web": "See it and play with it, on a local page.",
    "tour": "Show me all of it, here, now, offline.",
    "engine": "Start and stop the engines that come with servefit.",
    "devices": "The devices in the catalogue, every figure with its source.",
    "models": "The models in the catalogue, every figure with its source.",
    "sweep": "Raise the load until the targets break: where is the knee?",
    "compare": "Is one run better than another, worse, or can nobody tell?",
    "export": "A run as CSV, Parquet or Markdown.",
    "import": "Another tool's result file as a run.",
    "experiment": "One question, one experiment, one sentence and one figure.",
    "config": "What is set, and where it comes from.",
    "completion": "The script that lets your shell complete verbs and options.",
}


class Verbs(click.Group):
    """Loads the module of a verb when the verb is called, so that `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of the loop."""
        return [name for name in VERBS if importlib.util.find_spec(_module(name))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's click command, from `servefit.cli.<verb>`."""
        if cmd_name not in VERBS or not importlib.util.find_spec(_module(cmd_name)):
            return None
        command = importlib.import_module(_module(cmd_name)).command
        assert isinstance(command, click.Command), f"servefit.cli.{cmd_name} has no click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs with their questions, without importing any."""
        if rows := [(name, VERBS[name]) for name in self.list_commands(ctx)]:
            with formatter.section("Verbs"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest verb as the hint for a misspelt one."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"Did you mean '{near[0]}'?" if near else "See servefit --help."
            raise ServefitError(f"There is no verb '{name}'.", hint=hint)
        return super().resolve_command(ctx, args)


def _module(verb: str) -> str:
    return f"servefit.cli.{verb}" + ("_" if verb == "import" else "")


@click.group(cls=Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="servefit %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Which device, batching policy and batch limit, for this traffic, at these targets, at what cost, and how sure?

    The loop: check -> measure -> explain -> calibrate -> plan -> decide -> verify. `servefit tour` shows all of it.
    """
    if ctx.invoked_subcommand is None:
        from servefit.cli.show import status_lines

        for line in status_lines():
            click.echo(line)


def run(argv: list[str] | None = None) -> None:
    """Entry point: runs a verb and turns what went wrong into one sentence, one hint and the exit code."""
    args: list[str] = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # half a surrogate, or a terminal without UTF-8, ends no answer
            stream.reconfigure(errors="backslashreplace")
    try:
        _no_empty(args)
        colour = False if os.environ.get("NO_COLOR") else None  # None: where stdout is a terminal
        code: Any = main.main(args=args, prog_name="servefit", standalone_mode=False, color=colour)
        sys.exit(code if isinstance(code, int) else 0)
    except ServefitError as error:
        _complain(error.message, error.hint)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "servefit"
        _complain(*_usage(error, path))
        sys.exit(2)
    except click.ClickException as error:
        _complain(error.format_message(), "")
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("\nInterrupted; what was measured is kept.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OverflowError:
        _complain(
            "A number that was given is too large to calculate with.", "Give one of a size that a service can have."
        )
        sys.exit(2)
    except OSError as error:  # what no verb put better: a name longer than names can be, a full disk behind stdout
        name = str(error.filename or "The output")
        name = f"{name[:100]}..." if len(name) > 100 else name
        _complain(f"{name} cannot be used: {error.strerror or error}.", "Check the path, its permissions and the disk.")
        sys.exit(2)


def _usage(error: click.UsageError, path: str) -> tuple[str, str]:
    """(sentence, hint). Click's guess at a misspelt target would be one at another percentile: an answer to another question."""
    name = error.option_name if isinstance(error, click.NoSuchOption) else ""
    takes = {p.name for p in error.ctx.command.params} if error.ctx else set()
    if {"ttft", "p"} <= takes and (at := re.fullmatch(r"--(ttft|tpot|e2e)-p(\d+)", name)):
        return f"There is no option {name}.", f"Give --{at[1]} with --p {at[2]}, which holds for all targets."
    return error.format_message(), f"See {path} --help."


def _no_empty(args: list[str]) -> None:
    """Raise ServefitError for an option with nothing behind it, which would be read as "here" or as "none"."""
    for before, arg in zip(["", *args], args, strict=False):
        if not arg or (arg.startswith("--") and arg.endswith("=") and arg.count("=") == 1):
            behind = before if before.startswith("-") else f"What follows '{before}'" if before else ""
            name = arg.rstrip("=") or behind or "The first argument"
            raise ServefitError(
                f"{name} is empty.", hint="Is a variable of your shell not set? Leave it out, or name it."
            )


def _complain(message: str, hint: str) -> None:
    """The one place where an error is printed: control characters escaped, since file names and servers can hold any."""
    from servefit.cli.show import plain

    click.echo(f"servefit: {plain(message)}", err=True)
    if hint:
        click.echo(f"  hint: {plain(hint)}", err=True)
