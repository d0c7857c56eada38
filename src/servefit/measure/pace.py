"""When requests are sent: an open loop by its schedule, a closed loop as its users become free. No clock of its own."""

import heapq
from collections.abc import Sequence

from servefit.workload.requests import Request


class OpenLoop:
    """Each request at its due time, whatever became of those before: lateness is the request's, never forgiven."""

    def __init__(self, requests: Sequence[Request], start_ns: int) -> None:
        self._requests = requests
        self._start_ns = start_ns
        self._next = 0

    def due_ns(self) -> int | None:
        """When the next request is due; None where there is none left."""
        if self._next >= len(self._requests):
            return None
        return self._start_ns + round(self._requests[self._next].due_s * 1e9)

    def take(self, now_ns: int) -> tuple[Request, int | None, int]:
        """The next request, its user (none) and the time it counts from: its due time, however late it is."""
        due = self.due_ns()
        assert due is not None, "nothing is left to take"
        request = self._requests[self._next]
        self._next += 1
        return request, None, due

    def ended(self, user: int | None, now_ns: int) -> None:
        """Nothing waits for the end of a request."""


class ClosedLoop:
    """C users, each sending again once its answer is complete and it has thought.

    Latency counts from the moment of sending: a user who is not yet asking waits for nobody.
    """

    def __init__(
        self, requests: Sequence[Request], start_ns: int, *, concurrency: int, think_s: float = 0.0, ramp_s: float = 0.0
    ) -> None:
        self._requests = requests
        self._think_ns = round(think_s * 1e9)
        self._next = 0
        users = min(concurrency, len(requests)) or 1
        self._free = [(start_ns + round(ramp_s * 1e9 * user / users), user) for user in range(users)]

    def due_ns(self) -> int | None:
        """When the next user is free; None where nobody is, or nothing is left."""
        return self._free[0][0] if self._free and self._next < len(self._requests) else None

    def take(self, now_ns: int) -> tuple[Request, int | None, int]:
        """The next request, its user and the time it counts from: now."""
        _, user = heapq.heappop(self._free)
        request = self._requests[self._next]
        self._next += 1
        return request, user, now_ns

    def ended(self, user: int | None, now_ns: int) -> None:
        """The user has its answer and thinks."""
        assert user is not None, "a closed loop's request has a user"
        heapq.heappush(self._free, (now_ns + self._think_ns, user))


Pace = OpenLoop | ClosedLoop
