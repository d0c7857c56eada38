"""What a request costs: acceptance rows B1 to B5 and B8 by exact value, and what is missing is said."""

from typing import Any

import pytest

from servefit.bill.cost import (
    Machine,
    Shape,
    TokenPrice,
    Variant,
    break_even,
    by_machine,
    by_tokens,
    what_if_machine,
    what_if_tokens,
)
from servefit.errors import ServefitError
from servefit.units import fmt

GPT_OSS = TokenPrice(input_usd_per_mtok=0.15, cached_input_usd_per_mtok=0.015)


def per_1000(shape: Shape, price: TokenPrice = GPT_OSS) -> str:
    """US dollars per 1,000 calls, as printed."""
    return fmt(by_tokens(shape, price).usd * 1000, 3)


def test_input_cost():
    """B1: 6,200 tokens at $0.15 a million are $0.93 per 1,000 calls."""
    assert per_1000(Shape(isl=6200)) == "0.930"


def test_the_screens_figure_leaves_something_out():
    """B2: $0.09 is the cached part alone, $0.093 everything at the cached price; neither is the bill."""
    assert fmt(by_tokens(Shape(isl=6200, cached_tok=6000), GPT_OSS).cached_usd * 1000, 3) == "0.090"
    assert per_1000(Shape(isl=6200, cached_tok=6200)) == "0.093"


def test_fresh_tokens_keep_their_price():
    """B3: 6,000 cached and 200 fresh are $0.12, a saving of 87.1%, not 90.3%."""
    assert per_1000(Shape(isl=6200, cached_tok=6000)) == "0.120"
    row = next(r for r in what_if_tokens(Shape(isl=6200), GPT_OSS, stable_tok=6000) if r.factor == "caching")
    assert (fmt(row.before_usd, 2), fmt(row.after_usd, 2)) == ("0.93", "0.12")
    assert fmt(row.saved_frac * 100, 1) == "87.1"
    assert fmt((1 - 0.09 / 0.93) * 100, 1) == "90.3"


def test_no_output_price_is_said():
    """B4: without an output price the figure is 'input only', with one it is both."""
    assert by_tokens(Shape(isl=6200, osl=300), GPT_OSS).covers == "input only"
    both = TokenPrice(input_usd_per_mtok=0.15, output_usd_per_mtok=0.60)
    cost = by_tokens(Shape(isl=6200, osl=300), both)
    assert cost.covers == "input and output"
    assert fmt(cost.usd * 1000, 2) == "1.11"


def test_no_answer_length_is_input_only_too():
    """An output price without an answer length cannot be used, and nothing is made up for it."""
    assert by_tokens(Shape(isl=10), TokenPrice(input_usd_per_mtok=1, output_usd_per_mtok=1)).covers == "input only"


def test_cached_tokens_without_a_cached_price():
    """Where no cached price is published the full price counts, and a note says so."""
    cost = by_tokens(Shape(isl=1000, cached_tok=900), TokenPrice(input_usd_per_mtok=1.0))
    assert cost.usd == pytest.approx(0.001)
    assert "full price" in cost.note


def test_more_cached_than_prompt_is_refused():
    """Cached tokens are part of the prompt."""
    with pytest.raises(ServefitError, match="7,000"):
        Shape(isl=6200, cached_tok=7000)


def test_machine_hours():
    """B5: machine time x price / requests, idle hours included, machines whole."""
    machine = Machine(usd_per_hour=3.6, capacity_req_per_s=2.0)
    half = by_machine(machine, 1.0)
    assert (half.machines, half.idle_frac, half.usd) == (1, 0.5, pytest.approx(0.001))
    assert half.usd_per_day == pytest.approx(86.4)
    over = by_machine(machine, 2.5)
    assert over.machines == 2
    assert over.usd == pytest.approx(2 * 3.6 / 3600 / 2.5)
    assert by_machine(machine, 2.0).machines == 1


@pytest.mark.parametrize(("rate", "capacity"), [(0, 1), (-1, 1), (1, 0)])
def test_no_rate_no_cost(rate: float, capacity: float):
    """A rate or a capacity of nothing has no cost per request."""
    with pytest.raises(ServefitError):
        by_machine(Machine(usd_per_hour=1, capacity_req_per_s=capacity), rate)


def test_break_even_is_where_both_cost_the_same():
    """At the break-even rate the two bills agree; below a machine is dearer."""
    machine = Machine(usd_per_hour=2.69, capacity_req_per_s=5)
    cost = by_tokens(Shape(isl=6200, osl=300), TokenPrice(input_usd_per_mtok=0.15, output_usd_per_mtok=0.6))
    rate = break_even(cost, machine).rate_req_per_s
    assert rate is not None
    assert by_machine(machine, rate).usd == pytest.approx(cost.usd)
    assert by_machine(machine, rate / 2).usd > cost.usd


def test_no_break_even_within_capacity():
    """Where even a full machine is dearer there is no such rate, and the sentence gives both figures."""
    cost = by_tokens(Shape(isl=100, osl=10), TokenPrice(input_usd_per_mtok=0.1, output_usd_per_mtok=0.1))
    point = break_even(cost, Machine(usd_per_hour=10, capacity_req_per_s=1))
    assert point.rate_req_per_s is None
    assert "Tokens stay cheaper" in point.sentence


def test_one_factor_at_a_time():
    """B8: each row changes one thing; the batch API halves what has a batch price of one half."""
    price = TokenPrice(
        input_usd_per_mtok=0.15, cached_input_usd_per_mtok=0.015, output_usd_per_mtok=0.6, batch_frac=0.5
    )
    rows = {r.factor: r for r in what_if_tokens(Shape(isl=6200, osl=300, cached_tok=6000), price)}
    assert set(rows) == {"no caching", "half the prompt", "half the answer", "the batch API"}
    assert fmt(rows["no caching"].after_usd, 2) == "1.11"
    assert rows["the batch API"].saved_frac == pytest.approx(0.5)
    assert rows["half the answer"].after_usd == pytest.approx(rows["half the answer"].before_usd - 0.09)


def test_precision_and_seats_change_the_machine_bill():
    """B8: a variant with twice the capacity halves the machines where both are full."""
    machine = Machine(usd_per_hour=3.6, capacity_req_per_s=1.0)
    (row,) = what_if_machine(machine, 2.0, [Variant(factor="fp8", capacity_req_per_s=2.0, how="simulated")])
    assert row.after_usd == pytest.approx(row.before_usd / 2)


def test_batch_price_unknown_is_said():
    """No batch price: the question is refused with the option that gives one."""
    with pytest.raises(ServefitError, match="batch"):
        by_tokens(Shape(isl=1), GPT_OSS, batch=True)


def test_a_change_that_saves_no_machine_says_so(cli: Any):
    """At 2 requests a second one H100 does before and after each change: no table of 0.0%, but why, and what full ones save."""
    asked = [
        "bill",
        "cost",
        "--isl",
        "1000",
        "--osl",
        "200",
        "--device",
        "h100-sxm",
        "--model",
        "llama-3.1-8b",
        "--rate",
    ]
    code, out, _ = cli(*asked, "2")
    assert code == 0
    assert "rented whole: 2 requests a second take 1 before and after" in out
    assert "on full machines" in out
    assert " 0.0%" not in out
    _, out, _ = cli(*asked, "20")
    assert "rented whole" not in out
    assert "as many machines as" in out
