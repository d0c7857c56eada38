"""All there is to learn as one file for a phone: cards, worked examples, sayings, glossary, the learner's own numbers.

Self-contained: style and script are in it, its own policy forbids every request, it opens from a phone's files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

from servefit.learn.cards import TOPICS, Card
from servefit.learn.glossary import all_terms, find_term
from servefit.learn.numbers import Number, tell
from servefit.learn.worked import all_examples, all_sayings, work
from servefit.units import fmt

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
FIELDS_SHOWN = {"run": "from your runs", "check": "from check", "typed": "typed by you", "example": "example"}


def export_html(cards: Sequence[Card], values: Mapping[str, Number]) -> str:
    """The file as text."""
    style, script = (
        (files("servefit.learn") / "data" / name).read_text(encoding="utf-8") for name in ("export.css", "export.js")
    )
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">',
        f"<title>servefit: to learn</title><style>{style}</style></head><body>",
        f'<header><strong>servefit</strong><nav aria-label="Parts">{_menu()}</nav></header>',
        "<main><h1>To learn, offline</h1>",
        *_cards(cards, values),
        *_examples(),
        *_sayings(),
        *_numbers(values.values()),
        *_glossary(),
        f"</main><script>{script}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _menu() -> str:
    parts = {
        "cards": "Cards",
        "examples": "Examples",
        "say": "Say it",
        "numbers": "Your numbers",
        "glossary": "Glossary",
    }
    return " ".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in parts.items())


def _cards(cards: Sequence[Card], values: Mapping[str, Number]) -> Iterator[str]:
    yield '<section aria-labelledby="cards"><h2 id="cards">Cards</h2>'
    yield f'<p>{len(cards)} cards. Say the answer out loud, then open it.</p><p class="tools" id="tools" hidden>'
    yield '<button type="button" id="draw">Draw a card</button> <label>Topic <select id="topic"><option value="">All</option>'
    yield "".join(f'<option value="{escape(k)}">{escape(name)}</option>' for k, name in TOPICS.items())
    yield "</select></label></p>"
    for topic, name in TOPICS.items():
        of_topic = [c for c in cards if c.topic == topic]
        if not of_topic:
            continue
        yield f'<section class="topic" data-topic="{escape(topic)}"><h3>{escape(name)}</h3>'
        for card in of_topic:
            told = [tell(line, values, where=card.id) for line in card.numbers]
            own = list(dict.fromkeys(n for t in told for n in t.own))
            yield f'<details class="card" id="card-{escape(card.id)}"><summary>{escape(card.question)}</summary>'
            yield f"<p>{escape(card.plain)}</p><h4>Picture it</h4><p>{escape(card.picture)}</p><h4>With real numbers</h4><ul>"
            yield "".join(f"<li>{escape(t.text)}</li>" for t in told) + "</ul>"
            if own:
                yield f"<p><small>Your own: {escape(', '.join(own))}.</small></p>"
            yield "<h4>Words to know</h4><p>" + ", ".join(_word(w) for w in card.words) + "</p>"
            yield f"<h4>The engineer's version</h4><p>{escape(card.deeper)}</p><p><small>Source: {escape(card.source)}</small></p>"
            yield "</details>"
        yield "</section>"
    yield "</section>"


def _word(name: str) -> str:
    return f'<a href="#{_anchor(find_term(name).name)}">{escape(name)}</a>'


def _anchor(name: str) -> str:
    return "w-" + "".join(c if c.isalnum() else "-" for c in name.lower())


def _examples() -> Iterator[str]:
    yield '<section aria-labelledby="examples"><h2 id="examples">Worked examples</h2>'
    for example in all_examples():
        done = work(example)
        given = "".join(f"<li>{escape(g.label)}: {g.value:g} {escape(g.unit)}</li>" for g in example.given)
        steps = "".join(f"<li>{escape(s)}</li>" for s in done.steps)
        yield f'<details class="card"><summary>{escape(example.title)}</summary><p>{escape(example.question)}</p>'
        yield f"<h4>Given</h4><ul>{given}</ul><details><summary>Reveal</summary><p><strong>{escape(done.answer)}</strong></p>"
        yield f"<ol>{steps}</ol><p><strong>Careful.</strong> {escape(done.careful)}</p><p>{escape(example.picture)}</p>"
        yield f"<p><small>Source: {escape(example.source)}</small></p></details></details>"
    yield "</section>"


def _sayings() -> Iterator[str]:
    yield '<section aria-labelledby="say"><h2 id="say">Say it out loud</h2>'
    for saying in all_sayings():
        phrases = "".join(f"<dt>“{escape(p.said)}”</dt><dd>{escape(p.means)}</dd>" for p in saying.phrases)
        yield f'<details class="card"><summary>{escape(saying.question)} ({saying.seconds_s} s)</summary>'
        yield f"<p><strong>{escape(saying.answer)}</strong></p><dl>{phrases}</dl></details>"
    yield "</section>"


def _numbers(values: Iterable[Number]) -> Iterator[str]:
    yield '<section aria-labelledby="numbers"><h2 id="numbers">Your numbers</h2><ul class="numbers">'
    for n in values:
        value = "-" if n.value is None else f"{fmt(n.value, n.field.places)} {n.field.unit}"
        yield f"<li><span>{escape(n.field.title)}</span> <strong>{escape(value)}</strong> <small>{FIELDS_SHOWN[n.origin]}</small></li>"
    yield "</ul></section>"


def _glossary() -> Iterator[str]:
    yield '<section aria-labelledby="glossary"><h2 id="glossary">Glossary</h2><dl>'
    for term in all_terms():
        long = f" <small>({escape(term.long)})</small>" if term.long else ""
        yield f'<div id="{_anchor(term.name)}"><dt>{escape(term.name)}{long}</dt><dd>{escape(term.text)}</dd></div>'
    yield "</dl></section>"
