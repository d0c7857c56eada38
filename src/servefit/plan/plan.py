"""The plan: every candidate with its checks, the passing ranges and their edges, what it rests on, and the pick.

Plain data, saved as plan.json by `plan.files`. Times in seconds, memory in bytes, money in US dollars; None is nothing
observed. Every figure in it can be made again from `spec` and `inputs`.

Schema history
    1   2026-11-30   first
"""

from dataclasses import dataclass, field
from typing import Literal

from servefit.objectives import Verdict
from servefit.physics.steptime import Source, StepTime
from servefit.plan.spec import PlanSpec
from servefit.stats import Spread

PLAN_SCHEMA_VERSION = 2
"""2: what-ifs and trades say at which percentile their latencies are; in 1 they were at p99."""

CHECK_NAMES = ("ttft", "tpot", "e2e", "memory", "goodput", "usd_per_hour", "usd_per_mtok", "quality")
"""Every check a candidate can have. The first four targets of a service are ttft, tpot, memory and goodput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One target, held against one candidate."""

    name: str
    """One of CHECK_NAMES."""
    label: str
    """For people: "p99 TTFT", "memory", "goodput"."""
    unit: Literal["s", "frac", "req_per_s", "usd_per_hour", "usd_per_mtok", "score"]
    at_most: bool
    target: float
    value: float | None
    """The mean over the seeds of the run's own figure; None where nothing was observed (then the verdict is fail)."""
    interval: tuple[float, float] | None
    """What the value may be: the spread over seeds and the step time's own error together; None where nothing was
    observed, or where the first schedule already missed a target by so much that no further one was simulated."""
    margin: float | None
    """(target - value)/target for at most, (value - target)/target for at least; negative when missed."""
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Where the bytes of one replica go (of one GPU's share where it is spread over several)."""

    usable_bytes: int
    weight_bytes: int
    activation_bytes: int
    overhead_bytes: int
    kv_bytes_per_tok: float
    """At the longest context of this workload, over all layers."""
    kv_per_seat_bytes: int
    """KV of one seat at this workload's longest request, in whole blocks."""
    kv_pool_blocks: int
    block_tok: int
    kv_peak_blocks: int | None
    """The most blocks in use at any time of the simulation; None where it was not simulated."""
    seats_that_fit: int
    """Seats that the pool holds at the longest request: more would only preempt."""
    needed_bytes: int
    """weights + activations + overhead + KV of min(seats, the most that ran) at the longest request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the simulation saw, the mean over the seeds of each run's own figure."""

    n: int
    ok: int
    failed: int
    """Rejected and unfinished requests: each is a miss."""
    ttft_s: Spread
    tpot_s: Spread
    itl_s: Spread
    e2e_s: Spread
    output_tok_per_s: float | None
    req_per_s: float | None
    goodput_req_per_s: float | None
    goodput_frac: float | None
    duration_s: float | None
    busy_frac: float | None
    """Share of the time in which a step ran."""
    in_flight_mean: float | None
    """Requests waiting or running, by Little's law: the sum of E2E over the duration."""
    in_flight_peak: int | None
    """The most that were waiting or running at once: seats above it change nothing."""
    preemptions: int
    kv_peak_blocks: int
    waiting_at_end: bool = False
    """True where the queue grew to the end: the offered rate is above what this candidate carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a candidate costs, all replicas together."""

    usd_per_hour: float
    usd_per_request: float | None
    usd_per_mtok: float | None
    """Per million output tokens that were served."""
    source: str
    as_of: str
    """Date of the price; "" for one that the user gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The largest load at which every latency and goodput check still passes, found by bisection on the same seeds."""

    req_per_s: float
    """What arrives; in a closed loop, what is answered with that many users."""
    limited_by: str
    """The check that fails just above it; "edge not reached" where the search ended first."""
    fails_at_req_per_s: float | None
    replicas_for_peak: int | None
    """Replicas that carry the stated peak with the stated headroom."""
    users: int | None = None
    """The largest number of users that passes, where the load is a closed loop."""
    fails_at_users: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBasis:
    """A step time that candidates share, and how far it may be off."""

    id: str
    device: str
    model: str
    precision: str
    kv_bits: int
    tp: int
    step: StepTime
    source: Source
    origin: str
    lower_bound: bool
    """Datasheet only: overhead is unknown, so every time made from it is a lower bound."""
    error_frac: float | None
    """Relative error of a step's time, from held-out runs or from the published validation; None where unknown."""
    domain: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What was measured, for a calibration: context_tok, seqs, prefill_tok ... -> (least, most)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration: a device, a policy and a batch limit, with everything that was found about it."""

    id: str
    """device/model/precision/kvBITS/policy/seatsN/bBUDGET/tpN/xN: stable, made of the axes alone."""
    device: str
    model: str
    precision: str
    kv_bits: int
    policy: str
    seats: int
    budget_tok: int
    tp: int
    replicas: int
    basis: str
    """Id of its StepBasis."""
    lower_bound: bool
    memory: Memory
    figures: Figures | None
    """None where it does not fit and nothing was simulated."""
    checks: tuple[Check, ...]
    verdict: Verdict
    """pass where every check passes; fail where one fails; else too close to call."""
    cost: Cost | None = None
    capacity: Capacity | None = None
    """Only for candidates that pass."""

    def check(self, name: str) -> Check | None:
        """The check of that name, None where it was not asked."""
        return next((check for check in self.checks if check.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One end of a passing range of seats."""

    seats: int
    """The last number of seats that passes."""
    reached: bool
    """False where the search ended first: print "edge not reached"."""
    why_not: str = ""
    """Where it is not reached: why the search ended, in a few words."""
    check: str | None
    """The target that sets it: the check that misses by most one step further."""
    outside_seats: int | None
    """The next number tried, which does not pass."""
    verdict: Verdict | None = None
    """Of that check there: fail, or too close to call."""
    interval: tuple[float, float] | None = None
    value: float | None
    """That check's value there."""
    target: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverPasses:
    """A check that nothing in a group passes, and how near it came."""

    check: str
    label: str
    unit: str
    at_most: bool
    target: float
    best_value: float | None
    """None where nothing was observed at any setting (the model does not fit)."""
    best_candidate: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatRange:
    """The passing range of seats of one device and policy, everything else fixed."""

    device: str
    model: str
    precision: str
    kv_bits: int
    policy: str
    budget_tok: int
    tp: int
    replicas: int
    seats_tried: tuple[int, ...]
    passing: tuple[int, ...]
    too_close: tuple[int, ...]
    low: Edge | None
    high: Edge | None
    never: tuple[NeverPasses, ...]
    """Empty where something passes, or where each check passes somewhere but never all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFailure:
    """A device on which nothing passes."""

    device: str
    never: tuple[NeverPasses, ...]
    """The checks that no setting of this device passes, worst first, with the best value of each."""
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """What one check becomes when an assumption is replaced by its alternative, by evaluation."""

    check: str
    as_planned: float | None
    otherwise: float | None
    ratio: float | None
    """otherwise / as_planned."""
    direction: Literal["optimistic", "pessimistic", "none"]
    """optimistic: the plan looks better than the alternative would be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaking:
    """How far an assumption may move before the recommended candidate stops passing."""

    value: float
    """The assumed quantity at which it breaks, in the assumption's unit."""
    factor: float
    """value / planned value: the nearer to 1, the more the decision rests on it."""
    check: str
    """The check that breaks first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Something the plan takes for granted, and what happens when it does not hold."""

    id: str
    """Stable over versions: "context-length", "step-source", "output-length" ..."""
    text: str
    source: Source
    unit: str
    """Of `planned`, `tried` and the breaking point's value."""
    planned: float | None
    """The value that the plan uses; None where it has no number."""
    measured: tuple[float, float] | None
    """The range on which it was measured, in `range_unit`."""
    reached: tuple[float, float] | None
    """The range that this workload reaches, in `range_unit`."""
    range_unit: str = ""
    alternative: str
    """What was evaluated in its place, e.g. "KV read costs what its bytes cost"."""
    biases: tuple[Bias, ...]
    breaking: Breaking | None
    """None where nothing within the range tried (see `tried`) changes the decision."""
    tried: tuple[float, float] | None
    changes_decision: bool
    """Whether the alternative itself already makes the recommended candidate fail or too close to call."""
    details: dict[str, float] = field(default_factory=dict)
    """Further figures by name, e.g. ratio_at_24_seats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One factor changed, everything else as recommended."""

    id: str
    factor: str
    changes: tuple[Literal["ttft", "tpot", "throughput", "cost", "memory"], ...]
    """Which figures moved by more than 2%."""
    p: int
    """The percentile of both latencies: the targets'."""
    ttft_s: tuple[float | None, float | None]
    """Before, after."""
    tpot_s: tuple[float | None, float | None]
    output_tok_per_s: tuple[float | None, float | None]
    usd_per_mtok: tuple[float | None, float | None]
    memory_bytes: tuple[int | None, int | None]
    verdict: Verdict
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatTrade:
    """What going from one number of seats to another costs and buys, between passing candidates of one group."""

    from_id: str
    to_id: str
    extra_seats: int
    memory_bytes: int
    capacity_req_per_s: float | None
    goodput_req_per_s: float | None
    p: int
    """The percentile of both latencies: the targets'."""
    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """The candidate that was picked, and the rule that picked it."""

    id: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """An answer, with everything needed to check it."""

    spec: PlanSpec
    tool_version: str
    inputs: dict[str, str]
    """Every file it was made from, path -> sha256; "catalogue:devices" and the like name our own tables."""
    workload_sha256: str
    schedule_sha256: tuple[str, ...]
    """One per seed: every candidate saw these requests."""
    max_context_tok: int
    """The longest request of the schedules, prompt and output."""
    bases: tuple[StepBasis, ...]
    candidates: tuple[Candidate, ...]
    ranges: tuple[SeatRange, ...]
    failures: tuple[DeviceFailure, ...]
    assumptions: tuple[Assumption, ...]
    """Nearest breaking point first."""
    what_ifs: tuple[WhatIf, ...]
    seat_trades: tuple[SeatTrade, ...]
    pareto: tuple[str, ...]
    """Ids of the passing candidates that no other beats in cost, latency and capacity together."""
    recommended: Recommended | None
    """None where nothing passes."""
    nearest: Recommended | None
    """Where nothing passes: the candidate that misses by least, and by what."""
    answer: str
    """One sentence."""
    nearest_fix: str = ""
    """Where nothing passes: the nearest thing that works."""
    notes: tuple[str, ...] = ()
    """What its reader must know: a datasheet-only basis, seats that were not tried, a price that is old."""
    schema_version: int = PLAN_SCHEMA_VERSION

    def candidate(self, id_: str) -> Candidate:
        """The candidate of that id; KeyError where there is none."""
        for candidate in self.candidates:
            if candidate.id == id_:
                return candidate
        raise KeyError(id_)

    def basis(self, id_: str) -> StepBasis:
        """The step basis of that id; KeyError where there is none."""
        for basis in self.bases:
            if basis.id == id_:
                return basis
        raise KeyError(id_)

    @property
    def passing(self) -> tuple[Candidate, ...]:
        """The candidates that meet every target."""
        return tuple(c for c in self.candidates if c.verdict == "pass")
