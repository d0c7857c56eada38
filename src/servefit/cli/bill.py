"""servefit bill: what a request costs, what is still billing, what the spend cap leaves."""

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from servefit.bill.caps import Guard, Limits, ledger_path, spent_usd
from servefit.bill.config import accounts_to_ask, load_config, load_limits, make_ask
from servefit.bill.cost import (
    Machine,
    Shape,
    TokenCost,
    TokenPrice,
    Variant,
    WhatIf,
    break_even,
    by_machine,
    by_tokens,
    what_if_machine,
    what_if_tokens,
)
from servefit.bill.hosted import CouldNotAsk, Deployment
from servefit.bill.live import EXIT_CODES, Asked, ask_all, halt, pick, verdict
from servefit.bill.providers import fireworks_limit
from servefit.cli import amounts, names
from servefit.cli.bill_cost import whole_tokens
from servefit.cli.show import emit_json, plain, table
from servefit.errors import AnswerIsNo, CannotMeasure, ServefitError
from servefit.units import fmt, fmt_percent, parse_plain


@click.group(name="bill")
def command() -> None:
    """What does a request cost, what is still billing, what is the cap?"""


# --- cost -----------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("--isl", help="Prompt tokens of a request.")
@click.option("--cached", default="0", help="Of these, from the provider's cache.")
@click.option("--stable-tok", help="Of these, the same in every request: what caching would reuse.")
@click.option("--osl", help="Answer tokens.")
@click.option("--price-in", help="US dollars per million prompt tokens.")
@click.option("--price-cached", help="The same for cached ones.")
@click.option("--price-out", help="US dollars per million answer tokens.")
@click.option("--batch-frac", help="Batch API price as a share of the usual one, e.g. 0.5.")
@click.option("--price-source", help="Where these prices come from.")
@click.option("--price-date", help="When they were looked up.")
@click.option("--token-model", help="Or look the prices up: the model as its provider names it (package genai-prices).")
@click.option("--provider", help="At this provider.")
@click.option("--usd-per-hour", help="Price of one machine for an hour.")
@click.option(
    "--device",
    shell_complete=names.devices,
    help="Or a device of the catalogue: its cheapest on-demand price that is known.",
)
@click.option(
    "--model",
    shell_complete=names.models,
    help="With --device: capacity by the datasheet, and what precision, seats and caching change.",
)
@click.option("--precision", help="Of its weights: bf16, fp8, awq ...")
@click.option("--seats", type=amounts.SEATS, default=16, show_default=True, help="Requests in the running batch.")
@click.option("--capacity", help="Requests a second that one machine serves within the targets.")
@click.option("--rate", help="Requests a second that arrive.")
@click.option("--calls", default="1000", help="Also the price of this many calls.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def cost(run: Path | None, as_json: bool, seats: int, **given: str | None) -> None:
    """What a request costs: by token prices, by machine hours, and where the two meet.

    servefit bill cost --isl 6200 --cached 6000 --osl 300 --price-in 0.15 --price-cached 0.015 --price-out 0.60
    """
    from servefit.cli.bill_cost import datasheet_capacity, hourly_price, shape_of, token_price

    shape, capacity, capacity_from = shape_of(run, given)
    price = token_price(given)
    rate = _positive(given["rate"], "rate")
    calls = _positive(given["calls"], "calls") or 1000.0
    hourly, source, date = hourly_price(given)
    stable = whole_tokens(given["stable_tok"], "stable-tok")
    machine: Machine | None = None
    ways: tuple[Variant, ...] = ()
    if capacity is None and given["model"] and given["device"]:
        capacity, ways = datasheet_capacity(given, shape, seats, stable)
        capacity_from = "by the datasheet: at best"
    if hourly is not None:
        if capacity is None:
            raise ServefitError(
                "A machine's price needs what it serves.",
                hint="Add --capacity (requests a second), --model with --device, or name a run.",
            )
        machine = Machine(
            usd_per_hour=hourly, capacity_req_per_s=capacity, capacity_from=capacity_from, source=source, date=date
        )
    if price is None and machine is None:
        raise ServefitError(
            "No price was given.", hint="Add --price-in (and --price-out), or --usd-per-hour and --capacity."
        )
    tokens = by_tokens(shape, price) if price else None
    changes = what_if_tokens(shape, price, stable_tok=stable) if price else ()
    busy = rate or (machine.capacity_req_per_s if machine else 1.0)
    shifts = what_if_machine(machine, busy, ways, whole=rate is not None) if machine else ()
    same = ""
    if machine and rate is not None and shifts and all(c.after_usd == c.before_usd for c in shifts):
        count = by_machine(machine, rate).machines
        same = (
            f"Machines are rented whole: {rate:g} requests a second take {count} before and after each of these changes, so the "
            "bill stays the same. What each would save on machines that are always full:"
        )
        shifts = what_if_machine(machine, busy, ways, whole=False)
    value = {
        "shape": shape, "price": price, "calls": calls, "tokens": tokens, "usd_per_request": tokens.usd if tokens else None,
        "machine": machine, "by_machine": by_machine(machine, rate or machine.capacity_req_per_s) if machine else None,
        "break_even": break_even(tokens, machine) if tokens and machine else None,
        "what_if": [{"factor": c.factor, "before_usd_per_1000": c.before_usd, "after_usd_per_1000": c.after_usd,
                     "saved_frac": c.saved_frac, "how": c.how, "of": of}
                    for of, rows in (("tokens", changes), ("full machine" if same else "machine", shifts)) for c in rows],
        "what_if_note": same or None,
    }  # fmt: skip
    if as_json:
        emit_json(value)
        return
    if tokens and price:
        _print_tokens(shape, price, tokens, calls, rate)
    if machine:
        _print_machine(machine, rate)
    if tokens and machine:
        click.echo(break_even(tokens, machine).sentence)
    _print_changes("of the token bill", changes)
    if same:
        click.echo(same)
    _print_changes("on full machines" if same else "of the machine bill", shifts)
    click.echo("\nnext: servefit bill live (what is still billing)")


def _print_tokens(shape: Shape, price: TokenPrice, tokens: TokenCost, calls: float, rate: float | None) -> None:
    word = "" if tokens.covers == "input and output" else f" ({tokens.covers}: no output price or length was given)"
    when = f", {price.date}" if price.date else ""
    click.echo(f"By tokens{word}, prices: {plain(price.source)}{when}")
    rows = [
        [
            "fresh prompt tokens",
            fmt(shape.isl - shape.cached_tok),
            _usd(price.input_usd_per_mtok, 3),
            _usd(tokens.fresh_usd * calls),
        ],
        [
            "cached prompt tokens",
            fmt(shape.cached_tok),
            _usd(price.cached_input_usd_per_mtok, 3),
            _usd(tokens.cached_usd * calls),
        ],
        [
            "answer tokens",
            fmt(shape.osl),
            _usd(price.output_usd_per_mtok, 3),
            _usd(tokens.output_usd * calls if tokens.output_usd is not None else None),
        ],
        ["sum", "", "", _usd(tokens.usd * calls)],
    ]
    table(["a request", "tokens", "$ per million", f"$ per {fmt(calls)} calls"], rows, right=(1, 2, 3))
    if tokens.note:
        click.echo(tokens.note)
    if rate:
        click.echo(f"At {rate:g} requests a second: {_usd(tokens.usd * rate * 86400, 2)} a day.")


def _print_machine(machine: Machine, rate: float | None) -> None:
    at = rate or machine.capacity_req_per_s
    cost = by_machine(machine, at)
    click.echo(
        f"By machine hours (price: {plain(machine.source)}{', ' + machine.date if machine.date else ''}): {cost.machines} x {_usd(machine.usd_per_hour)} an hour serve {at:.3g} requests a second "
        f"({fmt_percent(cost.idle_frac)} idle, capacity {machine.capacity_from}): {_usd(cost.usd * 1000)} per 1,000 requests, "
        f"{_usd(cost.usd_per_day, 2)} a day; {_usd(cost.usd_full * 1000)} per 1,000 were it always full."
    )


def _print_changes(of: str, changes: tuple[WhatIf, ...]) -> None:
    if changes:
        rows = [[c.factor, _usd(c.before_usd), _usd(c.after_usd), fmt_percent(c.saved_frac, 1), c.how] for c in changes]
        table([f"one change {of}", "$ per 1,000", "becomes", "saved", "how"], rows, right=(1, 2, 3))


def _usd(value: float | None, places: int = 4) -> str:
    return "-" if value is None else f"${fmt(value, places)}"


def _positive(text: str | None, name: str) -> float | None:
    if text is None:
        return None
    value = parse_plain(text, "req/s", "/s") if name == "rate" else parse_plain(text)
    if value <= 0:
        raise ServefitError(f"--{name} {text} is not above zero.", hint="Leave it out where it is not known.")
    return value


# --- live -----------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("providers", nargs=-1)
@click.option("--stop", "name", help="Stop this deployment: asks first, then looks until it has stopped.")
@click.option("--yes", is_flag=True, help="With --stop: do not ask.")
@click.option("--all", "show_all", is_flag=True, help="Also list what is not billing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def live(providers: tuple[str, ...], name: str | None, yes: bool, show_all: bool, as_json: bool) -> int:
    """What is still billing, at every provider whose key is set or that servefit.toml names.

    Exit code 0: nothing. 5: something. 3: could not ask (a missing key, an error, an answer nobody documented).
    """
    config = load_config()
    accounts, left_out = accounts_to_ask(config, providers)
    if not accounts:
        raise CannotMeasure(
            "No provider could be asked: no key is set and servefit.toml names none.",
            hint="export FIREWORKS_API_KEY, TOGETHER_API_KEY, HF_TOKEN or RUNPOD_API_KEY, or name accounts under [[bill.accounts]].",
        )
    answers = ask_all(accounts, config, os.environ)
    if name is not None:
        return _stop(name, answers, yes=yes, as_json=as_json)
    now = datetime.now(UTC)
    outcome = verdict(answers)
    if as_json:
        emit_json(_live_json(answers, left_out, now))
        return EXIT_CODES[outcome]
    shown = [d for a in answers for d in a.deployments if show_all or d.billing != "no"]
    if shown:
        _print_live(shown, now)
    for answer in answers:
        if answer.error:
            click.echo(f"could not ask: {plain(answer.error)}\n  hint: {plain(answer.hint)}", err=True)
    if left_out:
        click.echo(f"not asked (no key set): {', '.join(left_out)}")
    click.echo(_sentence(outcome, answers))
    return EXIT_CODES[outcome]


def _sentence(outcome: str, answers: tuple[Asked, ...]) -> str:
    asked = ", ".join(dict.fromkeys(a.provider for a in answers if not a.error))
    if outcome == "nothing":
        return f"Nothing is billing at {asked}.\nnext: servefit bill cap"
    if outcome == "could not ask":
        return "Whether something is billing is not known: not everybody could be asked.\nnext: look at the provider's own console"
    busy = [d for a in answers for d in a.deployments if d.billing in {"yes", "soon"}]
    known = sum(d.usd_per_hour or 0.0 for d in busy if d.billing == "yes")
    missing = sum(d.usd_per_hour is None for d in busy)
    price = f"{_usd(known, 2)} an hour{' and more (prices that are not known)' if missing else ''}"
    if missing == len(busy):
        price = "at a price that is not known"
    return f"{len(busy)} still billing: {price}.\nnext: servefit bill live --stop NAME"


def _print_live(shown: list[Deployment], now: datetime) -> None:
    rows = []
    for d in shown:
        age = d.age_s(now)
        hours = "-" if age is None else f"{fmt(age / 3600, 1)} h"
        spent = d.spent_usd(now) if d.billing == "yes" else None
        rows.append([
            f"{d.provider}/{d.name}", d.state, d.billing, d.hardware, hours, _usd(d.usd_per_hour, 2),
            _usd(spent, 2) if spent is None else f"{_usd(spent, 2)} at most",
        ])  # fmt: skip
    table(["what", "state", "billing", "hardware", "age", "$ an hour", "since then"], rows, right=(4, 5, 6))
    for d in shown:
        extras = "; ".join(filter(None, (d.note, d.sleeps, "" if d.usd_per_hour is not None else d.price_from)))
        click.echo(f"  {plain(d.name)}: {plain(extras)}{'. ' if extras else ''}stop: {plain(d.stop)}")


def _live_json(answers: tuple[Asked, ...], left_out: tuple[str, ...], now: datetime) -> dict[str, Any]:
    def one(d: Deployment) -> dict[str, Any]:
        return {
            "provider": d.provider, "account": d.account, "id": d.id, "name": d.name, "state": d.state, "billing": d.billing,
            "hardware": d.hardware, "replicas": d.replicas, "usd_per_hour": d.usd_per_hour, "price_from": d.price_from,
            "since": d.since.isoformat() if d.since else None, "since_what": d.since_what, "age_s": d.age_s(now),
            "spent_usd_at_most": d.spent_usd(now) if d.billing == "yes" else None, "sleeps": d.sleeps, "note": d.note, "stop": d.stop,
        }  # fmt: skip

    return {
        "verdict": verdict(answers),
        "complete": not any(a.error for a in answers),
        "asked": [{"provider": a.provider, "account": a.account, "error": a.error} for a in answers],
        "not_asked": left_out,
        "deployments": [one(d) for a in answers for d in a.deployments],
    }


def _stop(name: str, answers: tuple[Asked, ...], *, yes: bool, as_json: bool) -> int:
    found = pick(answers, name)
    if found.billing == "no":
        click.echo(f"{plain(found.name)} is {plain(found.state)} already: nothing to stop.", err=as_json)
        return 0
    price = f", {_usd(found.usd_per_hour, 2)} an hour" if found.usd_per_hour is not None else ""
    if not yes:
        if not sys.stdin.isatty():
            raise ServefitError(f"Stopping {found.name} needs a yes.", hint="Run it in a terminal, or add --yes.")
        question = f"Stop {plain(found.provider)}/{plain(found.name)} ({plain(found.state)}{price})?"
        if not click.confirm(question, err=True):
            raise AnswerIsNo(f"{plain(found.name)} was not stopped: it goes on as it was.")
    config = load_config()
    accounts, _ = accounts_to_ask(config, (found.provider,))
    account = next((a for a in accounts if a.account in {None, found.account}), accounts[0])
    click.echo(f"stopping {plain(found.name)} ...", err=True)
    last = halt(found, make_ask(account, config), sleep=time.sleep)
    state = last.state if last else "gone"
    if as_json:
        emit_json({"stopped": found.id, "state": state, "note": last.note if last else ""})
    else:
        click.echo(
            f"{plain(found.name)} is {plain(state)}: seen, not assumed.{' ' + plain(last.note) if last and last.note else ''}"
        )
    return 0


# --- cap ------------------------------------------------------------------------------------------------------------


@command.command()
@click.option("-n", "n", help="Would this many requests fit?")
@click.option("--isl", help="Their prompt tokens.")
@click.option("--osl", help="Their answer tokens.")
@click.option("--price-in", help="US dollars per million prompt tokens.")
@click.option("--price-out", help="US dollars per million answer tokens.")
@click.option("--cap", "cap_text", help="Another cap than servefit.toml's, in US dollars.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def cap(  # noqa: PLR0917 - click passes them by name
    n: str | None, isl: str | None, osl: str | None, price_in: str | None, price_out: str | None,
        cap_text: str | None, as_json: bool) -> int:  # fmt: skip
    """What the spend cap leaves, what was really used, and whether a run would fit. Exit code 5: it does not."""
    limits = Limits(usd_per_run=parse_plain(cap_text, "usd")) if cap_text else load_limits()
    if cap_text and not (limits.usd_per_run or 0) > 0:
        raise ServefitError(f"A cap of {cap_text} allows nothing.", hint="Write dollars above 0, e.g. --cap 1.50.")
    if n is not None and not whole_tokens(n, "n"):
        raise ServefitError(f"-n {n} is no request.", hint="How many requests? 1 or more.")
    path = ledger_path()
    now = datetime.now(UTC)
    used = {period: spent_usd(path, now, period) for period in ("day", "month")}
    estimate = None
    if n is not None:
        if not (isl and osl and price_in and price_out):
            raise ServefitError(
                "An estimate needs lengths and prices.", hint="Add --isl, --osl, --price-in and --price-out."
            )
        price = TokenPrice(
            input_usd_per_mtok=parse_plain(price_in, "usd", "/mtok"),
            output_usd_per_mtok=parse_plain(price_out, "usd", "/mtok"),
        )
        with Guard(path, price, limits) as guard:
            estimate = guard.estimate(
                [(whole_tokens(isl, "isl") or 0, whole_tokens(osl, "osl") or 0)] * (whole_tokens(n, "n") or 0)
            )
    theirs, errors = _provider_limits()
    over = [(period, usd) for period, usd in limits.by_period().items() if used.get(period, 0.0) > usd]
    if as_json:
        emit_json({"caps": limits, "spent_usd": used, "ledger": path, "estimate": estimate, "fits": not over and (estimate is None or estimate.fits),
                   "provider_limits": theirs, "could_not_ask": errors})  # fmt: skip
    else:
        _print_cap(limits, used, path, theirs, errors)
        if estimate:
            click.echo(estimate.sentence)
        click.echo("next: servefit bill live")
    if over:
        period, usd = over[0]
        raise AnswerIsNo(
            f"Over the cap: {_usd(used[period])} of {_usd(usd, 2)} a {period} is used.",
            hint="Wait, or raise [caps] in servefit.toml.",
        )
    if estimate and not estimate.fits:
        raise AnswerIsNo(
            f"Over the cap: {estimate.sentence}",
            hint="Ask for fewer or shorter requests, or raise [caps] in servefit.toml.",
        )
    return 0


def _print_cap(
    limits: Limits, used: dict[str, float], path: Path, theirs: list[dict[str, Any]], errors: list[str]
) -> None:
    click.echo(f"used: {_usd(used['day'])} today, {_usd(used['month'])} this month (UTC). Ledger: {path}")
    caps = ", ".join(
        f"{_usd(usd, 2)} a {period}" + (f" ({_usd(max(usd - used[period], 0.0))} left)" if period in used else "")
        for period, usd in limits.by_period().items()
    )
    click.echo(f"caps: {caps or 'none is set ([caps] in servefit.toml)'}")
    for item in theirs:
        click.echo(
            f"{item['provider']}/{item['account']}: its own limit {_usd(item['limit_usd'], 2)} a month, {_usd(item['used_usd'], 2)} used"
        )
    for text in errors:
        click.echo(plain(text), err=True)


def _provider_limits() -> tuple[list[dict[str, Any]], list[str]]:
    """The providers' own monthly limits, where an API tells: Fireworks does."""
    config = load_config()
    accounts, _ = accounts_to_ask(config, ())
    limits: list[dict[str, Any]] = []
    errors: list[str] = []
    for account in accounts:
        if account.provider != "fireworks":
            continue
        try:
            limits += fireworks_limit(make_ask(account, config))
        except CouldNotAsk as error:
            errors.append(error.message)
    return limits, errors
