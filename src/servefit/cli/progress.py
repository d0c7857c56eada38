"""How far long work has got, on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

OnDone = Callable[[int, int], None]
"""Called with (done, of how many)."""


@contextmanager
def progress(*, quiet: bool) -> Iterator[OnDone | None]:
    """Progress on stderr, on a terminal as a bar, else as a line every tenth; None where nobody wants any."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True, auto_refresh=False,
        )  # fmt: skip
        with bar:
            task = bar.add_task("simulating", total=None)

            def on_done(done: int, everything: int) -> None:
                bar.update(task, completed=done, total=everything)
                bar.refresh()

            yield on_done
    else:

        def say(done: int, everything: int) -> None:
            if everything >= 20 and done % max(1, everything // 10) == 0:
                click.echo(f"{done} of {everything} simulated", err=True)

        yield say
