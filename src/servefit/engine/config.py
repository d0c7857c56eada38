"""What is set on an engine: the policy, the batch limit, the token budget, the memory."""

from dataclasses import dataclass
from typing import Literal

from servefit.errors import ServefitError

POLICY_NAMES = ("none", "static", "dynamic", "continuous", "chunked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: how many tokens are drafted, how often one is right, what drafting costs."""

    draft_tok: int
    accept_frac: float
    """Chance that a drafted token is accepted, given that the ones before it were."""
    draft_s: float = 0.0
    """Seconds of drafting one token, for the whole batch."""

    @property
    def tok_per_step(self) -> float:
        """Tokens that one verified step yields on average: 1 + a + a^2 + ... + a^k (arXiv:2211.17192, eq. 1).

        >>> Speculation(draft_tok=2, accept_frac=0.5).tok_per_step
        1.75
        """
        return sum(self.accept_frac**i for i in range(self.draft_tok + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One engine's settings."""

    policy: str = "chunked"
    seats: int = 64
    """Requests in the running batch (vLLM's max_num_seqs)."""
    budget_tok: int = 2048
    """Tokens in one step (max_num_batched_tokens); for `continuous`, prompt tokens in one prefill step."""
    kv_blocks: int | None = None
    """Blocks of the KV cache; None is unlimited."""
    block_tok: int = 16
    timeout_s: float = 0.05
    """`dynamic`: how long the first request waits for others."""
    padded: bool = True
    """`static` and `dynamic`: the batch is padded to its longest, as in a model call without paged KV. False: they only
    say who is seated when, and a request that is done costs nothing more."""
    prefix_cache: bool = False
    speculation: Speculation | None = None
    reserve_prompt: bool = True
    """A prompt is admitted only when all of its blocks are free, not just its first chunk's (as vLLM does by default)."""
    order: Literal["fcfs", "priority"] = "fcfs"
    """With "priority", `Request.priority` comes before the time of arrival; the lower is served first."""


MAX_DRAFT_TOK = 1000
"""Far more than any draft model is asked for."""


def check_config(config: EngineConfig) -> None:
    """Raise ServefitError, with the value, where an engine could not run with these settings."""
    if config.policy not in POLICY_NAMES:
        import difflib

        near = difflib.get_close_matches(config.policy, POLICY_NAMES, n=1)
        raise ServefitError(
            f"There is no batching policy '{config.policy}'.",
            hint=f"Did you mean '{near[0]}'?" if near else f"One of {', '.join(POLICY_NAMES)}.",
        )
    for name in ("seats", "budget_tok", "block_tok", "kv_blocks"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ServefitError(f"{name} is {value}.", hint="It is at least 1.")
    if not config.timeout_s >= 0:
        raise ServefitError(f"timeout_s is {config.timeout_s}.", hint="It is 0 or more seconds.")
    if config.policy == "chunked" and config.budget_tok < config.seats:
        raise ServefitError(
            f"budget_tok {config.budget_tok} is below seats {config.seats}: not every sequence could take a step.",
            hint="Raise budget_tok, or lower seats.",
        )
    spec = config.speculation
    if spec and not (1 <= spec.draft_tok <= MAX_DRAFT_TOK and 0 <= spec.accept_frac <= 1 and spec.draft_s >= 0):
        raise ServefitError(
            f"{spec} cannot be.", hint=f"draft_tok is from 1 to {MAX_DRAFT_TOK:,}, accept_frac between 0 and 1."
        )
