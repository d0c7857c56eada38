"""`servefit completion SHELL`: the script that lets a shell complete verbs, options and their choices."""

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(*, shell: str, as_json: bool) -> None:
    """Print the completion script of SHELL.

    bash: put  eval "$(servefit completion bash)"  into ~/.bashrc; zsh: the same into ~/.zshrc; fish: save it as
    ~/.config/fish/completions/servefit.fish.
    """
    from click.shell_completion import get_completion_class

    from servefit.cli.main import main
    from servefit.cli.show import emit_json

    made = get_completion_class(shell)
    assert made, f"click completes {shell}"
    complete = made(main, {}, "servefit", "_SERVEFIT_COMPLETE")
    script = complete.source_template % complete.source_vars()
    if as_json:
        emit_json({"shell": shell, "script": script})
    else:
        click.echo(script)
