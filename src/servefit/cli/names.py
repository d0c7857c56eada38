"""What a shell offers for a device or a model: the catalogue's names, else files."""

import click
from click.shell_completion import CompletionItem


def devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Names of devices that begin so."""
    from servefit.facts.devices import all_devices

    return _offer([device.name for device in all_devices()], incomplete)


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Names of models that begin so."""
    from servefit.facts.models import all_models

    return _offer([model.name for model in all_models()], incomplete)


def _offer(names: list[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin so; where none does, the shell's own files: a device or a model may be one."""
    return [CompletionItem(n) for n in names if n.startswith(incomplete)] or [CompletionItem(incomplete, type="file")]
