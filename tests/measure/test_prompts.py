"""Prompts have the tokens that they claim, are unlike each other, and share what is meant to be shared."""

from servefit.measure.prompts import WORDS, PromptMaker, make_prompt
from servefit.workload.requests import Request


def request(number: int = 0, isl: int = 100, prefix: tuple[int, ...] = ()) -> Request:
    """A request of `isl` tokens."""
    return Request(id=number, due_s=0.0, isl=isl, osl=1, prefix=prefix)


def test_words_and_overhead_make_the_length():
    """With one token a word, a prompt of n tokens has n minus overhead words before the closing sentence."""
    text, isl = make_prompt(PromptMaker(source="usage", tok_per_word=1.0, overhead_tok=40), request(), 0)
    assert isinstance(text, str)
    assert len(text.partition(". ")[0].split()) == 60
    assert isl == 100


def test_without_a_tokenizer_four_characters_are_a_token():
    """The estimate holds within a tenth: characters / 4, flagged by a wide tolerance."""
    maker = PromptMaker()
    text, isl = make_prompt(maker, request(isl=1000), 0)
    assert abs(len(text) / 4 - isl) < 100
    assert maker.tolerance_frac > 0.4


def test_token_ids_are_exact():
    """A prompt of ids has exactly the asked number."""
    ids, isl = make_prompt(PromptMaker(source="tokenizer", word_ids=(5, 6, 7)), request(isl=33), 0)
    assert len(ids) == isl == 33


def test_prompts_differ_by_request_seed_and_run():
    """No two requests, seeds or runs share a prompt; the same ones do."""
    makers = [PromptMaker(salt="a"), PromptMaker(salt="b")]
    seen = {make_prompt(m, request(n), seed)[0] for m in makers for n in range(3) for seed in range(2)}
    assert len(seen) == 12
    assert make_prompt(makers[0], request(1), 0) == make_prompt(makers[0], request(1), 0)


def test_a_shared_prefix_is_shared():
    """Requests with the same block hashes begin with the same words."""
    maker = PromptMaker(source="usage", tok_per_word=1.0, overhead_tok=0)
    one, two, other = (
        make_prompt(maker, request(n, 64, p), 0)[0].split() for n, p in ((1, (9, 8)), (2, (9, 8)), (3, (7,)))
    )
    assert one[:32] == two[:32]
    assert one[:16] != other[:16]
    assert one[32:50] != two[32:50]


def test_the_words_are_plain():
    """Short lower-case English words, each once."""
    assert len(set(WORDS)) == len(WORDS) > 300
    assert all(w.isascii() and w.islower() and w.isalpha() for w in WORDS)
