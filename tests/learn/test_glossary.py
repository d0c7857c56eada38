"""One definition per term, and every reference leads somewhere."""

import pytest

from servefit.errors import ServefitError
from servefit.learn.glossary import all_terms, find_term

TAUGHT = (
    "Decode, Token, TTFT, TPOT, Percentile, Goodput, SLO, Throughput, Memory-bound, Prefill, Compute-bound, Cost per request, Parameters, "
    "4-bit, Dense model, KV cache, Bandwidth, Queueing, p50, p95, Tail, Cold start, Context, Decode step, System prompt, Prompt caching, "
    "Traffic profile, Speculative decoding, ITL, Unified memory"
)


def test_each_term_once():
    """Two definitions of one word would disagree one day."""
    names = [t.name.lower() for t in all_terms()]
    assert len(names) == len(set(names)) >= 50


@pytest.mark.parametrize("name", TAUGHT.split(", "))
def test_the_words_of_the_two_documents_are_there(name):
    """P9: every word that the documents explain can be looked up."""
    assert find_term(name).text.endswith(".")


def test_references_lead_somewhere():
    """A `see` that names nothing is a dead end."""
    names = {t.name for t in all_terms()}
    assert [(t.name, s) for t in all_terms() for s in t.see if s not in names] == []


def test_no_term_is_measured_in_kb():
    """P11: KiB or GB, never "KB"."""
    assert not [t.name for t in all_terms() if "KB" in t.text]


def test_a_near_miss_is_suggested():
    """A misspelt term gets the nearest one."""
    with pytest.raises(ServefitError) as caught:
        find_term("goodputt")
    assert "Goodput" in caught.value.hint
