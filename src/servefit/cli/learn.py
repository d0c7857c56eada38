"""`servefit learn`: the drill in the terminal, the whiteboard, the glossary; exports for Anki."""

from datetime import UTC, datetime
from pathlib import Path

import click

from servefit.cli import amounts
from servefit.cli.show import emit_json, plain
from servefit.errors import ServefitError

FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="Where your runs lie (default: here).",
)
DECKS = click.option(
    "--deck",
    "decks",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A deck of your own (TOML) beside those in learn/decks; repeatable.",
)


@click.group("learn", invoke_without_command=True)
@FOLDER
@DECKS
@click.option("--topic", help="Only cards of this topic.")
@click.option("-n", "count", type=amounts.REQUESTS, default=20, help="Stop after this many cards.")
@click.option(
    "--export",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Write it all as one file for a phone: cards, examples, glossary, your numbers.",
)
@click.pass_context
def command(
    ctx: click.Context, *, folder: Path, decks: tuple[Path, ...], topic: str | None, count: int, export: Path | None
) -> None:
    """Do I understand it? Cards with my own numbers, spaced by FSRS; worked examples; a glossary.

    Without a subcommand: the cards that are due, one by one. The log of ratings is learn/reviews.jsonl in --folder.
    """
    if export is not None:
        _export(folder, decks, export)
    elif ctx.invoked_subcommand is None:
        _drill(folder, decks, topic, count)


def _export(folder: Path, decks: tuple[Path, ...], path: Path) -> None:
    from servefit.files import read_json, write_text
    from servefit.learn.cards import load_cards, own_decks
    from servefit.learn.export import export_html
    from servefit.learn.numbers import collect

    if path.suffix.lower() not in {".html", ".htm"}:
        raise ServefitError(f"'{path}' is no HTML file's name.", hint="Write --export learn.html.")
    try:
        typed = {k: float(v) for k, v in read_json(folder / "learn" / "numbers.json").items()}
    except (ServefitError, AttributeError, TypeError, ValueError):
        typed = {}
    cards = load_cards((*decks, *own_decks(folder)))
    write_text(path, export_html(cards, collect(folder, typed=typed)))
    click.echo(f"{len(cards)} cards, every example, saying and term, and your numbers in {path}.")
    click.echo("next: send it to your phone; it opens from its files, offline.")


def _drill(folder: Path, decks: tuple[Path, ...], topic: str | None, count: int) -> None:
    from servefit.learn.cards import TOPICS, load_cards, own_decks
    from servefit.learn.review import RATINGS, Review, append, next_card, read_log

    if topic is not None and topic not in TOPICS:
        raise ServefitError(f"'{topic}' is no topic.", hint=f"Topics: {', '.join(TOPICS)}.")
    cards = {c.id: c for c in load_cards((*decks, *own_decks(folder))) if topic in (None, c.topic)}
    log = folder / "learn" / "reviews.jsonl"
    keys = {str(i): rating for i, rating in enumerate(RATINGS, 1)}
    for _ in range(count):
        due = next_card(list(cards), read_log(log), now=datetime.now(UTC))
        if due is None:
            click.echo("Nothing is due. next: servefit learn example, or come back tomorrow.")
            return
        card = cards[due]
        click.echo(f"\n{TOPICS[card.topic]}\n{card.question}")
        answer = click.prompt("Say it out loud, then Enter for the answer (q to stop)", default="", show_default=False)
        if answer.strip().lower() == "q":
            return
        for line in card_lines(due, decks, folder):
            click.echo(line)
        choice = click.prompt(
            "How did it go? 1 again, 2 hard, 3 good, 4 easy (q to stop)",
            type=click.Choice([*keys, "q"]),
            show_choices=False,
        )
        if choice == "q":
            return
        append(log, Review(card=card.id, rating=keys[choice], at=datetime.now(UTC)))


def card_lines(card_id: str, decks: tuple[Path, ...], folder: Path) -> list[str]:
    """The answer of a card as lines for the terminal, its figures computed from the runs below `folder`."""
    from servefit.learn.cards import load_cards, own_decks
    from servefit.learn.numbers import collect, tell

    card = next(c for c in load_cards((*decks, *own_decks(folder))) if c.id == card_id)
    values = collect(folder)
    told = [tell(line, values, where=card.id) for line in card.numbers]
    examples = list(dict.fromkeys(name for t in told for name in t.examples))
    own = list(dict.fromkeys(name for t in told for name in t.own))
    lines = ["", card.plain, "", f"Picture it: {card.picture}", "", *(f"  {t.text}" for t in told)]
    lines += [f"  your own: {', '.join(own)}"] if own else []
    lines += [f"  example values: {', '.join(examples)}"] if examples else []
    lines += ["", f"Words: {', '.join(card.words)}", f"Deeper: {card.deeper}", f"Source: {card.source}"]
    return [*lines, f"Your number: {card.step}", ""] if card.step else [*lines, ""]


@command.command("cards")
@FOLDER
@DECKS
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--anki", type=click.Path(path_type=Path), help="Write the cards as a text file that Anki imports.")
def cards_command(folder: Path, decks: tuple[Path, ...], as_json: bool, anki: Path | None) -> None:
    """The cards, with their figures computed from the runs in --folder."""
    from servefit.files import write_text
    from servefit.learn.cards import load_cards, own_decks, to_anki
    from servefit.learn.numbers import collect, tell

    cards, values = load_cards((*decks, *own_decks(folder))), collect(folder)
    if anki:
        write_text(anki, to_anki(cards, values))
        click.echo(f"{len(cards)} cards in {anki}. next: import it in Anki (File, Import).")
    elif as_json:
        emit_json(
            {
                "cards": [
                    {
                        "id": c.id,
                        "topic": c.topic,
                        "question": c.question,
                        "numbers": [tell(n, values, where=c.id).text for n in c.numbers],
                    }
                    for c in cards
                ]
            }
        )
    else:
        for card in cards:
            click.echo(f"{card.topic:13} {plain(card.question)}")
        click.echo(f"\n{len(cards)} cards. next: servefit learn")


@command.command("example")
@click.argument("name", required=False)
@click.option("--set", "inputs", multiple=True, metavar="NAME=VALUE", help="Another value for an input; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def example_command(name: str | None, inputs: tuple[str, ...], as_json: bool) -> None:
    """A worked example, step by step, with your numbers in place of its own."""
    from servefit.learn.worked import all_examples, work
    from servefit.units import parse_plain

    examples = {e.id: e for e in all_examples()}
    if name is None:
        if as_json:
            emit_json({"examples": [{"id": e.id, "title": e.title} for e in examples.values()]})
            return
        for e in examples.values():
            click.echo(f"{e.id:20} {e.title}")
        click.echo("\nnext: servefit learn example NAME [--set INPUT=VALUE]")
        return
    if name not in examples:
        raise ServefitError(f"There is no example '{name}'.", hint=f"Examples: {', '.join(examples)}.")
    example = examples[name]
    given = {g.name: g.unit for g in example.given}
    values: dict[str, float] = {}
    for text in inputs:
        key, _, number = text.partition("=")
        if key not in given:
            raise ServefitError(f"'{key}' is no input of '{name}'.", hint=f"Inputs: {', '.join(sorted(given))}.")
        values[key] = parse_plain(number, given[key])
    done = work(example, values)
    if as_json:
        emit_json(
            {
                "id": example.id,
                "values": done.values,
                "steps": done.steps,
                "answer": done.answer,
                "careful": done.careful,
            }
        )
        return
    click.echo(f"{example.title}\n{example.question}\n")
    for g in example.given:
        click.echo(f"  {g.name:22} {g.label}: {values.get(g.name, g.value):g} {g.unit}".rstrip())
    click.echo("")
    for place, step in enumerate(done.steps, 1):
        click.echo(f"  {place}. {step}")
    click.echo(f"\n{done.answer}\nCareful: {done.careful}\nSource: {example.source}")


@command.command("glossary")
@click.argument("word", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def glossary_command(word: str | None, as_json: bool) -> None:
    """What a word of the field means."""
    from servefit.learn.glossary import all_terms, find_term

    terms = [find_term(word)] if word else list(all_terms())
    if as_json:
        emit_json({"terms": terms})
        return
    for term in terms:
        see = f" See: {', '.join(term.see)}." if term.see else ""
        click.echo(f"{term.name}{f' ({term.long})' if term.long else ''}\n    {term.text}{see}")


@command.command("say")
def say_command() -> None:
    """The questions to answer out loud, each in 20 seconds, with one clear answer."""
    from servefit.learn.worked import all_sayings

    for saying in all_sayings():
        click.echo(f"\n{saying.question}\n  {saying.answer}")
        for phrase in saying.phrases:
            click.echo(f"    “{phrase.said}”: {phrase.means}")
