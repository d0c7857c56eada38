"""The live plan, computed: one configuration simulated, its checks, the passing band, latency against load, the roof.

Runs in a process of its own (see `live`), which remembers what it simulated: a slider that moves a target simulates nothing
again but the checks' own intervals.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from servefit.charts import figures
from servefit.charts.figures import Chart, Point
from servefit.engine.outcome import Outcome
from servefit.errors import ServefitError
from servefit.objectives import Targets
from servefit.physics.memory import kv_read_bytes, streamed_weight_bytes
from servefit.physics.roofline import attention_flop, head_flop, linear_flop_per_tok, model_peak, prefill_flop
from servefit.physics.steptime import step_s
from servefit.plan import checks
from servefit.plan.bases import Inputs, Row, find_bases, find_inputs
from servefit.plan.money import with_cost
from servefit.plan.plan import Check, Cost, Figures, Memory, StepBasis
from servefit.plan.scenario import Scenario, Schedule, hold, run
from servefit.plan.search import Group, Shared, make_scenario
from servefit.plan.spec import GivenDevice, PlanSpec
from servefit.stats import percentile
from servefit.units import fmt
from servefit.workload.columns import columns
from servefit.workload.requests import Request
from servefit.workload.workload import Lengths, Workload

REQUESTS = 2_000
SEATS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATES = tuple(2.0**k for k in range(-6, 11))
"""The curve is made at powers of two around the rate, so that moving within one simulates nothing again."""
REMEMBERED = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What the sliders say. Times in seconds."""

    model: str
    device: str
    precision: str
    policy: str
    seats: int
    rate_req_per_s: float
    isl: int
    osl: int
    ttft_s: float
    tpot_s: float
    goodput_frac: float
    users: int = 0
    """Closed loop: so many, each asking again when answered; 0: an open loop at the rate."""
    replicas: int = 1
    tp: int = 1
    calibration: str = ""
    """Path of a calibration: its device is measured."""
    given: GivenDevice | None = None
    """The device, where it is in no catalogue."""

    @property
    def targets(self) -> Targets:
        """The targets."""
        return Targets(ttft_s=self.ttft_s, tpot_s=self.tpot_s, goodput_frac=self.goodput_frac)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One number of seats (or one rate) and its values, by check."""

    x: float
    ttft_s: float | None
    tpot_s: float | None
    passes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the page shows for one position of the sliders."""

    ask: Ask
    checks: tuple[Check, ...]
    verdict: str
    figures: Figures | None
    memory: Memory
    basis: StepBasis
    cost: Cost | None
    band: tuple[Tried, ...] = ()
    """By seats; empty in a first answer."""
    curve: tuple[Tried, ...] = ()
    """By rate; empty in a first answer."""
    charts: tuple[Chart, ...] = ()

    @property
    def range_said(self) -> str:
        """The passing band in a sentence."""
        passing = [t.x for t in self.band if t.passes]
        if not self.band:
            return ""
        if not passing:
            return f"No number of seats from {fmt(self.band[0].x)} to {fmt(self.band[-1].x)} meets all targets."
        inner = [t for t in self.band if passing[0] <= t.x <= passing[-1]]
        gap = "" if all(t.passes for t in inner) else ", with gaps"
        low = "" if passing[0] > self.band[0].x else " (edge not reached)"
        high = "" if passing[-1] < self.band[-1].x else " (edge not reached)"
        if passing[0] == passing[-1]:
            return f"Of the seats tried, only {fmt(passing[0])} passes."
        return f"Passes from {fmt(passing[0])}{low} to {fmt(passing[-1])}{high} seats{gap}, of those tried."


def spec_of(ask: Ask, *, seeds: int = 1, n: int = REQUESTS) -> PlanSpec:
    """The same question for the planner."""
    load = {"concurrency": ask.users} if ask.users else {"rate_req_per_s": ask.rate_req_per_s}
    return PlanSpec(
        models=(ask.model,),
        devices=(ask.given.name if ask.given else ask.device,),
        given_devices=(ask.given,) if ask.given else (),
        precisions=(ask.precision,) if ask.precision else (),
        policies=(ask.policy,),
        seeds=seeds,
        calibrations=(ask.calibration,) if ask.calibration else (),
        replicas=(ask.replicas,),
        tp=(ask.tp,),
        workload=Workload(n=n, isl=Lengths(mean=ask.isl), osl=Lengths(mean=ask.osl), **load),
        targets=ask.targets,
    )


def draw(ask: Ask, *, whole: bool = True) -> Picture:
    """The picture for one position of the sliders; without `whole` only the configuration itself, for a first answer.

    The checks are the planner's own, on one schedule of 2,000 requests, with the step time's error as their interval. The
    band and the curve go by the value alone. Raises ServefitError for a question that cannot be.
    """
    shared, group = _ground(ask)
    if ask.users and ask.replicas > 1:
        raise ServefitError(
            f"{ask.users:,} users on {ask.replicas:,} replicas are too slow to simulate while a slider moves.",
            hint="Take one replica here, or the rate; servefit plan --concurrency simulates them.",
        )
    scenario, memory = make_scenario(shared, group, ask.seats)
    basis = group.base.basis
    seen, held = hold(scenario, error_frac=basis.error_frac, one_sided=basis.lower_bound)
    picture = Picture(
        ask=ask,
        checks=held,
        verdict=checks.overall(held),
        figures=seen,
        memory=memory,
        basis=basis,
        cost=with_cost(group.base.row.device.name, ask.tp * ask.replicas, seen),
    )
    if not whole:
        return picture
    band, curve = _band(ask, shared, group), _curve(ask, scenario)
    charts = (
        _latency_chart(curve, ask),
        _seats_chart(band, ask),
        *_roof(ask, group.base.row, basis, seen),
    )
    return replace(picture, band=band, curve=curve, charts=charts)


# --- what is remembered -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def _inputs(spec: PlanSpec, stamp: float) -> Inputs:  # noqa: ARG001
    """Devices, models and calibrations; `stamp` changes when the calibration's file does."""
    return find_inputs(spec)


@lru_cache(maxsize=64)
def _schedule(isl: int, osl: int, rate: float, users: int) -> Schedule:
    """The planner's own first schedule, at a rate or for so many users."""
    load = {"concurrency": users} if users else {"rate_req_per_s": rate}
    return columns(Workload(n=REQUESTS, isl=Lengths(mean=isl), osl=Lengths(mean=osl), **load))


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What a simulated schedule did, its percentiles found once."""

    outcome: Outcome
    ttft_s: float | None
    tpot_s: float | None
    peak: int
    """The most requests that were there at once."""


_outcomes: OrderedDict[tuple[object, ...], Digest] = OrderedDict()


def _outcome(scenario: Scenario, key: tuple[object, ...]) -> Digest:
    """What the engine does, simulated once for each key."""
    found = _outcomes.get(key)
    if found is None:
        seen = run(scenario)
        p = scenario.targets.p
        failed = (seen.n - seen.finished) * 100 > (100 - p) * seen.n
        found = _outcomes[key] = Digest(
            outcome=seen,
            ttft_s=None if failed else percentile(seen.ttft_s, p),
            tpot_s=None if failed else percentile(seen.tpot_s, p),
            peak=seen.in_flight_peak,
        )
        if len(_outcomes) > REMEMBERED:
            _outcomes.popitem(last=False)
    else:
        _outcomes.move_to_end(key)
    return found


def _ground(ask: Ask) -> tuple[Shared, Group]:
    spec = spec_of(ask)
    fixed = replace(spec, workload=Workload(), targets=Targets(), policies=())
    stamp = Path(ask.calibration).stat().st_mtime if ask.calibration else 0.0
    inputs = _inputs_of(fixed, stamp)
    shared = Shared(
        spec=spec,
        inputs=inputs,
        schedules=(_schedule(ask.isl, ask.osl, ask.rate_req_per_s, ask.users),),
        contexts_tok=(ask.isl + ask.osl,),
        scores={},
    )
    bases = find_bases(spec, inputs, context_tok=ask.isl + ask.osl)
    if not bases:
        raise ServefitError(
            f"{ask.device} is no GPU: a copy is not spread over {ask.tp} of it.",
            hint="Take 1 device a copy, and replicas.",
        )
    return shared, Group(base=bases[0], policy=ask.policy, budget_tok=spec.budgets_tok[0], replicas=ask.replicas)


def _inputs_of(spec: PlanSpec, stamp: float) -> Inputs:
    return _inputs(spec, stamp)


# --- band and curve ---------------------------------------------------------------------------------------------------


def _band(ask: Ask, shared: Shared, group: Group) -> tuple[Tried, ...]:
    """Every number of seats of the ladder and the chosen one. Seats that are never all taken change nothing."""
    most = 1 if ask.policy == "none" else min(SEATS[-1], group.budget_tok)
    out: list[Tried] = []
    enough: tuple[int, Digest] | None = None
    for seats in sorted({*(s for s in SEATS if s <= most), min(ask.seats, most)}):
        scenario, _ = make_scenario(shared, group, seats)
        if scenario.config.kv_blocks is not None and scenario.config.kv_blocks < 1:
            out.append(Tried(x=seats, ttft_s=None, tpot_s=None, passes=False))
            continue
        if enough is None or ask.policy in ("static", "dynamic"):
            outcome = _outcome(scenario, (*_key(ask), seats, ask.users or ask.rate_req_per_s))
            if outcome.peak <= seats:
                enough = (seats, outcome)
        else:
            outcome = enough[1]
        out.append(_tried(seats, outcome, scenario))
    return tuple(out)


def _curve(ask: Ask, scenario: Scenario) -> tuple[Tried, ...]:
    """The same configuration at other rates (or with other numbers of users): three doublings down and up, cut where nothing passes by far."""
    if scenario.config.kv_blocks is not None and scenario.config.kv_blocks < 1:
        return ()
    here = float(ask.users or ask.rate_req_per_s)
    near = [r for r in RATES if here / 8.1 <= r <= here * 8.1 and not (ask.users and (r < 1 or r > REQUESTS / 2))]
    out = []
    for load in sorted({*near, here}):
        users = int(load) if ask.users else 0
        asked = _schedule(ask.isl, ask.osl, load, users)
        other = replace(scenario, schedules=(asked,), concurrency=users or None)
        tried = _tried(load, _outcome(other, (*_key(ask), ask.seats, load)), other)
        out.append(tried)
        if load > here and not tried.passes and len([t for t in out if not t.passes]) > 1:
            break
    return tuple(out)


def _key(ask: Ask) -> tuple[object, ...]:
    return (ask.model, ask.device, ask.precision, ask.policy, ask.isl, ask.osl, ask.calibration, ask.tp, ask.replicas,
            bool(ask.users))  # fmt: skip


def _tried(x: float, digest: Digest, scenario: Scenario) -> Tried:
    """The values of one point, without the percentiles that no check looks at."""
    targets, outcome = scenario.targets, digest.outcome
    ttft, tpot = digest.ttft_s, digest.tpot_s
    good = outcome.good(ttft_s=targets.ttft_s, tpot_s=targets.tpot_s) / outcome.n if outcome.n else 0.0
    passes = (
        ttft is not None
        and ttft <= (targets.ttft_s or ttft)
        and (tpot is None or tpot <= (targets.tpot_s or tpot))
        and good >= (targets.goodput_frac or 0.0)
        and scenario.memory_frac <= (targets.memory_frac or 1.0)
    )
    return Tried(x=x, ttft_s=ttft, tpot_s=tpot, passes=passes)


# --- charts -----------------------------------------------------------------------------------------------------------


LEAST, MOST = 0.01, 10.0
"""What is drawn of a latency, as a share of its target: beyond that it stands at the edge."""
Y_AXIS = f"% of target, cut at {fmt(100 * LEAST)} and {fmt(100 * MOST)}"
"""Always the same words: another title would be another figure, compiled anew while a slider moves."""


def _shares(tried: tuple[Tried, ...], ask: Ask) -> list[Point]:
    """TTFT and TPOT as shares of their targets, so that both stand under one line, from `LEAST` to `MOST`."""
    points = []
    for name, target in (("ttft_s", ask.ttft_s), ("tpot_s", ask.tpot_s)):
        label = f"p{ask.targets.p} {'TTFT' if name == 'ttft_s' else 'TPOT'}"
        for t in tried:
            value = getattr(t, name)
            points.append(
                Point(
                    series=label,
                    x=t.x,
                    y=None if value is None else round(min(max(value / target, LEAST), MOST) * 100, 2),
                )
            )
    return points


def _band_of(tried: tuple[Tried, ...]) -> tuple[float, float] | Literal["none"]:
    """The passing stretch that is longest."""
    runs: list[list[float]] = [[]]
    for t in tried:
        if t.passes:
            runs[-1].append(t.x)
        else:
            runs.append([])
    best = max(runs, key=len)
    return (best[0], best[-1]) if best else "none"


def _latency_chart(curve: tuple[Tried, ...], ask: Ask) -> Chart:
    return figures.lines(
        _shares(curve, ask), name="load", title="Latency against load", x="users" if ask.users else "requests a second", y=Y_AXIS,
        target=100.0, band=_band_of(curve), log_x=True, log_y=True, places=0,
    )  # fmt: skip


def _seats_chart(band: tuple[Tried, ...], ask: Ask) -> Chart:
    return figures.lines(
        _shares(band, ask), name="seats", title="Latency against seats", x="seats", y=Y_AXIS,
        target=100.0, band=_band_of(band), log_x=True, log_y=True, places=0,
    )  # fmt: skip


def _roof(ask: Ask, row: Row, basis: StepBasis, seen: Figures | None) -> list[Chart]:
    """Prefill and decode of this configuration under the device's roof; nothing where no peak is known."""
    peak = model_peak(row.model, row.device, row.precision)
    if peak is None:
        return []
    together = max(1, min(ask.seats, round((seen.in_flight_mean or 1) / ask.replicas))) if seen else 1
    context = ask.isl + ask.osl // 2
    model, step = row.model, basis.step
    flop = together * (linear_flop_per_tok(model) + head_flop(model) + attention_flop(model, context))
    read = streamed_weight_bytes(model, row.precision, step_tok=together) + together * kv_read_bytes(model, context)
    decode_s = step_s(step, seqs=together, kv_tok=together * context)
    whole = prefill_flop(model, ask.isl)
    prefill_s = step_s(step, seqs=0, kv_tok=0, prefill_tok=ask.isl, prefill_pos=ask.isl * (ask.isl - 1) // 2)
    read_once = streamed_weight_bytes(model, row.precision, step_tok=ask.isl)
    return [
        figures.roofline(
            peak_flop_per_s=peak.value * ask.tp,
            bandwidth_bytes_per_s=row.device.bandwidth_bytes_per_s * ask.tp,
            points=[
                (f"decode, {together} together", flop / read, flop / decode_s),
                (f"prefill, {fmt(ask.isl)} tokens", whole / read_once, whole / prefill_s),
            ],
            device=row.device.title if ask.tp == 1 else f"{ask.tp} x {row.device.title}",
        )
    ]


# --- getting ready ----------------------------------------------------------------------------------------------------


def get_ready() -> bool:
    """Load the compiled engine (compile it once, where it never was), so that no move of a slider waits for that.

    It is what simulating a hundred thousand requests does by itself; here nobody waits for it.
    """
    from servefit.engine.config import EngineConfig
    from servefit.engine.jump import kernel_compiled, simulate_jumping
    from servefit.physics.steptime import StepTime

    ready = kernel_compiled() is not None
    if ready:
        step = StepTime(const_s=0.001, per_seq_s=1e-5)
        many = [Request(id=i, due_s=i * 0.01, isl=16, osl=4) for i in range(110_000)]
        for policy in ("chunked", "static"):
            simulate_jumping(many, EngineConfig(policy=policy, seats=8), step, compiled=True)
    return ready
