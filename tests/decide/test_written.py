"""Numbers as people write them: read back, rounded half up, and respelled."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.decide.written import UNITS, agrees, parse_quantity, read_back, respell, show


@pytest.mark.parametrize(
    ("line", "text", "number", "unit"),
    [
        ("TTFT is 105 ms", "105 ms", "105", "ms"),
        ("TTFT is **1,250.5ms**", "1,250.5ms", "1250.5", "ms"),
        ("margin +12.5%", "+12.5%", "12.5", "%"),
        ("margin −12.5 %", "−12.5 %", "-12.5", "%"),
        ("| -0.3%", "-0.3%", "-0.3", "%"),
        ("| –0.3%", "–0.3%", "-0.3", "%"),
        ("8-24", "24", "24", ""),
        ("8–24", "24", "24", ""),
        ("costs $1.79/h", "$1.79/h", "1.79", "$/h"),
        ("a dearer -$0.12/Mtok", "-$0.12/Mtok", "-0.12", "$/Mtok"),
        ("1.38×", "1.38×", "1.38", "×"),
        ("1.2e3 tok/s", "1.2e3 tok/s", "1200", "tok/s"),
        ("(16", "16", "16", ""),
    ],
)
def test_reads_back(line, text, number, unit):
    """The number at the end of a line is found with its sign, separators, currency and unit."""
    found = read_back(line)
    assert (found.text, found.number, found.unit) == (text, Decimal(number), unit)
    assert line[found.start : found.end] == text


@pytest.mark.parametrize("line", ["1,05 ms", "12,3456", "1.2.3", "p99", "0x1f", "a1"])
def test_reads_no_number_where_there_is_none(line):
    """A malformed number is not read as the part of it that happens to be one."""
    assert read_back(line).number is None


@pytest.mark.parametrize(
    ("written", "value", "dim", "yes"),
    [
        ("0.13 s", 0.125, "s", True),  # half up, not half to even
        ("0.12 s", 0.125, "s", False),
        ("2.68 s", 2.675, "s", True),  # as written, not as the float's nearest binary
        ("-0.13 s", -0.125, "s", True),
        ("105 ms", 0.1045, "s", True),
        ("104 ms", 0.1045, "s", False),
        ("105 s", 0.105, "s", False),
        ("0 s", 0.105, "s", False),  # a zero is no rounding of something
        ("0 ms", 0.0, "s", True),
        ("12%", 0.12, "frac", True),
        ("12", 0.12, "frac", False),
        ("0.12", 0.12, "frac", True),
        ("-12%", 0.12, "frac", False),
        ("1,000 tok", 1000.0, "tok", True),
        ("1 ktok", 1000.0, "tok", True),
        ("38.7 GB", 38654705664, "bytes", True),
        ("36.0 GiB", 38654705664, "bytes", True),
        ("38.7 GiB", 38654705664, "bytes", False),
        ("60 req/min", 1.0, "req_per_s", True),
        ("24 seats", 24, "count", True),
        ("24 apples", 24, "count", False),
        ("24 ms", 24, "count", False),
        ("-", None, "s", True),
        ("0 ms", None, "s", False),
        ("-", 0.1, "s", False),
    ],
)
def test_agrees(written, value, dim, yes):
    """A recomputed value agrees when it rounds half up to what is written, in the unit that is written."""
    assert agrees(read_back(written), value, dim) is yes


@given(
    st.sampled_from(sorted(UNITS)),
    st.one_of(st.none(), st.floats(min_value=-1e12, max_value=1e12, allow_nan=False, allow_subnormal=False)),
    st.booleans(),
)
def test_what_we_write_agrees(dim, value, signed):
    """Our own spelling of any value, read back, agrees with it."""
    if value is not None and 0 < abs(value) < 1e-9:
        return
    text = show(value, dim, signed=signed)
    assert agrees(read_back(f"| {text}"), value, dim), text
    assert read_back(f"| {text}").text == text


@given(
    st.sampled_from(["105 ms", "1,250.5 ms", "12%", "+12.5%", "$1.79/h", "24 seats", "4.90 GB", "1.38×", "-", "0.1 s"]),
    st.sampled_from(sorted(UNITS)),
    st.floats(min_value=-1e9, max_value=1e9, allow_nan=False, allow_subnormal=False),
)
def test_respelled_agrees(written, dim, value):
    """A stale number respelled in its own style agrees with the new value."""
    if 0 < abs(value) < 1e-9:
        return
    text = respell(read_back(written), value, dim)
    assert agrees(read_back(f"| {text}"), value, dim), text


def test_respelling_keeps_the_style():
    """Unit, decimals, separators and the minus sign stay as the author wrote them."""
    assert respell(read_back("1,250.5 ms"), 2.0, "s") == "2,000.0 ms"
    assert respell(read_back("**105ms**"), 0.0995, "s") == "100ms"
    assert respell(read_back("−3%"), -0.05, "frac") == "−5%"
    assert respell(read_back("$1.79/h"), 2.5, "usd_per_hour") == "$2.50/h"


def test_quantities_are_parsed_with_their_unit():
    """A literal of an expression becomes the inside unit; one without the right unit is refused."""
    assert parse_quantity("100 ms", "s") == 0.1
    with pytest.raises(ValueError, match="is no time"):
        parse_quantity("5%", "s")
