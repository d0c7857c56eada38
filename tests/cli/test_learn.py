"""`servefit learn` as a learner types it."""

import json

import click.testing

from servefit.cli.main import main
from servefit.learn.review import read_log


def test_a_drill_is_rated_and_remembered(tmp_path):
    """One card, answered and rated good; the rating is in the log and the next session goes on with another card."""
    runner = click.testing.CliRunner()
    done = runner.invoke(main, ["learn", "--folder", str(tmp_path)], input="\n3\nq\n")
    assert "25.2 GB" in done.output and "example values: Memory" in done.output
    assert [(r.card, r.rating) for r in read_log(tmp_path / "learn" / "reviews.jsonl")] == [("machine-how-big", "good")]
    again = runner.invoke(main, ["learn", "--folder", str(tmp_path)], input="q\n")
    assert "36 GB of unified memory" not in again.output


def test_an_example_takes_other_numbers(cli):
    """B3: 12 cents for 1,000 calls, 24 for 2,000; an input that is none is refused with the inputs named."""
    code, out, _ = cli("learn", "example", "cached-bill", "--set", "calls=2,000", "--json")
    assert code == 0 and round(json.loads(out)["values"]["bill_usd"], 9) == 0.24
    code, out, err = cli("learn", "example", "cached-bill", "--set", "cals=1")
    assert code == 2 and out == "" and "calls" in err


def test_cards_and_glossary_for_machines_and_people(cli, tmp_path):
    """One JSON object each; Anki's file holds every card."""
    assert len(json.loads(cli("learn", "cards", "--json")[1])["cards"]) >= 60
    assert "Time to first token" in cli("learn", "glossary", "ttft")[1]
    assert cli("learn", "cards", "--anki", str(tmp_path / "a.txt"))[0] == 0
    assert (tmp_path / "a.txt").read_text().count("\n") >= 60


def test_bad_words_are_one_sentence(cli):
    """A topic, an example and a term that do not exist: exit 2, one sentence, one hint."""
    for args in (
        ("learn", "--topic", "cooking"),
        ("learn", "example", "soup"),
        ("learn", "glossary", "soup"),
        ("lern",),
    ):
        code, _, err = cli(*args)
        assert code == 2 and err.count("\n") == 2 and "hint:" in err


def test_every_example_and_saying_prints(cli):
    """No example fails on its own numbers."""
    for line in cli("learn", "example")[1].splitlines()[:12]:
        assert cli("learn", "example", line.split()[0])[0] == 0
    assert cli("learn", "say")[1].count("?") >= 12
