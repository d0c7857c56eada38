"""Prompts have the tokens that they claim, are unlike each other, and share what is meant to be shared."""

from servefit.measure.prompts import WORDS, PromptMaker, make_conversation, make_prompt
from servefit.workload.arrivals import schedule
from servefit.workload.requests import Request
from servefit.workload.workload import Lengths, Workload


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


def test_a_conversation_repeats_what_was_said_before():
    """Each turn's messages begin with all of the turn before, roles in turn, and no other session says the same."""
    workload = Workload(n=6, concurrency=2, turns=3, isl=Lengths(mean=64), osl=Lengths(mean=20))
    requests = schedule(workload)
    maker = PromptMaker(salt="s", tok_per_word=1.0, overhead_tok=13)
    said = []
    for request in requests:
        talk = [r for r in requests if r.session == request.session]
        history, prompt, isl = make_conversation(maker, talk, request, seed=0)
        assert isl == request.isl
        assert [m["role"] for m in history] == ["user", "assistant"] * (len(history) // 2)
        said.append([*(m["content"] for m in history), prompt])
    assert [len(messages) for messages in said] == [1, 3, 5, 1, 3, 5]
    assert said[1][0] == said[0][0]
    assert said[2][:3] == said[1]
    assert said[3][0] != said[0][0]


def test_a_traces_shared_blocks_are_the_same_words():
    """Two requests of a trace that share the first of their 512-token blocks begin alike and then differ."""
    maker = PromptMaker(salt="s", tok_per_word=1.0, overhead_tok=0)
    one, other = (
        str(make_prompt(maker, Request(id=i, due_s=0.0, isl=1024, osl=1, prefix=(7, 8 + i), prefix_block_tok=512), 0)[0]).split()
        for i in range(2)
    )  # fmt: skip
    assert one[:512] == other[:512]
    assert one[512:600] != other[512:600]
