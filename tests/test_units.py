"""Numbers are read as people write them and printed half up, in units nobody can mistake."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.units import (
    fmt,
    fmt_both_bytes,
    fmt_bytes,
    fmt_percent,
    fmt_s,
    parse_bytes,
    parse_number,
    parse_plain,
    parse_seconds,
    round_half_up,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("4,210", 4.21), ("4.21 s", 4.21), ("780ms", 0.78), ("22.4", 0.0224), ("1 min", 60.0), (".5s", 0.5), ("1e3", 1.0)],
)
def test_times_as_people_write_them(text, seconds):
    """M18: thousands commas and units; a bare number is in the field's unit, here ms."""
    assert parse_seconds(text, bare="ms") == seconds


@pytest.mark.parametrize("text", ["", "fast", "12 parsecs", "1,23", "--5", "5 GB", "٣", "1.2.3"])
def test_what_is_no_time_is_refused_with_the_value(text):
    """One sentence that holds what was typed, and a hint."""
    with pytest.raises(ServefitError) as caught:
        parse_seconds(text)
    assert text in caught.value.message and caught.value.hint


def test_sizes_keep_their_two_worlds_apart():
    """C7: 36 GiB is 38.65 GB; both are printed; GB is 10^9 and GiB 2^30."""
    assert parse_bytes("36 GiB") == 38_654_705_664
    assert parse_bytes("36", bare="gb") == 36_000_000_000
    assert fmt_both_bytes(36 * 2**30) == "38.7 GB (36.0 GiB)"
    assert fmt_bytes(1_572_864) == "1.57 MB"
    with pytest.raises(ServefitError):
        parse_bytes("3 s")


def test_rounding_is_decimal_half_up():
    """2.675 rounds to 2.68 as written, 0.5 to 1, -0.5 to -1; bankers and binary rounding give other answers."""
    assert [str(round_half_up(v, p)) for v, p in ((2.675, 2), (0.5, 0), (1.5, 0), (-0.5, 0), (0.125, 2))] == [
        "2.68",
        "1",
        "2",
        "-1",
        "0.13",
    ]


def test_nothing_is_a_dash():
    """What was not observed is never 0."""
    assert {fmt(None), fmt_s(None), fmt_bytes(None), fmt_both_bytes(None), fmt_percent(None)} == {"-"}


def test_printed_forms():
    """Figures read aloud well: commas in thousands, the unit that fits."""
    assert [fmt_s(v) for v in (0.0000123, 0.0024, 0.0224, 0.145, 4.21, 4210, 0)] == [
        "12.3 µs",
        "2.40 ms",
        "22.4 ms",
        "145 ms",
        "4.21 s",
        "70.2 min",
        "0.00 ms",
    ]
    assert (fmt(37384), fmt_percent(0.8949), fmt_bytes(131072)) == ("37,384", "89%", "131,072 B")


@given(st.decimals(0, 10**9, places=3))
def test_what_is_printed_can_be_read(value):
    """Parsing a number printed with thousands commas gives the number."""
    assert parse_number(f"{value:,}")[0] == value


@given(st.text(max_size=30))
def test_no_text_crashes_the_parser(text):
    """Any text is a number or one sentence."""
    try:
        number, _ = parse_number(text)
    except ServefitError:
        return
    assert isinstance(number, Decimal)


@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324])
def test_the_largest_and_smallest_floats_can_be_rounded(value):
    """Every finite float has a rounding, however many digits it takes."""
    assert float(round_half_up(value, 2)) == pytest.approx(value, abs=0.005)


def test_infinity_has_no_rounding():
    """The command line turns an OverflowError into a sentence; decimal's own error is none that anybody reads."""
    with pytest.raises(OverflowError):
        round_half_up(float("inf"), 2)


@pytest.mark.parametrize("text", ["2k", "20s", "5%", "1M", "3 /h"])
def test_a_unit_that_is_not_known_is_never_passed_over(text):
    """2k tokens are not 2, and 20 s are not 20 ms."""
    with pytest.raises(ServefitError, match="has the unit"):
        parse_plain(text, "ms", "")
    assert parse_plain("20 ms", "ms") == parse_plain("20") == 20.0


@pytest.mark.parametrize(
    "args",
    [
        ("bill", "cap", "-n", "2", "--isl", "2k", "--osl", "2", "--price-in", "1", "--price-out", "1"),
        ("bill", "cap", "--cap", "5k"),
        ("bill", "cost", "--isl", "6k", "--osl", "300", "--usd-per-hour", "2k", "--capacity", "4"),
        ("bill", "cost", "--isl", "6", "--osl", "300", "--usd-per-hour", "2", "--capacity", "4 req/h"),
        ("experiment", "context", "http://127.0.0.1:9", "--lengths", "1k,2k"),
        ("explain", "--ttft", "1s", "--itl", "10ms", "--isl", "100", "--osl", "10", "--prefill-rate", "8k"),
    ],
)
def test_no_flag_passes_over_a_unit(cli, args):
    """Exit code 2 and the value, instead of a figure that is a thousandth of what was meant."""
    code, out, err = cli(*args)
    assert (code, out) == (2, "") and "has the unit" in err
