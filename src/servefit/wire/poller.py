"""Waiting for sockets: epoll where there is one, `selectors` elsewhere, to a tenth of a millisecond and without spinning."""

import select
import selectors
from typing import Protocol

IN = 1
OUT = 4
_MS = 1_000_000


class Poller(Protocol):
    """What the client needs of either kind."""

    def register(self, fd: int, mask: int) -> None:
        """Watch `fd`."""

    def modify(self, fd: int, mask: int) -> None:
        """Watch `fd` for something else."""

    def unregister(self, fd: int) -> None:
        """Forget `fd`, which is still open."""

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        """What is ready, as (fd, mask), after at most `timeout_ns`."""

    def close(self) -> None:
        """Let go of the kernel's object."""


class Epoll:
    """Linux. `epoll_wait` counts in whole milliseconds, so the last few are waited for by `select` on the epoll itself."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.register = self._epoll.register
        self.modify = self._epoll.modify
        self.unregister = self._epoll.unregister
        self.close = self._epoll.close

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        """What is ready, as (fd, mask), after at most `timeout_ns`."""
        if timeout_ns <= 0:
            return self._epoll.poll(0)
        if timeout_ns > 20 * _MS:
            return self._epoll.poll((timeout_ns - 2 * _MS) / 1e9)
        fd = self._epoll.fileno()
        if fd < 1024:
            ready, _, _ = select.select([fd], [], [], timeout_ns / 1e9)
            return self._epoll.poll(0) if ready else []
        return self._epoll.poll(timeout_ns / 1e9)


class Other:
    """Everywhere else."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, fd: int, mask: int) -> None:
        """Watch `fd`."""
        self._selector.register(fd, _events(mask))

    def modify(self, fd: int, mask: int) -> None:
        """Watch `fd` for something else."""
        self._selector.modify(fd, _events(mask))

    def unregister(self, fd: int) -> None:
        """Forget `fd`."""
        self._selector.unregister(fd)

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        """What is ready, as (fd, mask), after at most `timeout_ns`."""
        return [
            (key.fd, (IN if events & selectors.EVENT_READ else 0) | (OUT if events & selectors.EVENT_WRITE else 0))
            for key, events in self._selector.select(max(timeout_ns, 0) / 1e9)
        ]

    def close(self) -> None:
        """Let go of the kernel's object."""
        self._selector.close()


def _events(mask: int) -> int:
    return (selectors.EVENT_READ if mask & IN else 0) | (selectors.EVENT_WRITE if mask & OUT else 0)


def make_poller() -> Poller:
    """The best that this system has."""
    return Epoll() if hasattr(select, "epoll") else Other()
