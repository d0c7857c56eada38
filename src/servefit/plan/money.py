"""What a candidate costs, and how good its answers are, from tables and files that say where they come from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servefit.errors import ServefitError
from servefit.facts.devices import find_device
from servefit.facts.prices import hourly
from servefit.files import read_json
from servefit.plan.plan import Cost, Figures
from servefit.plan.spec import GivenPrice

GIVEN = "given by the user"
"""The source of a price that no catalogue stands behind; it has no date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one device costs an hour, and who says so."""

    usd_per_hour: float
    source: str
    as_of: str
    """Its date; "" where the user gave it."""


def hourly_price(device: str, given: Sequence[GivenPrice] = ()) -> Price | None:
    """The price that was given for one such device, else the lowest on-demand price that is known; None where none is.

    >>> hourly_price("my-box", [GivenPrice(device="my-box", usd_per_hour=1.1)])
    Price(usd_per_hour=1.1, source='given by the user', as_of='')
    """
    for own in given:
        if _same(own.device, device):
            return Price(usd_per_hour=own.usd_per_hour, source=GIVEN, as_of="")
    try:
        known = next(iter(hourly(device)), None)
    except ServefitError:  # a device of one's own
        return None
    if known is None:
        return None
    return Price(usd_per_hour=known.usd_per_hour, source=f"{known.provider}: {known.source}", as_of=known.date)


def _same(given: str, device: str) -> bool:
    """Whether a price's name means the device: by its name, or by another spelling of it that the catalogue knows."""
    if given == device:
        return True
    try:
        return find_device(given).name == device
    except ServefitError:
        return False


def check_prices(given: Sequence[GivenPrice], devices: Sequence[str]) -> None:
    """Raises ServefitError for a price of a device that is not asked about: it would be passed over in silence."""
    for own in given:
        if not any(_same(own.device, device) for device in devices):
            raise ServefitError(
                f"A price is given for {own.device}, which is not among the devices of this plan.",
                hint=f"Name one of {', '.join(devices)}.",
            )


def with_cost(device: str, count: int, figures: Figures | None, given: Sequence[GivenPrice] = ()) -> Cost | None:
    """Per hour for `count` devices, per request and per million output tokens at what was served; None without a price.

    usd_per_request = usd_per_hour / 3600 / req_per_s; usd_per_mtok = usd_per_hour / 3600 / output_tok_per_s x 10^6
    """
    price = hourly_price(device, given)
    if price is None:
        return None
    usd = price.usd_per_hour * count
    served = figures.req_per_s if figures else None
    output = figures.output_tok_per_s if figures else None
    return Cost(
        usd_per_hour=usd,
        usd_per_request=usd / 3600 / served if served else None,
        usd_per_mtok=usd / 3600 / output * 1e6 if output else None,
        source=price.source,
        as_of=price.as_of,
    )


def quality_scores(path: str) -> dict[str, float]:
    """Precision -> score, from a table of numbers or from result files of lm-evaluation-harness.

    Either {"bf16": 0.68, "fp8": 0.67}, or {"bf16": <a results.json of lm_eval>, ...}: then the mean over its tasks of
    the first accuracy in each. Raises ServefitError where neither is found.
    """
    table = read_json(Path(path))
    if isinstance(table, dict) and "results" in table:
        raise ServefitError(
            f"{path} is one result of lm-evaluation-harness, but of which precision?",
            hint='Write {"bf16": <that file\'s content>, "fp8": ...}, or {"bf16": 0.68, "fp8": 0.67}.',
        )
    if not isinstance(table, dict) or not table:
        raise ServefitError(f"{path} holds no scores.", hint='Write {"bf16": 0.68, "fp8": 0.67}.')
    return {str(name): _score(value, f"{path}: {name}") for name, value in table.items()}


def _score(value: Any, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ServefitError(f"{where} is {value}, which is no score.", hint="A number, e.g. 0.68.")
        return float(value)
    tasks = value.get("results") if isinstance(value, dict) else None
    scores = [_accuracy(task) for task in tasks.values()] if isinstance(tasks, dict) else []
    known = [s for s in scores if s is not None]
    if not known:
        raise ServefitError(f"{where} has no score.", hint="A number, or a result of lm-evaluation-harness with acc.")
    return sum(known) / len(known)


def _accuracy(task: Any) -> float | None:
    if not isinstance(task, dict):
        return None
    for name in ("acc_norm,none", "acc,none", "exact_match,strict-match", "exact_match,none", "acc_norm", "acc"):
        if isinstance(task.get(name), int | float):
            return float(task[name])
    return None
