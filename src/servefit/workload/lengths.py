"""How many tokens: one number drawn from a `Lengths`, or a fault named when it cannot be."""

import math
import random

from servefit.errors import ServefitError
from servefit.workload.workload import Lengths


def draw(lengths: Lengths, rng: random.Random) -> int:
    """One length in whole tokens, between `min` and `max`.

    `sd` is the standard deviation of the length itself for every kind; a uniform one reaches sqrt(3) sd to each side.
    Cutting to [min, max] moves mean and sd of a wide distribution; that is not corrected.

    >>> draw(Lengths(kind="fixed", mean=512), random.Random(0))
    512
    """
    mean, sd = float(lengths.mean), lengths.sd
    if lengths.kind == "fixed" or sd == 0.0:
        value = mean
    elif lengths.kind == "uniform":
        value = rng.uniform(mean - math.sqrt(3) * sd, mean + math.sqrt(3) * sd)
    elif lengths.kind == "normal":
        value = rng.gauss(mean, sd)
    else:
        variance = math.log1p((sd / mean) ** 2)
        value = math.exp(rng.gauss(math.log(mean) - variance / 2, math.sqrt(variance)))
    whole = max(round(value), lengths.min)
    return whole if lengths.max is None else min(whole, lengths.max)


def check_lengths(lengths: Lengths, what: str) -> None:
    """Raise ServefitError where no length can be drawn; `what` names it ("isl", "osl")."""
    if lengths.mean < 1 or lengths.min < 1:
        raise ServefitError(f"{what} is {min(lengths.mean, lengths.min)} tokens.", hint="A length is at least 1 token.")
    if not (lengths.sd >= 0 and math.isfinite(lengths.sd)):
        raise ServefitError(f"{what}.sd is {lengths.sd}.", hint="A standard deviation is 0 or more tokens.")
    if lengths.max is not None and lengths.max < lengths.min:
        raise ServefitError(
            f"{what}.max {lengths.max} is below {what}.min {lengths.min}.", hint="Swap them, or leave max out."
        )
