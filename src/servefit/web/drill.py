"""The pages to learn on: the drill, the whiteboard, say it out loud, the glossary. They work without script."""

from datetime import UTC, datetime
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from servefit.errors import ServefitError
from servefit.learn.cards import TOPICS, load_cards, own_decks
from servefit.learn.glossary import all_terms, find_term
from servefit.learn.numbers import collect, tell
from servefit.learn.review import RATINGS, Review, append, next_card, read_log
from servefit.learn.worked import all_examples, all_sayings, work
from servefit.units import parse_plain
from servefit.web.desk import desk_of
from servefit.web.overview import typed_numbers


def routes() -> list[Route]:
    """Every page to learn on."""
    return [
        Route("/learn", drill),
        Route("/learn/rate", rate, methods=["POST"]),
        Route("/whiteboard", whiteboard),
        Route("/whiteboard/{name}", example),
        Route("/say", say),
        Route("/glossary", glossary),
    ]


def log_path(folder: Path) -> Path:
    """Where ratings are appended; the terminal's drill uses the same file."""
    return folder / "learn" / "reviews.jsonl"


async def drill(request: Request) -> Response:
    """One card: the question, and behind a button its answer with the learner's numbers."""
    desk = desk_of(request)
    cards = {c.id: c for c in load_cards(own_decks(desk.folder))}
    topic = request.query_params.get("topic") or ""
    if topic and topic not in TOPICS:
        raise ServefitError(f"'{topic}' is no topic.", hint=f"Topics: {', '.join(TOPICS)}.")
    chosen = [i for i, c in cards.items() if topic in ("", c.topic)]
    reviews = read_log(log_path(desk.folder))
    asked = request.query_params.get("card") or next_card(chosen, reviews, now=datetime.now(UTC))
    if asked is not None and asked not in cards:
        raise ServefitError(f"There is no card '{asked}'.", hint="The drill shows the next one that is due.")
    card = cards[asked] if asked else None
    values = collect(desk.folder, typed=typed_numbers(desk.folder))
    told = [tell(line, values, where=card.id) for line in card.numbers] if card else []
    today = datetime.now(UTC).date()
    return desk.page(
        request,
        "drill.html",
        title="Drill",
        card=card,
        told=told,
        own=list(dict.fromkeys(n for t in told for n in t.own)),
        examples=list(dict.fromkeys(n for t in told for n in t.examples)),
        words=[find_term(w) for w in card.words] if card else [],
        topics=TOPICS,
        topic=topic,
        ratings=RATINGS,
        seen=len({r.card for r in reviews}),
        total=len(cards),
        today=sum(r.at.astimezone(UTC).date() == today for r in reviews),
    )


async def rate(request: Request) -> Response:
    """Append one rating and show the next card."""
    desk = desk_of(request)
    form = await request.form()
    card, rating, topic = (str(form.get(k, "")) for k in ("card", "rating", "topic"))
    if card not in {c.id for c in load_cards(own_decks(desk.folder))} or rating not in RATINGS:
        raise ServefitError("That is no rating of a card.", hint="Rate the card that is shown.")
    append(log_path(desk.folder), Review(card=card, rating=rating, at=datetime.now(UTC)))
    return RedirectResponse(f"/learn?topic={topic}" if topic in TOPICS else "/learn", status_code=303)


async def whiteboard(request: Request) -> Response:
    """All worked examples."""
    desk = desk_of(request)
    return desk.page(request, "whiteboard.html", title="Whiteboard", examples=all_examples())


async def example(request: Request) -> Response:
    """One example, its inputs in the address, its steps computed with them."""
    desk = desk_of(request)
    found = next((e for e in all_examples() if e.id == request.path_params["name"]), None)
    if found is None:
        raise ServefitError(f"There is no example '{request.path_params['name']}'.", hint="The whiteboard lists them.")
    inputs, error = {}, None
    for given in found.given:
        text = request.query_params.get(given.name, "")
        if text:
            try:
                inputs[given.name] = parse_plain(text, given.unit)
            except ServefitError as trouble:
                error = trouble
    try:
        done = work(found, inputs)
    except ServefitError as trouble:
        error, done = trouble, work(found)
    status = 400 if error else 200
    return desk.page(
        request, "example.html", title=found.title, status=status, example=found, done=done, inputs=inputs, error=error
    )


async def say(request: Request) -> Response:
    """Questions to answer out loud; recording stays in the page's memory, no route here accepts audio."""
    desk = desk_of(request)
    return desk.page(request, "say.html", title="Say it out loud", sayings=all_sayings())


async def glossary(request: Request) -> Response:
    """Every term."""
    desk = desk_of(request)
    return desk.page(request, "glossary.html", title="Glossary", terms=all_terms())
