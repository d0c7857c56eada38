"""Spend caps for every command that measures: the price found, the estimate made, each request counted."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.bill.cost import TokenPrice
    from servefit.measure.probe import Endpoint
    from servefit.measure.run import Options
    from servefit.records import RequestRecord
    from servefit.workload.workload import Workload

PROBES = 3
"""Requests before the load: one cold, two to learn how many tokens a word takes."""


@contextmanager
def capped(
    options: "Options", endpoint: "Endpoint", workload: "Workload", *, max_usd: float | None = None
) -> Iterator["Options"]:
    """The options, with the spend cap in them where the target is paid; the estimate is made and said first.

    `max_usd` is this run's cap, whatever the settings say, and makes any target a paid one.

    Raises AnswerIsNo where the run would pass a cap, ServefitError where a cap is set and no price is known.
    """
    if not endpoint.paid and max_usd is None:
        yield options
        return
    if max_usd is not None and not math.isfinite(max_usd):
        raise ServefitError(f"--max-usd {max_usd} is no cap.", hint="Write US dollars, e.g. 1.50.")
    from servefit.bill.caps import Guard, ledger_path
    from servefit.bill.config import load_limits

    limits = load_limits()
    if max_usd is not None:
        limits = replace(limits, usd_per_run=max_usd)
    price = price_of(endpoint.name, endpoint.model)
    if price is None or price.output_usd_per_mtok is None:
        if limits.by_period():
            raise ServefitError(
                f"A spend cap is set, but the price of {endpoint.model or 'the model'} at {endpoint.name} is not known.",
                hint=f'Give it in servefit.toml: [bill.token_prices."{endpoint.name}/{endpoint.model or "MODEL"}"] with '
                "input_usd_per_mtok and output_usd_per_mtok, or pip install 'servefit[prices]'.",
            )
        click.echo("Its price is not known and no cap is set: what this costs is not counted.", err=True)
        yield options
        return
    with Guard(ledger_path(), price, limits, target=endpoint.name) as guard:
        click.echo(f"{guard.require(_shapes(workload)).sentence} Prices: {price.source}.", err=True)

        def may_send(key: str, isl: int, osl: int) -> bool:
            return guard.may_send(key, isl=isl, osl=osl)

        def settled(row: "RequestRecord") -> None:
            guard.settle(row.id, row)

        try:
            yield replace(options, may_send=may_send, settled=settled)
        finally:
            click.echo(f"used: ${guard.spent_usd():.4f} by this run.", err=True)


def _shapes(workload: "Workload") -> Iterator[tuple[int, int]]:
    """Prompt and answer tokens of each request that will be sent."""
    from servefit.workload.drawn import requests_of

    requests = requests_of(workload)
    yield from ((r.isl, r.osl) for r in requests)
    yield from [(requests[0].isl, requests[0].osl)] * PROBES


def price_of(target: str, model: str | None) -> "TokenPrice | None":
    """The token price of a target's model: servefit.toml's, else the genai-prices package's; None where neither has it."""
    from servefit.bill.config import load_config

    given = load_config().token_prices
    for name in (f"{target}/{model}", model or "", target):
        if name in given:
            return given[name]
    if not model:
        return None
    try:
        return published_price(model, target)
    except ServefitError:
        return None


def published_price(model: str, provider: str | None) -> "TokenPrice":
    """The token price that the genai-prices package has. Raises MissingExtra, or ServefitError where it has none."""
    from servefit.bill.cost import TokenPrice
    from servefit.facts.prices import token_prices

    found = token_prices(model, provider)[0]
    note = f" ({found.note})" if found.note else ""
    return TokenPrice(
        input_usd_per_mtok=found.input_usd_per_mtok, cached_input_usd_per_mtok=found.cached_input_usd_per_mtok,
        output_usd_per_mtok=found.output_usd_per_mtok, source=f"{found.provider} by {found.source}{note}", date=found.date or None,
    )  # fmt: skip
