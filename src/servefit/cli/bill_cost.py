"""What `bill cost` reads: lengths and throughput from a run, token prices from flags, servefit.toml or genai-prices."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from servefit.bill.cost import Shape, TokenPrice, Variant
from servefit.errors import ServefitError
from servefit.units import parse_number, parse_plain


def shape_of(run: Path | None, given: Mapping[str, str | None]) -> tuple[Shape, float | None, str]:
    """The tokens of a request, what one machine serves, and how that is known; flags go before the run."""
    isl, osl, cached = (whole_tokens(given[name], name) for name in ("isl", "osl", "cached"))
    capacity = parse_plain(given["capacity"] or "0", "req/s", "/s") or None
    source = "given"
    if run is not None:
        from servefit.objectives import summarize
        from servefit.records import load_run

        loaded = load_run(run)
        summary = summarize(loaded)
        if not summary.ok:
            raise ServefitError(f"No request of {run} completed, so nothing can be priced.", hint="Name another run.")
        rows = [r for r in loaded.load_rows if r.ok]
        isl = isl if isl is not None else round(summary.input_tok / summary.ok)
        osl = osl if osl is not None else round(summary.output_tok / summary.ok)
        if not cached:
            cached = min(round(sum(r.cached_tok or 0 for r in rows) / summary.ok), isl)
        if capacity is None:
            capacity, source = summary.req_per_s, f"as {run.name} served"
    if isl is None:
        raise ServefitError("The prompt's length is missing.", hint="Add --isl N (and --osl N), or name a run.")
    return Shape(isl=isl, osl=osl, cached_tok=cached or 0), capacity, source


def token_price(given: Mapping[str, str | None]) -> TokenPrice | None:
    """The token price that the flags give, or that the genai-prices package has for --token-model; None without either."""
    if given["price_in"] is None:
        if given["token_model"] is None:
            return None
        from servefit.cli.spend import published_price

        found = published_price(given["token_model"], given["provider"])
        return replace(found, batch_frac=_share(given["batch_frac"]))
    return TokenPrice(
        input_usd_per_mtok=_price(given["price_in"], "price-in") or 0.0,
        cached_input_usd_per_mtok=_price(given["price_cached"], "price-cached"),
        output_usd_per_mtok=_price(given["price_out"], "price-out"),
        batch_frac=_share(given["batch_frac"]),
        source=given["price_source"] or "given on the command line",
        date=given["price_date"],
    )


def hourly_price(given: Mapping[str, str | None]) -> tuple[float | None, str, str | None]:
    """US dollars an hour of one machine, its source and date: the flag's, else the cheapest on-demand price of --device."""
    if given["usd_per_hour"] is not None:
        value = parse_plain(given["usd_per_hour"], "usd", "usd/h", "/h", "usd/hour", "/hour")
        if value <= 0:
            raise ServefitError(
                f"--usd-per-hour {given['usd_per_hour']} is not above zero.", hint="Write for example 2.69."
            )
        return value, given["price_source"] or "given on the command line", given["price_date"]
    if given["device"] is None:
        return None, "", None
    from servefit.facts.prices import Provisioning, hourly

    kinds: tuple[Provisioning, ...] = ("on-demand", "dedicated") if given["provider"] else ("on-demand",)
    known = [p for p in hourly(given["device"], kinds=kinds) if given["provider"] in {None, p.provider}]
    if not known:
        where = f" at {given['provider']}" if given["provider"] else ""
        raise ServefitError(
            f"No hourly price of {given['device']}{where} is known.", hint="Give it with --usd-per-hour."
        )
    best = known[0]
    doubt = f" ({best.status})" if best.doubtful else ""
    return best.usd_per_hour, f"{best.provider}, {best.product}, {best.source}{doubt}", best.date


def datasheet_capacity(
    given: Mapping[str, str | None], shape: Shape, seats: int, stable_tok: int | None
) -> tuple[float, tuple[Variant, ...]]:
    """What one --device serves of --model by its datasheet, and with one thing changed at a time."""
    from servefit.bill.capacity import variants
    from servefit.facts.devices import find_device
    from servefit.facts.models import find_model

    if seats < 1:
        raise ServefitError(f"--seats {seats} is not above zero.", hint="Write 1 or more.")
    if shape.osl is None:
        raise ServefitError("The answer's length is missing.", hint="Add --osl N: most of a machine's time goes there.")
    model, device = find_model(given["model"] or ""), find_device(given["device"] or "")
    return variants(model, device, given["precision"], shape, seats, stable_tok=stable_tok)


def _price(text: str | None, name: str) -> float | None:
    if text is None:
        return None
    value = parse_plain(text, "usd", "usd/mtok", "/mtok")
    if value < 0:
        raise ServefitError(f"--{name} {text} is below zero.", hint="Write US dollars per million tokens, e.g. 0.15.")
    return value


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    number, unit = parse_number(text)
    value = float(number) / (100 if unit == "%" else 1)
    if unit not in ("", "%") or not 0 < value <= 1:
        raise ServefitError(f"--batch-frac {text} is no share of the usual price.", hint="Write e.g. 0.5 or 50%.")
    return value


def whole_tokens(text: str | None, name: str) -> int | None:
    """A whole number of tokens as typed for the flag `name`; None where it was not given. Raises ServefitError."""
    if text is None:
        return None
    value = parse_plain(text, "tokens", "tok")
    if value < 0 or value != int(value):
        raise ServefitError(f"--{name} {text} is not a number of tokens.", hint="Write a whole number, e.g. 6,200.")
    return int(value)
