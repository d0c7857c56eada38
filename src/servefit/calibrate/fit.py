"""Runs -> a calibration: robust regression of step times on what each step did, with intervals, residuals and domain.

Works on any run, measured by us, imported or simulated: nothing about the server needs to be known, though knowing how
it batches lets the steps be cut finer. What the runs cannot tell is taken from a prior and marked as such.
"""

import hashlib
import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from servefit.calibrate.calibration import (
    BEND,
    FITTED,
    Batching,
    Calibration,
    Coefficient,
    Domain,
    Residual,
    load_calibration,
    save_calibration,
    with_coefficients,
)
from servefit.calibrate.regress import Fit, robust_fit, t95
from servefit.calibrate.steps import NOTHING_KNOWN, Observation, observe, streams_of, told_by_server
from servefit.errors import CannotMeasure
from servefit.physics.steptime import TILE_TOK, StepTime, step_s
from servefit.records import Finding, Run, header_to_json, row_to_json
from servefit.stats import percentile

__all__ = ["Calibration", "fit_runs", "load_calibration", "run_sha256", "save_calibration"]

FRONT_SERIAL_S = 0.0005
"""Assumed: a front end hands over requests of the same moment one after the other. How fast hardly matters; that the first
one finds an idle engine, which then starts without the others, does."""
MAX_ROWS = 4000
"""Observations that enter the regression; of more, evenly spaced ones do. Plain Python then needs about a second."""
FEWEST = 30
"""Below this many observations nothing is fitted."""


def fit_runs(
    runs: Sequence[Run],
    *,
    names: Sequence[str] = (),
    hashes: Sequence[str] = (),
    batching: Batching | None = None,
    prior: StepTime | None = None,
    held_out: Sequence[Run] = (),
) -> Calibration:
    """The calibration that `runs` teach: step-time coefficients, each with a 95% interval, residuals and domain.

    `names` and `hashes` identify the runs (by default their target and place, and the hash of their content). `prior`
    stands in for coefficients on which no observation bears; without one they are 0 and marked "assumed". `held_out`
    runs are not fitted; their residuals are reported. Raises CannotMeasure where there is too little to learn from.
    """
    known = batching or NOTHING_KNOWN
    labels = [names[i] if i < len(names) else f"run {i + 1}" for i in range(len(runs))]
    per_run = [observe(run, known) for run in runs]
    told = [told_by_server(run, known) for run in runs]
    if sum(len(o) for o in per_run) < FEWEST:
        raise CannotMeasure(
            f"These runs hold {sum(len(o) for o in per_run)} observed steps; a fit needs at least {FEWEST}.",
            hint="Measure with longer answers (--osl 64) or more requests, or let servefit calibrate a live server.",
        )
    tagged = [(number, o) for number, (seen, own) in enumerate(zip(per_run, told, strict=True)) for o in (*seen, *own)]
    kept = _thin(tagged)
    knots, fit = _best_fit(kept)
    if prior is not None and (stand_ins := _stand_ins(fit, prior)):
        # what the prior says is paid is not learned once more as part of something else
        if (left := _beside(kept, stand_ins)) is not None:
            knots, fit = _best_fit(left)
        elif prior.source == "spec":
            prior = None  # nobody named it
        else:
            raise CannotMeasure(
                f"The prior alone says more than {MOST_OF_PRIOR:.0%} of the time that these runs took ({prior.origin}).",
                hint="It is of a slower machine or a larger model: name another one, or none.",
            )
    step, coefficients = _coefficients(fit, [o for _, o in kept], knots, prior=prior, labels=labels)
    scatter = _scatter(step, [o for seen in per_run for o in seen])
    header = runs[0].header
    return Calibration(
        step=step,
        coefficients=coefficients,
        covariance=fit.covariance,
        domain=_domain(runs, [o for seen in per_run for o in seen]),
        residuals=(
            *(r for label, seen in zip(labels, per_run, strict=True) if (r := residual(step, label, seen))),
            *(
                r
                for i, run in enumerate(held_out)
                if (r := residual(step, f"held out {i + 1}", observe(run, known), held_out=True))
            ),
        ),
        runs={
            label: hashes[i] if i < len(hashes) else run_sha256(run)
            for i, (label, run) in enumerate(zip(labels, runs, strict=True))
        },
        device=str(header.machine.get("device") or header.machine.get("cpu") or header.machine.get("name") or ""),
        engine=str(header.engine.get("name") or ""),
        engine_build=str(header.engine.get("build") or ""),
        model=header.model,
        batching=known,
        noise_frac=scatter.noise_frac,
        mean_over_median=scatter.mean,
        median_over_fit=scatter.median,
        findings=_findings(coefficients, scatter.noise_frac),
    )


def predict_s(step: StepTime, o: Observation) -> float:
    """Seconds that the step time gives for the work in `o`."""
    front = step.front_end_s * o.front_end + step.front_end_per_tok_s * o.front_end_tok
    return front + math.fsum(
        step_s(
            step,
            seqs=p.seqs,  # type: ignore[arg-type]  # shares of a step, where a chunk held several tokens
            kv_tok=p.kv_tok,  # type: ignore[arg-type]
            prefill_tok=p.prefill_tok,  # type: ignore[arg-type]
            prefill_pos=p.prefill_pos,  # type: ignore[arg-type]
            changed=p.changed,
            prompts=p.prompts,  # type: ignore[arg-type]
        )
        for p in o.parts
    )


def residual(
    step: StepTime, run: str, observations: Sequence[Observation], *, held_out: bool = False
) -> Residual | None:
    """How far the run's observations lie from `step`; None where there are none."""
    relative = [(o.time_s - f) / f for o in observations if (f := predict_s(step, o)) > 0]
    if not relative:
        return None
    sizes = sorted(abs(r) for r in relative)
    n = len(relative)
    return Residual(
        run=run,
        n=n,
        bias_frac=sorted(relative)[n // 2],
        median_abs_frac=sizes[n // 2],
        p90_abs_frac=sizes[min(n - 1, 9 * n // 10)],
        held_out=held_out,
    )


def run_sha256(run: Run) -> str:
    """The content hash of a run in memory: the same as `records.content_sha256` of its folder once saved."""
    header: dict[str, Any] = header_to_json(replace(run.header, finished=True))
    text = json.dumps(header, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    digest = hashlib.sha256(text.encode())
    for row in run.rows:
        digest.update(row_to_json(row).encode() + b"\n")
    return digest.hexdigest()


def columns(o: Observation, knots: Sequence[int]) -> list[float]:
    """How much of each coefficient `o` pays: those of FITTED in order, then the rises (or falls) of the bend between `knots`."""
    row = [
        float(len(o.parts)),
        float(sum(p.changed for p in o.parts)),
        math.fsum(p.seqs for p in o.parts),
        math.fsum(p.kv_tok for p in o.parts),
        math.fsum(p.prefill_tok for p in o.parts),
        math.fsum(p.prefill_tok for p in o.parts if p.tokens % TILE_TOK),
        math.fsum(p.prefill_pos for p in o.parts),
        math.fsum(p.prompts for p in o.parts),
        float(o.front_end),
        float(o.front_end_tok),
    ]
    for low, high in pairwise(knots):
        row.append(math.fsum(min(max((p.tokens - low) / (high - low), 0.0), 1.0) for p in o.parts))
    return row


KNOTS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Where the bend may have a point: step sizes at which matrix kernels switch are small ones."""
RAGGED = list(FITTED).index("ragged_tok_s")
WORTH_IT = 0.88
"""The bend is kept where it shrinks the residuals to this share: straight is simpler, and reaches further."""


MOST_OF_PRIOR = 0.9
"""What a prior may say of the time that was measured: more, and it is of something else."""
ENOUGH = 60
"""Single decode steps of one batch size count as so many at most: thousands of lone steps must not outvote the batches."""
LOOSE, STIFF, FALL = 3.0, 0.3, 0.03
"""How large a rise of the bend may well be, in single steps: up to the largest batch, where decode steps show it, and above,
where only prompts do, whose own slope says nearly the same. Up to the largest batch it may fall as well, as a kernel for more
requests can be the faster one, but not lightly: else a fall takes back what a request is said to cost too much, and what is said of still larger batches is wild."""


def _size(o: Observation) -> int:
    return round(o.parts[0].seqs)


def _knots(rows: Sequence[Observation]) -> tuple[int, ...]:
    """The points at which the bend can be told: between two neighbours lie steps of at least two observations."""
    sizes = sorted(p.tokens for o in rows for p in o.parts)
    if not sizes:
        return ()
    found = [max(k for k in KNOTS if k <= max(sizes[0], 1))]
    for k in KNOTS:
        if k > found[-1] and bisect_right(sizes, k) - bisect_right(sizes, found[-1]) >= 2:
            found.append(k)
    return tuple(found) if len(found) > 3 else ()


def _widest(rows: Sequence[Observation]) -> float:
    """The largest batch of decoding requests."""
    return max((p.seqs for o in rows for p in o.parts), default=0.0)


def _best_fit(kept: Sequence[tuple[int, Observation]]) -> tuple[tuple[int, ...], Fit]:
    """(points of the bend, the fit): straight, unless a bend is worth its coefficients."""
    rows = [o for _, o in kept]
    groups = [(number, o.busy) for number, o in kept]
    times = [o.time_s for o in rows]
    alike = Counter(_size(o) for o in rows if o.plain)
    weights = [_importance(o) * (min(1.0, ENOUGH / alike[_size(o)]) if o.plain else 1.0) for o in rows]
    widest = _widest(rows)

    def fit_with(knots: tuple[int, ...], *, tiles: bool = True) -> tuple[Fit, float]:
        x = [columns(o, knots) for o in rows]
        for row in x:
            row[RAGGED] *= tiles
        single = sorted(o.time_s / len(o.parts) for o in rows)[len(rows) // 2]
        rises = [(LOOSE if k <= widest else STIFF) * single for k in knots[1:]]
        loose = [0.0] * len(FITTED) + rises
        falling = [i for i, k in enumerate(knots[1:], len(FITTED)) if k <= widest]
        both = [[*row, *(-row[i] for i in falling)] for row in x]
        loose += [FALL * single] * len(falling)
        fit = _joined(robust_fit(both, times, groups, importance=weights, loose=loose), falling)
        fitted = [math.fsum(v * (b or 0.0) for v, b in zip(row, fit.beta, strict=True)) for row in x]
        if tiles and (fit.beta[RAGGED] or 0.0) <= t95(fit.freedom) * math.sqrt(
            max(fit.covariance[RAGGED][RAGGED], 0.0)
        ):
            return fit_with(knots, tiles=False)  # a cost that may as well be zero only blurs that of a prompt token
        misses = [w * min(abs(t - f) / f, 0.5) if f > 0 else w for w, t, f in zip(weights, times, fitted, strict=True)]
        return fit, math.fsum(misses) / math.fsum(weights)

    straight, miss = fit_with(())
    knots = _knots(rows)
    if not knots:
        return (), straight
    bent, bent_miss = fit_with(knots)
    return (knots, bent) if bent_miss < WORTH_IT * miss and bent_miss > 0 and miss > 2e-3 else ((), straight)


def _stand_ins(fit: Fit, prior: StepTime) -> dict[str, float]:
    """The coefficients that the runs do not tell and the prior does."""
    return {
        name: value
        for name, told in zip(FITTED, fit.beta, strict=False)
        if told is None and (value := getattr(prior, name)) > 0
    }


def _beside(
    kept: Sequence[tuple[int, Observation]], stand_ins: dict[str, float]
) -> list[tuple[int, Observation]] | None:
    """The observations less what the prior says of each; None where that is nearly all of the time that was measured."""
    place = {name: j for j, name in enumerate(FITTED)}
    out, shares = [], []
    for number, o in kept:
        row = columns(o, ())
        theirs = math.fsum(row[place[name]] * value for name, value in stand_ins.items())
        shares.append(theirs / o.time_s)
        out.append((number, replace(o, time_s=max(o.time_s - theirs, 0.1 * o.time_s))))
    return None if (percentile(shares, 50) or 0.0) > MOST_OF_PRIOR else out


def _joined(fit: Fit, falling: Sequence[int]) -> Fit:
    """The fit with the last columns, which are those in `falling` negative, taken off these: one coefficient of either sign."""
    m = len(fit.beta) - len(falling)
    beta = list(fit.beta[:m])
    of = [(j, 1.0) for j in range(m)] + [(j, -1.0) for j in falling]
    covariance = [[0.0] * m for _ in range(m)]
    for a, (i, sign) in enumerate(of):
        if a >= m and (fit.beta[a] or 0.0):
            beta[i] = (beta[i] or 0.0) - (fit.beta[a] or 0.0)
        for b, (j, other) in enumerate(of):
            covariance[i][j] += sign * other * fit.covariance[a][b]
    return replace(fit, beta=tuple(beta), covariance=tuple(map(tuple, covariance)))


def _importance(o: Observation) -> float:
    """A stretch around a prefill is rarer than a decode step and says as much as the steps in it, up to ten."""
    return 1.0 if o.plain else float(min(max(len(o.parts), 4 if o.prefill_tok else 1), 10))


def _thin(tagged: list[tuple[int, Observation]]) -> list[tuple[int, Observation]]:
    """At most MAX_ROWS observations: every stretch with a prefill, and evenly spaced plain decode steps."""
    plain = [t for t in tagged if not t[1].prefill_tok]
    rest = [t for t in tagged if t[1].prefill_tok]
    rest = rest[:: max(1, -(-len(rest) // (MAX_ROWS // 2)))]
    return [*plain[:: max(1, -(-len(plain) // (MAX_ROWS - len(rest))))], *rest]


def _coefficients(
    fit: Fit, rows: Sequence[Observation], knots: Sequence[int], *, prior: StepTime | None, labels: Sequence[str]
) -> tuple[StepTime, tuple[Coefficient, ...]]:
    """The step time and its coefficients: fitted where the rows tell, the prior's (or 0) where they do not."""
    origin = f"fitted to {len(rows)} observations of {len(labels)} runs"
    wide = t95(fit.freedom)
    found: list[Coefficient] = []
    paid = [columns(o, knots) for o in rows]
    may_fall = {f"{BEND}{k}" for k in knots if k <= _widest(rows)}
    for j, name in enumerate([*FITTED, *(f"{BEND}{k}" for k in knots[1:])]):
        value = fit.beta[j]
        points = sum(1 for row in paid if row[j])
        if value is None:
            stand_in = getattr(prior, name, 0.0) if prior else 0.0
            found.append(
                Coefficient(
                    name=name,
                    value=stand_in,
                    low=stand_in,
                    high=stand_in,
                    points=points,
                    source=prior.source if prior and stand_in else "assumed",
                    origin=prior.origin if prior and stand_in else "no observation bears on it: taken as zero",
                )
            )
            continue
        half = wide * math.sqrt(max(fit.covariance[j][j], 0.0))
        found.append(
            Coefficient(
                name=name,
                value=value,
                low=value - half if name in may_fall else max(0.0, value - half),
                high=value + half,
                source="measured",
                origin=origin,
                points=points,
            )
        )
    base = StepTime(
        source="measured", origin=origin, front_serial_s=FRONT_SERIAL_S, bend=((knots[0], 0.0),) if knots else ()
    )
    return with_coefficients(base, {c.name: c.value for c in found}), tuple(found)


class Scatter(NamedTuple):
    """Single decode steps around the fit; None where there are too few."""

    noise_frac: float | None = None
    """Half of the range from the 16th to the 84th percentile."""
    mean: float | None = None
    """Total measured over total fitted time."""
    median: float | None = None
    """Median of measured over fitted time."""


def _scatter(step: StepTime, rows: Sequence[Observation]) -> Scatter:
    plain = [o for o in rows if o.plain]
    relative = sorted(o.time_s / f for o in plain if (f := predict_s(step, o)) > 0)
    if len(relative) < FEWEST:
        return Scatter()
    n = len(relative)
    fitted = math.fsum(predict_s(step, o) for o in plain)
    spread = (relative[84 * n // 100] - relative[16 * n // 100]) / 2
    return Scatter(spread, math.fsum(o.time_s for o in plain) / fitted, percentile(relative, 50))


def _domain(runs: Sequence[Run], rows: Sequence[Observation]) -> Domain:
    """The smallest and largest batch, context and prompt that the runs hold."""
    plain = [p for o in rows for p in o.parts if p.seqs and not o.prefill_tok]
    prompts = [s.isl - s.cached_tok for run in runs for s in streams_of(run)]

    def span(values: Sequence[int]) -> tuple[int, int] | None:
        return (min(values), max(values)) if values else None

    return Domain(
        seqs=span([math.ceil(p.seqs - 1e-9) for p in plain]),
        ctx_tok=span([round(p.kv_tok / p.seqs) for p in plain]),
        kv_tok=span([round(p.kv_tok) for p in plain]),
        prefill_tok=span(prompts),
    )


def _findings(coefficients: Sequence[Coefficient], noise: float | None) -> tuple[Finding, ...]:
    found = [
        Finding(
            code="not_learned",
            level="note",
            message=f"{c.name} (paid for {FITTED[c.name]}) was not learned: "
            + (c.origin if c.source == "assumed" else f"a prior stands in, {c.origin}")
            + ".",
            hint=PROBE_FOR[c.name],
        )
        for c in coefficients
        if c.source != "measured" and c.name in FITTED and c.name != "ragged_tok_s"
    ]
    if noise is not None and noise > NOISY:
        found.append(
            Finding(
                code="noisy",
                level="suspect",
                message=f"Single steps scatter by {noise:.0%} around the fit: the machine or the way to it is not quiet.",
                hint="Stop other work and calibrate again (`servefit check` says whether the machine keeps its pace); the intervals hold only for a "
                "machine as busy as this.",
            )
        )
    return tuple(found)


NOISY = 0.25
"""Scatter of single steps above which a calibration is suspect; quiet machines show 0.02 to 0.10."""

PROBE_FOR = {
    "const_s": "Measure answers of 32 tokens or more.",
    "change_s": "Measure requests that come and go while others decode.",
    "per_seq_s": "Measure at two or more levels of concurrency.",
    "per_kv_tok_s": "Measure short and long prompts (64 and 1024 tokens).",
    "per_prefill_tok_s": "Measure prompts of different lengths.",
    "ragged_tok_s": f"Measure lone prompts of {TILE_TOK}, {2 * TILE_TOK} and {4 * TILE_TOK} tokens beside others.",
    "per_prefill_pos_s": "Measure prompts from 64 to 2000 tokens.",
    "per_prompt_s": "Let several requests arrive at once.",
    "front_end_s": "Measure lone requests (--concurrency 1).",
    "front_end_per_tok_s": "Let a long prompt arrive while others decode: its stall shows the prefill without the front end.",
}
