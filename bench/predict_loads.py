"""The loads that the calibration has not seen, and how each is predicted."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from servefit.calibrate.calibration import Calibration, mean_step, typical_step
from servefit.calibrate.recognise import server_config
from servefit.engine.simulate import simulate_run
from servefit.objectives import Summary, summarize
from servefit.physics.steptime import StepTime
from servefit.workload.workload import Lengths, Workload

MOST_USERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load that the calibration has not seen."""

    name: str
    workload: Workload
    policy: str = "continuous"
    seats: int = 16
    budget_tok: int | None = None

    @property
    def switches(self) -> dict[str, object]:
        """What the engine is started with."""
        return {"policy": self.policy, "seats": self.seats, "budget_tok": self.budget_tok}


def lengths(mean: int, low: int | None = None, high: int | None = None) -> Lengths:
    """Always `mean`, or evenly between `low` and `high`."""
    if low is None:
        return Lengths(mean=mean)
    return Lengths(
        kind="uniform", mean=(low + (high or low)) // 2, sd=((high or low) - low) / 12**0.5, min=low, max=high
    )


def closed(users: int, isl: Lengths, osl: Lengths, n: int) -> Workload:
    """Each of `users` asks again when answered."""
    return Workload(n=n, concurrency=users, isl=isl, osl=osl, seed=11)


def open_(rate: float, isl: Lengths, osl: Lengths, n: int, arrivals: str = "poisson") -> Workload:
    """So many a second, whatever becomes of them."""
    return Workload(n=n, rate_req_per_s=rate, arrivals=arrivals, isl=isl, osl=osl, seed=11)


def burst(isl: Lengths, osl: Lengths, n: int) -> Workload:
    """All at once."""
    return Workload(n=n, arrivals="burst", isl=isl, osl=osl, seed=11)


def loads_of(engine: str, calibration: Calibration) -> list[Load]:
    """The held-out loads: closed and open, 1 to 16 seats, prompts 48 to 1,900, answers 16 to 256, under and over capacity.

    What is light for one machine is more than another can do: rates are for a server that reads a lone prompt of 200 tokens
    in 0.1 s, and half as high on one that is calibrated to take twice as long.
    """
    lone = predict(Load(name="lone", workload=closed(1, lengths(200), lengths(32), 1)), calibration)[0]["ttft_p50"]
    f = round(0.1 / (lone or 0.1), 2)
    # Hardly two requests alike. Equal ones go in lock-step, and a race at the start of each wave decides a percentile; and eight
    # prompts of 240 fill a matrix kernel's tiles to the token, which one token more undoes (0.41 s or 0.57 s for the step).
    mixed = lengths(300, 60, 600)
    short = lengths(48, 24, 80)
    found = [
        Load(name="1 user, chat", workload=closed(1, lengths(200, 160, 240), lengths(64, 48, 80), 16)),
        Load(name="1 user, long prompt", workload=closed(1, lengths(1900, 1800, 1980), lengths(32, 24, 40), 6)),
        Load(name="2 users, long answer", workload=closed(2, lengths(80, 40, 120), lengths(224, 192, 256), 6)),
        Load(name="4 users, mixed", workload=closed(4, mixed, short, 20)),
        Load(name="8 users, mixed", workload=closed(8, mixed, short, 32)),
        Load(name="16 users, short", workload=closed(16, lengths(64, 32, 96), lengths(48, 24, 72), 64)),
        Load(name="12 users on 4 seats", workload=closed(12, lengths(128, 80, 176), lengths(32, 16, 48), 36), seats=4),
        Load(name="Poisson, light", workload=open_(1.0 * f, mixed, short, 14)),
        Load(name="Poisson, busy", workload=open_(3.0 * f, mixed, short, 28)),
        Load(name="Poisson, over capacity", workload=open_(9.0 * f, mixed, short, 36), seats=8),
        Load(name="burst of 12", workload=burst(lengths(150, 50, 250), lengths(32, 16, 48), 12)),
        Load(
            name="constant, prompts of 500",
            workload=open_(2.0 * f, lengths(500, 460, 540), lengths(24, 16, 32), 14, "constant"),
        ),
    ]
    if engine == "embedded":
        one = open_(2.0 * f, lengths(400, 340, 460), lengths(40, 32, 48), 24, "constant")
        found += [
            Load(name="policy none", workload=one, policy="none", seats=1),
            Load(name="policy static", workload=one, policy="static", seats=8),
            Load(name="policy dynamic", workload=one, policy="dynamic", seats=8),
            Load(name="policy continuous", workload=one, policy="continuous", seats=8),
            Load(name="policy chunked 128", workload=one, policy="chunked", seats=8, budget_tok=128),
            Load(name="chunked 256, 8 users", workload=closed(8, mixed, short, 32), policy="chunked", budget_tok=256),
            # 8 prompts of 300 do not share a step's 2,048 tokens: the engine reads them in two
            Load(
                name="static, long batch",
                workload=closed(8, lengths(300, 280, 320), lengths(24, 16, 32), 16),
                policy="static",
                seats=8,
            ),
        ]
    return found


def users_load(users: int) -> Load:
    """A closed loop of so many users, about 200 tokens in and 32 out: how many stay within the targets is asked of it."""
    workload = closed(users, lengths(200, 160, 240), lengths(32, 24, 40), 4 * users)
    return Load(name=f"users {users}", workload=workload)


def figures(summary: Summary) -> dict[str, float | None]:
    """The figures that are compared, in seconds and tokens per second."""
    return {
        "itl_p50": summary.itl_s.p50, "tpot_p50": summary.tpot_s.p50, "tpot_p95": summary.tpot_s.p95,
        "ttft_p50": summary.ttft_s.p50, "ttft_p95": summary.ttft_s.p95, "e2e_p50": summary.e2e_s.p50,
        "e2e_p95": summary.e2e_s.p95, "tok_per_s": summary.output_tok_per_s, "itl_max": summary.itl_s.max,
    }  # fmt: skip


class Lone(NamedTuple):
    """A lone request of 200 tokens: its median ITL, most of it reading of weights, and its TTFT, most of it arithmetic."""

    itl_s: float
    ttft_s: float

    def over(self, before: "Lone") -> "Pace":
        """How much longer it took than before."""
        return Pace(self.itl_s / before.itl_s, (self.ttft_s - self.itl_s) / (before.ttft_s - before.itl_s))


class Pace(NamedTuple):
    """How much longer the machine takes than when it was calibrated, to read memory and to compute."""

    memory: float = 1.0
    compute: float = 1.0


AS_CALIBRATED = Pace()

WAIT_S = {"static": 2.0, "dynamic": 0.05}
"""How long the embedded server's batches wait for company by default; a lone request waits in vain."""

OVERLAP = 4.0
"""Of a step's weights and arithmetic the longer one counts, and little of the other: (a^4 + b^4)^(1/4)."""


def at_pace(step: StepTime, pace: Pace) -> StepTime:
    """The step on a machine whose memory and whose arithmetic take so much longer, as in a roofline.

    The constant and the context are read from memory; prompts are computed, as is what a change of size needs. The bend is what
    arithmetic takes beyond the reading of the weights beside it.

    >>> at_pace(StepTime(const_s=0.010, bend=((1, 0.0), (8, 0.010))), Pace(memory=1.2)).bend[1][1] < 0.009
    True
    """
    read, reading = step.const_s, step.const_s * pace.memory
    bend = []
    for at, extra in step.bend:
        computed = ((read + extra) ** OVERLAP - read**OVERLAP) ** (1 / OVERLAP) * pace.compute
        bend.append((at, (reading**OVERLAP + computed**OVERLAP) ** (1 / OVERLAP) - reading))
    return replace(
        step, const_s=reading, change_s=step.change_s * pace.compute, per_kv_tok_s=step.per_kv_tok_s * pace.memory, bend=tuple(bend),
        per_prefill_tok_s=step.per_prefill_tok_s * pace.compute, ragged_tok_s=step.ragged_tok_s * pace.compute,
        per_prefill_pos_s=step.per_prefill_pos_s * pace.compute,
    )  # fmt: skip


def predict(load: Load, calibration: Calibration, pace: Pace = AS_CALIBRATED) -> tuple[dict[str, float | None], bool]:
    """(the figures that simulation gives for the load, whether the load is above the capacity).

    With the step time on average, late steps included; the median ITL with the typical one. `pace` is how much slower the
    machine is than it was when calibrated.
    """
    switches = {"policy": load.policy, "seats": load.seats}
    if load.policy == "chunked":
        switches["budget_tok"] = load.budget_tok
    if wait := WAIT_S.get(load.policy):
        calibration = replace(calibration, batching=replace(calibration.batching, timeout_s=wait))
    if calibration.engine == "llama.cpp":
        switches = {"seats": load.seats}
    config = server_config(calibration, **switches)
    run = simulate_run(load.workload, config, at_pace(mean_step(calibration), pace))
    typical = simulate_run(load.workload, config, at_pace(typical_step(calibration), pace))
    end = max(r.done_s or 0.0 for r in run.rows)
    offered = max(r.due_s for r in run.rows)
    found = figures(summarize(run)) | {"itl_p50": figures(summarize(typical))["itl_p50"]}
    return found, load.workload.rate_req_per_s is not None and offered < 0.75 * end
