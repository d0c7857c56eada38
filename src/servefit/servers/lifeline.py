"""A child that never outlives its parent: two ways, since each has a gap.

`die_with_parent` asks Linux to send SIGKILL when the thread that started us ends: at once, even in the middle of a long
computation, but only for a child whose starter lives in the parent's main thread. `watch` waits for the end of a pipe
that only the parent holds: everywhere, but no sooner than we look.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask for SIGKILL when the parent ends (Linux; elsewhere nothing happens). Exits at once if it is gone already."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def watch(fd: int, end: Callable[[], None]) -> None:
    """Call `end` from a thread when the other end of the pipe `fd` closes."""

    def wait() -> None:
        while os.read(fd, 4096):
            pass
        end()

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
