"""A real-time priority while the load runs: a client that waits for a core reads late, and merges what it reads."""

import contextlib
import os
from collections.abc import Iterator

from servefit.errors import CannotMeasure


@contextlib.contextmanager
def real_time(*, wanted: bool) -> Iterator[None]:
    """Run the body under Linux's SCHED_RR where `wanted`, and as before afterwards. Raises CannotMeasure where it may not."""
    if not wanted:
        yield
        return
    if not hasattr(os, "sched_setscheduler"):
        raise CannotMeasure("--realtime is for Linux.", hint="Leave it out, and measure on a quiet machine.")
    before = os.sched_getscheduler(0)
    parameters = os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        raise CannotMeasure(
            f"A real-time priority is not allowed here: {error.strerror}.",
            hint="It takes root or CAP_SYS_NICE (setcap, or ulimit -r); or leave --realtime out.",
        ) from None
    try:
        yield
    finally:
        os.sched_setscheduler(0, before, parameters)
