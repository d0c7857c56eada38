"""When requests are sent: an open loop by its schedule, a closed loop as its users become free. No clock of its own."""

import heapq
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from servefit.workload.drawn import Drawn
from servefit.workload.requests import Request


class OpenLoop:
    """Each request at its due time, whatever became of those before: lateness is the request's, never forgiven.

    A later turn of a session is due when the turn before it was answered and thought about: nobody asks on before.
    """

    def __init__(self, requests: Sequence[Request], start_ns: int = 0, *, think_s: float = 0.0) -> None:
        self._start_ns = start_ns
        self._think_ns = round(think_s * 1e9)
        self._later: dict[int, deque[int]] = {}
        due_ns, places = array("q"), array("q")  # 16 bytes a request, of which there may be millions
        for place, request in enumerate(requests):
            if request.session is not None and request.session in self._later:
                self._later[request.session].append(place)
                continue
            if request.session is not None:
                self._later[request.session] = deque()
            due_ns.append(round(request.due_s * 1e9))
            places.append(place)
        if any(a > b for a, b in pairwise(due_ns)):
            order = sorted(range(len(due_ns)), key=due_ns.__getitem__)
            due_ns, places = array("q", (due_ns[i] for i in order)), array("q", (places[i] for i in order))
        self._due_ns, self._places = due_ns, places
        self._next = 0
        self._turns: list[tuple[int, int]] = []
        """Later turns that are due, a heap."""

    def begin(self, start_ns: int) -> None:
        """Count the due times from `start_ns`; before the first request is taken."""
        self._start_ns = start_ns

    def due_ns(self) -> int | None:
        """When the next request is due; None where there is none, or none before an answer ends."""
        return min((first[0] for first in self._firsts()), default=None)

    def take(self, now_ns: int) -> tuple[int, int | None, int]:
        """The place of the next request, its user (none) and the time it counts from: its due time, however late it is."""
        due, place = min(self._firsts())
        if self._turns and self._turns[0] == (due, place):
            heapq.heappop(self._turns)
        else:
            self._next += 1
        return place, None, due

    def ended(self, user: int | None, session: int | None, now_ns: int) -> None:
        """An answer came: the next turn of its session becomes due."""
        if session is not None and self._later.get(session):
            heapq.heappush(self._turns, (now_ns + self._think_ns, self._later[session].popleft()))

    def _firsts(self) -> list[tuple[int, int]]:
        """The next of the schedule and the next of the later turns, as due time and place."""
        out = self._turns[:1]
        if self._next < len(self._places):
            out.append((self._start_ns + self._due_ns[self._next], self._places[self._next]))
        return out


class Flow:
    """An open loop whose requests come in due order and of which none waits for another: each is read when its time comes."""

    def __init__(self, requests: Drawn, start_ns: int = 0) -> None:
        self._requests = requests
        self._next = 0
        self.begin(start_ns)

    def begin(self, start_ns: int) -> None:
        """Count the due times from `start_ns`; before the first request is taken."""
        self._start_ns = start_ns
        self._due_ns = self._look()

    def _look(self) -> int | None:
        if self._next == len(self._requests):
            return None
        return self._start_ns + round(self._requests[self._next].due_s * 1e9)

    def due_ns(self) -> int | None:
        """When the next request is due; None where there is none."""
        return self._due_ns

    def take(self, now_ns: int) -> tuple[int, int | None, int]:
        """The place of the next request, its user (none) and the time it counts from: its due time, however late it is."""
        place, due_ns = self._next, self._due_ns
        assert due_ns is not None, "only what is due is taken"
        self._next += 1
        self._due_ns = self._look()
        return place, None, due_ns

    def ended(self, user: int | None, session: int | None, now_ns: int) -> None:
        """An answer came, for which nobody waits."""


class ClosedLoop:
    """C users, each sending again once its answer is complete and it has thought; a session stays with its user.

    Latency counts from the moment of sending: a user who is not yet asking waits for nobody.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        start_ns: int = 0,
        *,
        concurrency: int,
        think_s: float = 0.0,
        ramp_s: float = 0.0,
    ) -> None:
        self._think_ns = round(think_s * 1e9)
        self._firsts: Sequence[int] = range(len(requests))
        """The place of each single request, and of each session's first turn."""
        self._later: dict[int, deque[int]] = {}
        """The places of a session's later turns, by that of its first."""
        if not isinstance(requests, Drawn):
            self._firsts = self._found(requests)
        self._begun = 0
        self._own: dict[int, deque[int]] = {}
        self._users = min(concurrency, len(self._firsts)) or 1
        self._ramp_s = ramp_s
        self.begin(start_ns)

    def _found(self, requests: Sequence[Request]) -> Sequence[int]:
        """The places of the first turns, those of later ones kept."""
        firsts = array("q")
        first_of: dict[int, int] = {}
        for place, request in enumerate(requests):
            if request.session is not None and request.session in first_of:
                self._later.setdefault(first_of[request.session], deque()).append(place)
                continue
            if request.session is not None:
                first_of[request.session] = place
            firsts.append(place)
        return firsts

    def begin(self, start_ns: int) -> None:
        """Have the users start at `start_ns`, or over the ramp after it; before the first request is taken."""
        users, ramp_ns = self._users, self._ramp_s * 1e9
        self._free = [(start_ns + round(ramp_ns * user / users), user) for user in range(users)]

    def due_ns(self) -> int | None:
        """When the next user is free; None where nobody is, or nothing is left."""
        while self._free and self._begun == len(self._firsts) and not self._own.get(self._free[0][1]):
            heapq.heappop(self._free)  # this user has nothing left to ask
        return self._free[0][0] if self._free else None

    def take(self, now_ns: int) -> tuple[int, int | None, int]:
        """The place of the next request, its user and the time it counts from: now."""
        _, user = heapq.heappop(self._free)
        if own := self._own.get(user):
            return own.popleft(), user, now_ns
        place = self._firsts[self._begun]
        self._begun += 1
        if later := self._later.pop(place, None):
            self._own[user] = later
        return place, user, now_ns

    def ended(self, user: int | None, session: int | None, now_ns: int) -> None:
        """The user has its answer and thinks."""
        assert user is not None, "a closed loop's request has a user"
        heapq.heappush(self._free, (now_ns + self._think_ns, user))


Pace = OpenLoop | Flow | ClosedLoop
