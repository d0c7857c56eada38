"""Prices: every one with date and source, spot apart from on-demand, unknown ones never zero."""

import importlib.util

import pytest

from servefit.errors import ServefitError
from servefit.facts.devices import find_device
from servefit.facts.prices import all_hourly, hourly, token_prices


@pytest.mark.parametrize("price", all_hourly(), ids=lambda p: f"{p.device}-{p.provider}-{p.product}")
def test_every_price_has_a_device_a_date_and_a_source(price):
    """The device is in the catalogue, the price is one of an hour, the date is a date."""
    assert find_device(price.device).name == price.device
    assert 0.1 <= price.usd_per_hour <= 20 and price.least_devices >= 1
    assert price.date.startswith("2026") and price.source


def test_spot_is_only_given_on_request():
    """A price that may be taken away is not compared with one that may not."""
    assert all(p.provisioning == "on-demand" for p in hourly("h100-sxm"))
    assert any(p.provisioning == "spot" for p in hourly("h100-sxm", kinds=("spot",)))
    usd = [p.usd_per_hour for p in hourly("h100-sxm")]
    assert usd == sorted(usd) and len(usd) > 3


def test_no_price_is_no_price():
    """A device that nobody rents out has none, not 0."""
    assert hourly("m4-max-36gb") == ()
    with pytest.raises(ServefitError):
        hourly("no-such-device")


@pytest.mark.skipif(importlib.util.find_spec("genai_prices") is None, reason="genai-prices is not installed")
def test_token_prices_from_the_package():
    """A hosted model's prices, with the package's version as the source; an unknown one is a sentence."""
    found = token_prices("gpt-4o-mini", "openai")
    assert [(p.input_usd_per_mtok, p.cached_input_usd_per_mtok, p.output_usd_per_mtok) for p in found] == [
        (0.15, 0.075, 0.6)
    ]
    assert found[0].source.startswith("genai-prices ")
    assert "base" in token_prices("gemini-2.5-pro", "google")[0].note
    with pytest.raises(ServefitError, match="no price for the model"):
        token_prices("no-such-model-anywhere")
