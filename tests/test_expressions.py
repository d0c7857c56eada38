"""Expressions from files are arithmetic and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.expressions import evaluate, names_in


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 + 2 * 3", 7), ("-a ** 2", -9), ("7 // 2 + 7 % 2", 4), ("(a + 1) / 2", 2), ("t.p99 > 0.1 or a == 3", True), ("not a < 3 <= a", True),
     ("1 < a < 3", False), ("half(a)", 1.5), ("1 and 0", False)],
)  # fmt: skip
def test_arithmetic(text, value):
    """What a reader expects on paper."""
    assert evaluate(text, {"a": 3, "t.p99": 0.05}, {"half": lambda x: x / 2}) == value


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "a.__class__", "().__class__", "[1]", "lambda: 1", "'x'", "a if a else b", "f'{a}'", "a := 1", "half(x=1)", "1 is 1",
     "9 ** 9 ** 9", "9 ** 999", "(-1) ** 0.5", "1 / 0", "b", "1 +", "a" * 501, "(" * 400, "1 in a", "", "x.y.z", "3 @ 4", "a; b", "1e999 ** 64 - nope"],
)  # fmt: skip
def test_everything_else_is_one_sentence(text):
    """No attribute, call, string or huge power gets through; each refusal is a sentence with a hint."""
    with pytest.raises(ServefitError) as caught:
        evaluate(text, {"a": 3}, {"half": lambda x: x / 2}, where="card kv-1")
    assert caught.value.hint


def test_a_near_miss_is_suggested():
    """A misspelt name gets the nearest."""
    with pytest.raises(ServefitError) as caught:
        evaluate("memory_gbb", {"memory_gb": 36})
    assert "memory_gb" in caught.value.hint


def test_names():
    """The names an expression needs, once each, functions left out."""
    assert names_in("max(ttft.p99, x) > 2 * x + y") == ["ttft.p99", "x", "y"]
    assert names_in("1 +") == []


@given(st.text(max_size=80))
def test_no_text_does_harm(text):
    """Any text has a value or is refused; nothing else happens."""
    try:
        evaluate(text, {"a": 1.0})
    except ServefitError:
        return
