"""A request inside the simulated engine: how far its tokens are computed, and when each came out."""

from dataclasses import dataclass, field

from servefit.workload.requests import Request


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One request as the engine sees it. There is no prefill phase: computed tokens catch up with known tokens."""

    request: Request
    index: int
    """Place in the schedule; breaks ties between requests that are ready at the same moment."""
    due_s: float = 0.0
    priority: int = 0
    """The request's, where the engine heeds it."""
    ready_s: float = 0.0
    """Due plus the front end's share: when the scheduler first sees it."""
    isl: int = 0
    osl: int = 0
    produced_tok: int = 0
    """Output tokens that the user has; preemption never takes one back."""
    computed_tok: int = 0
    """Tokens whose KV is in the cache."""
    prefilling: bool = True
    """Computing tokens that were known before: the prompt, or all of it again after a preemption."""
    running: bool = False
    private_blocks: int = 0
    """KV blocks that only this sequence uses."""
    units: list[int] = field(default_factory=list)
    """Shared prefix blocks that it holds, by hash."""
    cached_tok: int = 0
    """Prompt tokens found in the prefix cache when it was first admitted."""
    received_tok: int = 0
    """Tokens whose KV came over a link from a prefill server."""
    verified_steps: int = 0
    """Decode steps so far, for speculative decoding."""
    preempted: int = 0
    status: str = "unfinished"
    replica: int = 0
    user: int | None = None
    queue_s: float | None = None
    """How long it waited for its first seat."""
    done_s: float | None = None
    chunk_s: list[float] = field(default_factory=list)
    chunk_tok: list[int] = field(default_factory=list)

    @property
    def known_tok(self) -> int:
        """Prompt and output tokens so far."""
        return self.isl + self.produced_tok

    @property
    def key(self) -> tuple[int, float, int]:
        """Who is served first: priority, then who was ready first. The largest key is preempted first."""
        return (self.priority, self.ready_s, self.index)

    def emit(self, at_s: float, tok: int = 1) -> None:
        """Hand `tok` tokens to the user at `at_s`."""
        self.produced_tok += tok
        self.chunk_s.append(at_s)
        self.chunk_tok.append(tok)
