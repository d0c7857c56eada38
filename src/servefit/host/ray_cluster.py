"""A Ray cluster: connected to, or started here; used by `measure --ray` and `plan --ray`."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servefit import __version__
from servefit.errors import CannotMeasure, MissingExtra

_START_ONE = "Start one with `ray start --head`, or write --ray local."


@contextmanager
def connected(address: str, *, purpose: str, cpus: int | None = None) -> Iterator[Any]:
    """The module ray, connected to the cluster at `address`; "local" starts one here, with `cpus` seats, and ends it.

    A connection that is there already is used and left. Ray's own usage report is off. Raises MissingExtra, CannotMeasure.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # its own 30 s are too few on a busy machine
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "ray", purpose=purpose) from None
    import logging

    mine = not ray.is_initialized()
    if mine:
        _reach(address)
        settings: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if address == "local":
            here = str(Path(__file__).parents[2])  # a checkout that is not installed is found by the workers too
            settings |= {
                "include_dashboard": False,
                "num_cpus": cpus,
                "runtime_env": {"env_vars": {"PYTHONPATH": here}},
            }
        try:
            ray.init(address=address, **settings)
        except Exception as error:  # noqa: BLE001 - Ray raises bare Exceptions, as where a node takes too long to start
            said = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0].rstrip(".")
            if address == "local":
                raise CannotMeasure(f"Ray could not be started here: {said}.",
                                    hint="Try again when the machine is less busy, or use --workers.") from None  # fmt: skip
            raise CannotMeasure(f"No Ray cluster answers at {address}: {said}.", hint=_START_ONE) from None
    try:
        yield ray
    except ray.exceptions.RayError as error:
        if "No module named 'servefit'" in str(error):
            raise CannotMeasure(
                f"The nodes of the Ray cluster at {address} do not have servefit.",
                hint=f"pip install 'servefit[ray]=={__version__}' on each, in the environment that Ray runs in.",
            ) from None
        raise
    finally:
        if mine:
            ray.shutdown()


def _reach(address: str) -> None:
    """Raise CannotMeasure where nothing listens at host:port: Ray itself would try for a minute."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise CannotMeasure(
            f"No Ray cluster answers at {address}: {getattr(error, 'strerror', None) or error}.",
            hint=_START_ONE,
        ) from None
