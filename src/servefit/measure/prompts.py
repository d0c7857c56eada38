"""Prompts of a known token count, unique per request: common words that are one token each in nearly every vocabulary.

How many tokens a word and the chat template take is learnt, in this order: from the server's tokenizer, from `usage` of two
warm-up requests, else guessed at 4 characters a token and flagged as an estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from servefit.workload.requests import Request, stream

if TYPE_CHECKING:
    import random

W = TypeVar("W", str, int)

CHARS_PER_TOK = 4.0
"""The estimate of the seed documents, used only where nothing better is known."""

WORDS = tuple(
    """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power
hour game line end member law car city community name president team minute idea body information back parent face
others level office door health person art war history party result change morning reason research girl guy moment air
teacher force education foot boy age policy process music market sense nation plan college interest death experience
effect use class control field development role effort rate heart drug show leader light voice wife police mind price
report decision son view relationship town road arm difference value building action season society tax director
position player record paper space ground form event official matter center couple site project activity star table
need court oil situation cost industry figure street image phone data picture practice piece land product doctor wall
patient worker news test movie north love support technology step baby computer type attention film tree source hair
window culture chance brother energy period course summer plant opportunity term letter condition choice rule south
husband floor campaign material population call economy hospital church risk fire future bank west sport board subject
officer rest behavior performance top goal second bed order author blood agency nature color store sound movement page
race concern series language response animal factor decade article east artist scene stock career treatment approach
size fund media sign thought list individual quality pressure answer resource meeting disease success cup amount
ability staff character growth loss degree attack region television box training trade deal election feeling standard
bill message analysis benefit sex lawyer section glass skill sister professor operation crime stage authority design
""".split()  # noqa: SIM905 - quoted and one a line, 400 words are no better to read
)

CLOSING = "Write about these words at length, and do not stop."
"""Ends every prompt, so that a server without `ignore_eos` writes on; its tokens are part of the overhead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMaker:
    """How to write a prompt of n tokens for one endpoint."""

    source: Literal["tokenizer", "usage", "estimate", "given"] = "estimate"
    tok_per_word: float = sum(len(w) + 1 for w in WORDS) / len(WORDS) / CHARS_PER_TOK
    overhead_tok: int = 13
    """Tokens of the closing sentence and of the chat template; the default is the closing sentence at 4 a token."""
    salt: str = ""
    """Makes the prompts of this run unlike those of any other, so that no cache has seen them. Recorded in the run."""
    words: tuple[str, ...] = WORDS
    """Words to make prompts of: where the server's tokenizer was asked, those that are one token each."""
    word_ids: tuple[int, ...] = ()
    """Token ids of single-token words: a prompt is then a list of ids, exact to the token."""
    fixed: str | None = None
    """The user's own prompt, sent as it is."""

    @property
    def tolerance_frac(self) -> float:
        """How far the server's count may lie below ours before its prompt was cut.

        2% where every word is exactly one token, 15% where a mean was learnt from `usage`, 45% where it was guessed.
        """
        if self.source == "tokenizer" or (self.source == "usage" and self.tok_per_word == 1.0):
            return 0.02
        return 0.15 if self.source == "usage" else 0.45


def make_prompt(maker: PromptMaker, request: Request, seed: int) -> tuple[str | list[int], int]:
    """The prompt of a request, and how many prompt tokens it should make."""
    if maker.fixed is not None:
        return maker.fixed, max(1, round(len(maker.fixed) / CHARS_PER_TOK))
    rng = stream(seed, f"prompt/{maker.salt}/{request.id}")
    if maker.word_ids:
        ids = [*_shared(maker.word_ids, request, seed, maker.salt, 1.0)][: request.isl]
        ids.extend(rng.choices(maker.word_ids, k=request.isl - len(ids)))
        return ids, len(ids)
    count = max(1, round((request.isl - maker.overhead_tok) / maker.tok_per_word))
    words = [*_shared(maker.words, request, seed, maker.salt, maker.tok_per_word)][:count]
    words.extend(rng.choices(maker.words, k=count - len(words)))
    return f"{' '.join(words)}. {CLOSING}", round(count * maker.tok_per_word) + maker.overhead_tok


def make_conversation(
    maker: PromptMaker, talk: Sequence[Request], request: Request, seed: int
) -> tuple[tuple[dict[str, str], ...], str, int]:
    """The messages before this turn of the session `talk`, its own message, and the prompt tokens of all together.

    A turn's prompt is all that was said before it and its own message, so what was new in it is its `isl` less the `isl`
    and `osl` of the turn before. What was said in a turn is the same in all later ones. The model's earlier answers are
    stand-ins of the asked length, not what it really said: the same seed then asks the same of every server.
    """
    rng = stream(seed, f"talk/{maker.salt}/{request.session}")
    words = [*_shared(maker.words, talk[-1], seed, maker.salt, maker.tok_per_word)]
    longest = round((talk[-1].isl + 1) / maker.tok_per_word) + 1
    words.extend(rng.choices(maker.words, k=max(0, longest - len(words))))
    messages: list[dict[str, str]] = []
    at, before_tok, asked_tok = 0, 0, 0

    def say(role: str, tokens: float, closing: str) -> None:
        nonlocal at, asked_tok
        count = max(1, round(tokens / maker.tok_per_word))
        messages.append({"role": role, "content": f"{' '.join(words[at : at + count])}.{closing}"})
        at += count
        asked_tok += round(count * maker.tok_per_word)

    for turn in talk:
        say("user", turn.isl - before_tok - maker.overhead_tok, f" {CLOSING}")
        asked_tok += maker.overhead_tok
        if turn is request or turn.id == request.id:
            break
        say("assistant", turn.osl, "")
        before_tok = turn.isl + turn.osl
    return tuple(messages[:-1]), messages[-1]["content"], asked_tok


def _shared(vocabulary: Sequence[W], request: Request, seed: int, salt: str, tok_per_word: float) -> list[W]:
    """The part of the prompt that others share: the same words for the same block hash, `prefix_block_tok` tokens each."""
    out: list[W] = []
    for block in request.prefix:
        rng: random.Random = stream(seed, f"block/{salt}/{block}")
        out.extend(rng.choices(vocabulary, k=max(1, round(request.prefix_block_tok / tok_per_word))))
    return out
