"""What a request costs: by token prices, by machine hours, where the two meet, and what one change at a time does.

Every price carries its source and date; a missing price makes the total say what it leaves out, never zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from servefit.errors import ServefitError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The tokens of one request: prompt (of which `cached_tok` come from the provider's cache) and answer."""

    isl: int
    osl: int | None = None
    cached_tok: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tok <= self.isl:
            raise ServefitError(
                f"{self.cached_tok:,} cached tokens of a prompt of {self.isl:,} is not possible.",
                hint="Cached tokens are part of the prompt.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """US dollars per million tokens, each kind apart; None where the provider publishes none."""

    input_usd_per_mtok: float
    cached_input_usd_per_mtok: float | None = None
    output_usd_per_mtok: float | None = None
    batch_frac: float | None = None
    """Price of the batch API as a share of the usual one (0.5 = half)."""
    source: str = "servefit.toml"
    date: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """One request's cost in US dollars, by part. `output_usd` is None where no output price is known."""

    fresh_usd: float
    cached_usd: float
    output_usd: float | None
    covers: Literal["input and output", "input only"]
    note: str = ""

    @property
    def usd(self) -> float:
        """The sum of the parts that have a price; `covers` says which."""
        return self.fresh_usd + self.cached_usd + (self.output_usd or 0.0)


def by_tokens(shape: Shape, price: TokenPrice, *, batch: bool = False) -> TokenCost:
    """What one request costs by token prices: fresh x input + cached x cached input + answer x output.

    The seeds' support assistant, 6,200 tokens in, input at $0.15 a million, per 1,000 calls: $0.93; with 6,000 of them
    cached at $0.015 it is $0.12, because the 200 fresh tokens keep their full price (not $0.09):

    >>> price = TokenPrice(input_usd_per_mtok=0.15, cached_input_usd_per_mtok=0.015)
    >>> round(1000 * by_tokens(Shape(isl=6200), price).usd, 3)
    0.93
    >>> round(1000 * by_tokens(Shape(isl=6200, cached_tok=6000), price).usd, 3)
    0.12
    """
    factor = 1.0
    if batch:
        if price.batch_frac is None:
            raise ServefitError("No batch price is known for this model.", hint="Give it with --batch-frac, e.g. 0.5.")
        factor = price.batch_frac
    note = ""
    cached_price = price.cached_input_usd_per_mtok
    if shape.cached_tok and cached_price is None:
        cached_price, note = price.input_usd_per_mtok, "no cached price is published: cached tokens at the full price"
    fresh = (shape.isl - shape.cached_tok) * price.input_usd_per_mtok * factor / 1e6
    cached = shape.cached_tok * (cached_price or 0.0) * factor / 1e6
    output = None
    if price.output_usd_per_mtok is not None and shape.osl is not None:
        output = shape.osl * price.output_usd_per_mtok * factor / 1e6
    return TokenCost(
        fresh_usd=fresh, cached_usd=cached, output_usd=output, note=note,
        covers="input only" if output is None else "input and output",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rented machines of one kind and what one of them can serve."""

    usd_per_hour: float
    capacity_req_per_s: float
    """Requests a second that one machine serves within the targets: measured, simulated or planned."""
    capacity_from: str = "given"
    source: str = "given on the command line"
    date: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCost:
    """Cost by machine hours at a request rate: every hour is paid, busy or idle."""

    machines: int
    rate_req_per_s: float
    usd: float
    """Per request, idle time included."""
    usd_full: float
    """Per request were the machines always full: the least it can be."""
    idle_frac: float
    usd_per_day: float


def by_machine(machine: Machine, rate_req_per_s: float) -> MachineCost:
    """What one request costs on rented machines at a steady rate: machines x hourly price / requests an hour.

    >>> cost = by_machine(Machine(usd_per_hour=3.60, capacity_req_per_s=2.0), 1.0)
    >>> cost.machines, cost.usd, cost.usd_full, cost.idle_frac
    (1, 0.001, 0.0005, 0.5)
    """
    if rate_req_per_s <= 0 or machine.capacity_req_per_s <= 0:
        raise ServefitError(
            f"A rate of {rate_req_per_s:g} and a capacity of {machine.capacity_req_per_s:g} requests a second give no cost.",
            hint="Both must be above zero.",
        )
    count = max(math.ceil(rate_req_per_s / machine.capacity_req_per_s - 1e-9), 1)
    hourly = count * machine.usd_per_hour
    return MachineCost(
        machines=count, rate_req_per_s=rate_req_per_s, usd=hourly / 3600 / rate_req_per_s,
        usd_full=machine.usd_per_hour / 3600 / machine.capacity_req_per_s,
        idle_frac=1 - rate_req_per_s / (count * machine.capacity_req_per_s), usd_per_day=hourly * 24,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where tokens and one machine cost the same. `rate_req_per_s` is None where a full machine is still dearer."""

    rate_req_per_s: float | None
    sentence: str


def break_even(cost: TokenCost, machine: Machine) -> BreakEven:
    """The steady rate from which one machine is cheaper than tokens: hourly price / 3600 / cost of a request.

    >>> price = TokenPrice(input_usd_per_mtok=1.0, output_usd_per_mtok=1.0)
    >>> cost = by_tokens(Shape(isl=500, osl=500), price)
    >>> break_even(cost, Machine(usd_per_hour=3.60, capacity_req_per_s=2.0)).rate_req_per_s
    1.0
    """
    if cost.usd <= 0:
        return BreakEven(rate_req_per_s=None, sentence="Tokens cost nothing here, so no machine is cheaper.")
    rate = machine.usd_per_hour / 3600 / cost.usd
    covers = "" if cost.covers == "input and output" else " (input only: the true rate is lower)"
    if rate > machine.capacity_req_per_s:
        full = machine.usd_per_hour / 3600 / machine.capacity_req_per_s
        return BreakEven(
            rate_req_per_s=None,
            sentence=f"Tokens stay cheaper{covers}: a full machine costs ${full:.6f} a request, tokens ${cost.usd:.6f}.",
        )
    return BreakEven(
        rate_req_per_s=rate,
        sentence=f"From {rate:.3g} requests a second ({rate * 86400:,.0f} a day) one machine is cheaper than tokens{covers}.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One factor changed, everything else as it was: US dollars per 1,000 requests before and after."""

    factor: str
    before_usd: float
    after_usd: float
    how: str

    @property
    def saved_frac(self) -> float:
        """The share that the change saves; negative where it costs more."""
        return 1 - self.after_usd / self.before_usd if self.before_usd else 0.0


def what_if_tokens(shape: Shape, price: TokenPrice, *, stable_tok: int | None = None) -> tuple[WhatIf, ...]:
    """What caching, a shorter prompt, a shorter answer and the batch API each do to the token bill, one at a time."""
    base = by_tokens(shape, price).usd * 1000
    rows: list[WhatIf] = []

    def row(factor: str, other: Shape, how: str, *, batch: bool = False) -> None:
        rows.append(
            WhatIf(factor=factor, before_usd=base, after_usd=by_tokens(other, price, batch=batch).usd * 1000, how=how)
        )

    stable = stable_tok if stable_tok is not None else None
    if shape.cached_tok:
        row("no caching", replace(shape, cached_tok=0), "every prompt token at the full price")
    elif stable and price.cached_input_usd_per_mtok is not None:
        fresh = shape.isl - min(stable, shape.isl)
        row(
            "caching",
            replace(shape, cached_tok=min(stable, shape.isl)),
            f"{min(stable, shape.isl):,} tokens cached, {fresh:,} fresh at the full price",
        )
    row(
        "half the prompt",
        replace(shape, isl=shape.isl // 2, cached_tok=min(shape.cached_tok, shape.isl // 2)),
        "cached tokens are kept first",
    )
    if shape.osl and price.output_usd_per_mtok is not None:
        row("half the answer", replace(shape, osl=shape.osl // 2), f"{shape.osl // 2:,} tokens written")
    if price.batch_frac is not None:
        row("the batch API", shape, "answers within the provider's batch window, not at once", batch=True)
    return tuple(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Another way to run the same machine: its name and what one machine would then serve."""

    factor: str
    capacity_req_per_s: float
    how: str


def what_if_machine(
    machine: Machine, rate_req_per_s: float, variants: Sequence[Variant], *, whole: bool = True
) -> tuple[WhatIf, ...]:
    """What another precision, other seats or caching do to the machine bill at this rate, one at a time.

    `whole`: machines are rented whole, so a change that saves none saves nothing; False compares machines that are
    always full.
    """

    def per_1000(one: Machine) -> float:
        found = by_machine(one, rate_req_per_s)
        return 1000 * (found.usd if whole else found.usd_full)

    before = per_1000(machine)
    rows = []
    for v in variants:
        after = per_1000(replace(machine, capacity_req_per_s=v.capacity_req_per_s))
        same = "as many machines as before; " if whole and after == before else ""
        rows.append(WhatIf(factor=v.factor, before_usd=before, after_usd=after, how=same + v.how))
    return tuple(rows)
