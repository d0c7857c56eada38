"""`servefit web`: the local page."""

import secrets
import socket
from pathlib import Path

import click

from servefit.cli import amounts
from servefit.errors import CannotMeasure, MissingExtra


@click.command("web")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="Where runs, plans and decisions lie.",
)
@click.option("--port", type=amounts.PORT, default=8731, show_default=True, help="0 takes a free one.")
@click.option(
    "--lan", is_flag=True, help="Answer on the local network too, with a token in the address; prints a QR code."
)
def command(folder: Path, port: int, lan: bool) -> None:
    """See it and play with it, on a local page; nothing leaves the machine."""
    try:
        import uvicorn

        from servefit.web.app import create_app, listen
    except ImportError as error:
        raise MissingExtra(error.name or "starlette", "web", purpose="The page") from None
    try:
        sock = listen("0.0.0.0" if lan else "127.0.0.1", port)  # noqa: S104 - only when asked for with --lan
    except OSError as error:
        raise CannotMeasure(
            f"Port {port} cannot be taken: {error.strerror}.", hint="Choose another --port, or 0 for a free one."
        ) from None
    port = sock.getsockname()[1]
    token = secrets.token_urlsafe(24) if lan else None
    names = ["127.0.0.1", "localhost"] + ([_lan_address()] if lan else [])
    app = create_app(folder.resolve(), hosts=[f"{name}:{port}" for name in names], token=token)
    address = f"http://{names[-1] if lan else names[0]}:{port}/" + (f"?token={token}" if token else "")
    click.echo(f"page: {address}")
    if lan:
        _say_what_lan_means(address, folder)
    click.echo("Ctrl-C ends it.")
    config = uvicorn.Config(app, log_level="warning", lifespan="off", server_header=False, date_header=False)
    try:
        uvicorn.Server(config).run(sockets=[sock])
    finally:
        app.state.desk.live.close()


def _lan_address() -> str:
    """The machine's address on the local network: the source address of a route outward; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _say_what_lan_means(address: str, folder: Path) -> None:
    """What is exposed, in words and as a QR code to scan."""
    import segno

    click.echo(
        f"Whoever has this address can read the runs in {folder.resolve()}, rate cards, type numbers, simulate and write plans; nothing else."
    )
    click.echo("It is not encrypted, and browsers record audio only on localhost or https.")
    segno.make(address).terminal(compact=True)
