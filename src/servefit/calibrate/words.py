"""What a calibration learned, in a few lines of words."""

from collections.abc import Iterator

from servefit.calibrate.calibration import Calibration, coefficient, mean_step
from servefit.calibrate.learn import seats_of, spread_words
from servefit.calibrate.recognise import server_config
from servefit.engine.simulate import simulate
from servefit.physics.steptime import step_s
from servefit.units import fmt, fmt_percent, fmt_s
from servefit.workload.requests import Request

POLICY_WORDS = {
    "none": "one request at a time",
    "static": "a batch at a time: newcomers wait until it has ended",
    "dynamic": "a batch at a time, formed after a short wait",
    "continuous": "newcomers join at every step, their whole prompt first while the others stand still",
    "chunked": "newcomers join at every step, their prompt in pieces beside the others' tokens",
    "unknown": "not recognised",
}


def words(calibration: Calibration) -> Iterator[str]:
    """The lines, most important first."""
    step, domain = calibration.step, calibration.domain
    ctx = 256
    top = domain.seqs[1] if domain.seqs else 1
    alone = step_s(step, seqs=1, kv_tok=ctx)
    yield f"One request alone gets a token every {fmt_s(alone)} ({fmt(1 / alone)} tok/s) at {ctx} tokens of context."
    if top > 1:
        together = step_s(step, seqs=top, kv_tok=top * ctx)
        yield f"{top} together get one each every {fmt_s(together)}: {fmt(top / together)} tok/s in all, {fmt(together / alone, 1)} times the wait."
    if step.per_kv_tok_s > 0:
        yield f"Each 1,000 tokens of context cost {fmt_s(1000 * step.per_kv_tok_s)} a step and request."
    yield _prompt_words(calibration)
    if step.change_s > 0.02 * alone:
        yield f"A step after somebody came or left takes {fmt_s(step.change_s)} longer: the engine prepares for the new size."
    batching = calibration.batching
    sure = "it says so" if batching.confidence >= 1 else f"{fmt_percent(batching.confidence)} sure"
    budget = f", {batching.budget_tok:,} tokens a step" if batching.budget_tok else ", budget of a step unknown"
    budget = budget if batching.policy == "chunked" else ""
    cache = {True: ", prefix cache on", False: ", prefix cache off", None: ""}[batching.prefix_cache]
    yield (
        f"Batching: {batching.policy} ({POLICY_WORDS[batching.policy]}), {sure}; seats {seats_of(batching)}{budget}{cache}."
    )
    if (spread := spread_words(calibration)) is not None:
        yield f"Half of the steps lie within {fmt_percent(spread[0])} of this, nine of ten within {fmt_percent(spread[1])}."
    yield _domain_words(calibration)


def _prompt_words(calibration: Calibration) -> str:
    low, high = calibration.domain.prefill_tok or (128, 1000)
    sizes = [n for n in (128, 1000) if low <= n <= high] or [high]
    waits = " and ".join(f"{fmt_s(lone_ttft_s(calibration, n))} for {n:,} prompt tokens" for n in sizes)
    return f"A lone request waits {waits}, of which {fmt_s(calibration.step.front_end_s)} is before the engine."


def lone_ttft_s(calibration: Calibration, isl: int) -> float:
    """Seconds that one request alone waits for its first token: what `servefit simulate` says, its prompt in the server's own pieces."""
    asked = [Request(id=0, due_s=0.0, isl=isl, osl=1)]
    return simulate(asked, server_config(calibration), mean_step(calibration)).ttft_s[0]


def _domain_words(calibration: Calibration) -> str:
    d = calibration.domain

    def span(pair: tuple[int, int] | None) -> str:
        return "-" if pair is None else f"{pair[0]:,} to {pair[1]:,}"

    return (
        f"Measured on batches of {span(d.seqs)}, contexts of {span(d.ctx_tok)} and prompts of {span(d.prefill_tok)} tokens: "
        "beyond that it is a guess."
    )


def rows(calibration: Calibration) -> list[list[str]]:
    """A row a coefficient: what it is paid for, its value, its interval, where it comes from."""
    from servefit.calibrate.calibration import FITTED

    out = []
    for name, paid_for in FITTED.items():
        c = coefficient(calibration, name)
        if c is not None:
            out.append([paid_for, _time(c.value), f"{_time(c.low)} to {_time(c.high)}", c.source, f"{c.points:,}"])
    return out


def _time(value: float) -> str:
    """Small times in the unit that shows them."""
    return f"{fmt(value * 1e9, 1)} ns" if 0 < value < 1e-7 else fmt_s(value)
