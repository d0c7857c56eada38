"""From runs to a calibration that may be trusted: recognise, fit, judge. Refuses what cannot be known.

refused       answers come in bunches (a proxy buffers), the machine is far too noisy, most requests failed or were
              rate-limited, too few steps
said          drift while measuring, noise, what was not learned, shared capacity behind a hosted service
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from servefit.calibrate.calibration import Batching, Calibration
from servefit.calibrate.fit import fit_runs
from servefit.calibrate.recognise import recognise, settle, told
from servefit.calibrate.steps import streams_of
from servefit.errors import CannotMeasure
from servefit.physics.steptime import StepTime
from servefit.records import Finding, Run
from servefit.stats import percentile

HOPELESS = 0.6
"""Scatter of single steps above which nothing is learned: the fit would describe the other work on the machine."""
MOST_AT_ONCE = 4.0
"""Speculative decoding hands out up to about so many tokens a step; more at a time on average is a buffer."""
DRIFT = 1.25
"""Steps at the end of the lone requests may take this much longer than at their start."""


def learn(
    runs: Sequence[Run],
    *,
    names: Sequence[str] = (),
    hashes: Sequence[str] = (),
    prior: StepTime | None = None,
    hosted: bool = False,
    force: bool = False,
) -> Calibration:
    """The calibration of the server behind `runs`, which must all be of one server and model.

    `hosted` says that others use the same server: what is learned then holds for one user of it. `force` keeps a
    calibration that would be refused, marked invalid. Raises CannotMeasure with what is in the way.
    """
    same_server(runs)
    against = [f for f in (_failures(runs), _bunches(runs)) if f]
    if against and not force:
        raise CannotMeasure(against[0].message, hint=against[0].hint)
    batching = settle(told(runs), recognise(runs))
    found = fit_runs(runs, names=names, hashes=hashes, batching=batching, prior=prior)
    noise = found.noise_frac or 0.0
    if noise > HOPELESS:
        word = Finding(
            code="too_noisy",
            level="invalid",
            message=f"Single steps scatter by {noise:.0%} around any fit: the machine is busy with something else.",
            hint="Stop the other work and calibrate again; --force keeps it, marked invalid.",
        )
        if not force:
            raise CannotMeasure(word.message, hint=word.hint)
        against.append(word)
    said = [*found.findings, *against, *(f for f in (_drift(runs), _shared(hosted)) if f)]
    levels = {f.level for f in said}
    return replace(
        found,
        findings=tuple(said),
        scope="one user of a service" if hosted else "server",
        verdict="invalid" if "invalid" in levels else "suspect" if "suspect" in levels else "valid",
        kv_tok=_kv_tok(runs),
        block_tok=next((b for r in runs if isinstance(b := r.header.engine.get("block_tok"), int) and b > 0), None),
    )


def same_server(runs: Sequence[Run]) -> None:
    """Raise CannotMeasure where the runs are of different models or engines, or not measured at all."""
    if not runs:
        raise CannotMeasure("There is no run to learn from.", hint="Name run folders, or a target to probe.")
    for what, values in (
        ("models", {run.header.model for run in runs}),
        ("engines", {str(run.header.engine.get("name") or "") for run in runs}),
        ("batching policies", {str(run.header.engine.get("policy") or "") for run in runs}),
    ):
        if len(values) > 1:
            raise CannotMeasure(
                f"These runs are of {len(values)} {what}: {', '.join(sorted(v or '(none)' for v in values))}.",
                hint="Calibrate each from its own runs.",
            )


def _failures(runs: Sequence[Run]) -> Finding | None:
    rows = [row for run in runs for row in run.load_rows]
    limited = sum(row.status == "rate_limited" for row in rows)
    failed = sum(not row.ok for row in rows)
    if limited > 0.05 * len(rows):
        return Finding(
            code="rate_limited",
            level="invalid",
            message=f"{limited} of {len(rows)} requests were rate-limited: what they waited for is not the engine.",
            hint="Calibrate below the limit (--quick asks less), or ask for a higher one.",
        )
    if failed > 0.3 * len(rows):
        return Finding(
            code="failures",
            level="invalid",
            message=f"{failed} of {len(rows)} requests failed: what the others shared the server with is not known.",
            hint="Make it answer first: servefit measure TARGET.",
        )
    return None


def _bunches(runs: Sequence[Run]) -> Finding | None:
    """Whether tokens of one request come in bunches, which an engine that steps does not make."""
    apart = close = several = pieces = 0
    for run in runs:
        for s in streams_of(run):
            chunks = s.row.chunk_s
            if s.row.chunk_tok is not None:
                several, pieces = several + sum(s.row.chunk_tok[1:]), pieces + len(s.row.chunk_tok) - 1
                continue
            if len(chunks) < 8:
                continue
            mean = (chunks[-1] - chunks[0]) / (len(chunks) - 1)
            close += sum(b - a < 0.1 * mean for a, b in pairwise(chunks))
            apart += len(chunks) - 1
    if several > apart and several > MOST_AT_ONCE * pieces:
        return Finding(
            code="buffered",
            level="invalid",
            message=f"Tokens arrive {several / pieces:.1f} at a time: something on the way buffers, and no step can be seen.",
            hint="Measure next to the server, or switch off buffering in the proxy (nginx: proxy_buffering off).",
        )
    if apart and close > 0.4 * apart:
        return Finding(
            code="buffered",
            level="invalid",
            message=f"{close / apart:.0%} of the tokens arrive at once with the one before: something on the way buffers.",
            hint="Measure next to the server, or switch off buffering in the proxy (nginx: proxy_buffering off).",
        )
    return None


def _drift(runs: Sequence[Run]) -> Finding | None:
    """Whether equal requests took longer at the end of a run than at its start."""
    for run in runs:
        rows = [r for r in run.load_rows if r.ok and r.tpot_s]
        if run.header.load.get("concurrency") != 1 or len(rows) < 6:
            continue
        half = len(rows) // 2
        early = percentile([r.tpot_s or 0.0 for r in rows[:half]], 50) or 0.0
        late = percentile([r.tpot_s or 0.0 for r in rows[-half:]], 50) or 0.0
        if early and late and max(early / late, late / early) > DRIFT:
            word = "slower" if late > early else "faster"
            return Finding(
                code="drift",
                level="suspect",
                message=f"The same requests were {abs(late / early - 1):.0%} {word} at the end of the run than at its start.",
                hint="Is the machine heating up, or other work starting? Calibrate again.",
            )
    return None


def _shared(hosted: bool) -> Finding | None:
    if not hosted:
        return None
    return Finding(
        code="shared_capacity",
        level="note",
        message="Others use this service too: what was learned holds for one user of it, at this hour.",
        hint="Do not plan its capacity from here; its seats and its queue are not yours.",
    )


def _kv_tok(runs: Sequence[Run]) -> int | None:
    """Tokens in the KV cache, where the server says so."""
    for run in runs:
        told_tok, blocks = run.header.engine.get("kv_tok"), run.header.engine.get("kv_blocks")
        block_tok = run.header.engine.get("block_tok")
        if isinstance(told_tok, int):
            return told_tok
        if isinstance(blocks, int) and isinstance(block_tok, int):
            return blocks * block_tok
    return None


def seats_of(batching: Batching) -> str:
    """The seats in words: "8", "at least 16", "not known"."""
    if batching.seats:
        return f"{batching.seats:,}"
    return f"at least {batching.seats_at_least:,}" if batching.seats_at_least else "not known"


def spread_words(calibration: Calibration) -> tuple[float, float] | None:
    """(share within which half of the observations lie, share within which nine of ten do), over all fitted runs."""
    rows = [r for r in calibration.residuals if not r.held_out]
    n = sum(r.n for r in rows)
    if not n:
        return None
    middle = math.fsum(r.median_abs_frac * r.n for r in rows) / n
    return middle, math.fsum(r.p90_abs_frac * r.n for r in rows) / n
