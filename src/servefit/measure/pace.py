"""When requests are sent: an open loop by its schedule, a closed loop as its users become free. No clock of its own."""

import heapq
from collections import deque
from collections.abc import Sequence

from servefit.workload.requests import Request


class OpenLoop:
    """Each request at its due time, whatever became of those before: lateness is the request's, never forgiven.

    A later turn of a session is due when the turn before it was answered and thought about: nobody asks on before.
    """

    def __init__(self, requests: Sequence[Request], start_ns: int, *, think_s: float = 0.0) -> None:
        self._think_ns = round(think_s * 1e9)
        self._later: dict[int, deque[int]] = {}
        due: list[tuple[int, int]] = []
        for place, request in enumerate(requests):
            if request.session is not None and request.session in self._later:
                self._later[request.session].append(place)
                continue
            if request.session is not None:
                self._later[request.session] = deque()
            due.append((start_ns + round(request.due_s * 1e9), place))
        self._due = due  # in order of due time already, and so a heap
        heapq.heapify(self._due)

    def due_ns(self) -> int | None:
        """When the next request is due; None where there is none, or none before an answer ends."""
        return self._due[0][0] if self._due else None

    def take(self, now_ns: int) -> tuple[int, int | None, int]:
        """The place of the next request, its user (none) and the time it counts from: its due time, however late it is."""
        due, place = heapq.heappop(self._due)
        return place, None, due

    def ended(self, user: int | None, session: int | None, now_ns: int) -> None:
        """An answer came: the next turn of its session becomes due."""
        if session is not None and self._later.get(session):
            heapq.heappush(self._due, (now_ns + self._think_ns, self._later[session].popleft()))


class ClosedLoop:
    """C users, each sending again once its answer is complete and it has thought; a session stays with its user.

    Latency counts from the moment of sending: a user who is not yet asking waits for nobody.
    """

    def __init__(
        self, requests: Sequence[Request], start_ns: int, *, concurrency: int, think_s: float = 0.0, ramp_s: float = 0.0
    ) -> None:
        self._think_ns = round(think_s * 1e9)
        talks: dict[int, deque[int]] = {}
        for place, request in enumerate(requests):
            key = place if request.session is None else -1 - request.session
            talks.setdefault(key, deque()).append(place)
        self._talks = deque(talks.values())
        self._own: dict[int, deque[int]] = {}
        users = min(concurrency, len(self._talks)) or 1
        self._free = [(start_ns + round(ramp_s * 1e9 * user / users), user) for user in range(users)]

    def due_ns(self) -> int | None:
        """When the next user is free; None where nobody is, or nothing is left."""
        while self._free and not self._talks and not self._own.get(self._free[0][1]):
            heapq.heappop(self._free)  # this user has nothing left to ask
        return self._free[0][0] if self._free else None

    def take(self, now_ns: int) -> tuple[int, int | None, int]:
        """The place of the next request, its user and the time it counts from: now."""
        _, user = heapq.heappop(self._free)
        if not self._own.get(user):
            self._own[user] = self._talks.popleft()
        return self._own[user].popleft(), user, now_ns

    def ended(self, user: int | None, session: int | None, now_ns: int) -> None:
        """The user has its answer and thinks."""
        assert user is not None, "a closed loop's request has a user"
        heapq.heappush(self._free, (now_ns + self._think_ns, user))


Pace = OpenLoop | ClosedLoop
