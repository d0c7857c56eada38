"""Prices: of a device by the hour, of a model by the token; each with provider, date and source, none of them for ever."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from servefit.errors import MissingExtra, ServefitError
from servefit.facts.cited import DOUBTFUL, Status
from servefit.facts.devices import find_device

Provisioning = Literal["on-demand", "spot", "dedicated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyPrice:
    """What one device costs for an hour at one provider, on one day."""

    device: str
    provider: str
    usd_per_hour: float
    provisioning: Provisioning
    """on-demand: by the hour, yours while it runs; spot: may be taken away; dedicated: a managed endpoint."""
    least_devices: int
    """Rented at least this many at a time; the price is still of one."""
    product: str
    date: str
    source: str
    status: Status

    @property
    def doubtful(self) -> bool:
        """Whether the status must be said where the price is printed."""
        return self.status in DOUBTFUL


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """US dollars per million tokens of one model at one provider; None where none is published."""

    provider: str
    model: str
    input_usd_per_mtok: float
    cached_input_usd_per_mtok: float | None
    cache_write_usd_per_mtok: float | None
    output_usd_per_mtok: float | None
    context_tok: int | None
    date: str
    source: str
    note: str = ""


def hourly(device_name: str, *, kinds: tuple[Provisioning, ...] = ("on-demand",)) -> tuple[HourlyPrice, ...]:
    """Known prices of the device by the hour, cheapest first; empty where none is known. Spot prices only on request.

    Raises ServefitError for a device that the catalogue does not know.
    """
    device = find_device(device_name).name
    return tuple(p for p in all_hourly() if p.device == device and p.provisioning in kinds)


@cache
def all_hourly() -> tuple[HourlyPrice, ...]:
    """Every hourly price known, by device, cheapest first."""
    table = tomllib.loads(files("servefit.facts").joinpath("prices.toml").read_text("utf-8"))
    found = []
    for device, rows in table["prices"].items():
        for provider, usd, provisioning, least, product, date, source, status in rows:
            found.append(
                HourlyPrice(
                    device=device, provider=provider, usd_per_hour=usd, provisioning=provisioning, least_devices=least,
                    product=product, date=date, source=table["sources"][source], status=status,
                )
            )  # fmt: skip
    return tuple(sorted(found, key=lambda p: (p.device, p.usd_per_hour, p.provider)))


def token_prices(model: str, provider: str | None = None) -> tuple[TokenPrices, ...]:
    """Token prices of a hosted model from the genai-prices package, one per provider that has it (or of `provider`).

    `model` is the name that the provider uses ("gpt-4o-mini", "accounts/fireworks/models/gpt-oss-120b"). Prices that
    rise with the prompt's length are given at their base, and the note says so. Raises MissingExtra without the package,
    ServefitError where no provider has the model.
    """
    try:
        import genai_prices
        from genai_prices.data import providers
    except ImportError:
        raise MissingExtra("genai-prices", "prices", purpose="Looking up token prices") from None
    from importlib.metadata import version

    stamp = version("genai-prices")
    found = []
    for one in providers:
        if provider is not None and provider.lower() not in {one.id.lower(), one.name.lower()}:
            continue
        entry = one.find_model(model)
        if entry is not None:
            found.append(_token_prices(one, entry, stamp))
    if not found:
        known = ", ".join(sorted(p.id for p in providers))
        where = f" at '{provider}'" if provider else ""
        raise ServefitError(
            f"genai-prices {stamp} has no price for the model '{model}'{where}.",
            hint=f"Give --price-in and --price-out, or another provider of: {known}.",
        )
    del genai_prices
    return tuple(found)


def _token_prices(provider: Any, entry: Any, stamp: str) -> TokenPrices:
    prices = entry.prices
    note = ""
    if isinstance(prices, list):  # a list of prices with conditions: the last one without a condition, or the last
        plain = [p for p in prices if getattr(p, "constraint", None) is None]
        prices, note = (plain or prices)[-1].prices, "the price depends on date or time"

    def mtok(name: str) -> float | None:
        nonlocal note
        value = getattr(prices, name, None)
        if value is None:
            return None
        if hasattr(value, "base"):
            note = "the price rises with the prompt's length; this is its base"
            value = value.base
        return float(value)

    base = mtok("input_mtok")
    return TokenPrices(
        provider=provider.id, model=entry.id, input_usd_per_mtok=base if base is not None else 0.0,
        cached_input_usd_per_mtok=mtok("cache_read_mtok"), cache_write_usd_per_mtok=mtok("cache_write_mtok"),
        output_usd_per_mtok=mtok("output_mtok"), context_tok=getattr(entry, "context_window", None),
        date=str(getattr(entry, "prices_checked", "") or ""), source=f"genai-prices {stamp}", note=note,
    )  # fmt: skip
