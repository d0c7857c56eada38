"""Cards, examples and sayings compute what they say, and a deck that is broken names its file and line."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.files import write_json
from servefit.learn.cards import TOPICS, load_cards, load_deck, to_anki
from servefit.learn.numbers import all_fields, collect, tell, typed_value
from servefit.learn.review import Review, append, due_dates, next_card, read_log
from servefit.learn.worked import all_examples, all_sayings, work
from servefit.records import RequestRecord, Run, RunHeader, save_run

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def save(folder, isl, ttft, gap, kind="measured"):
    """A run of three requests with that prompt length, TTFT and gap."""
    rows = [
        RequestRecord(id=str(i), status="ok", due_s=0.0, chunk_s=(ttft, ttft + gap), osl=2, isl=isl, done_s=ttft + gap)
        for i in range(3)
    ]
    save_run(Run(header=RunHeader(kind=kind), rows=tuple(rows)), folder)


@pytest.mark.parametrize("card", load_cards(), ids=lambda c: c.id)
def test_every_card_computes(card):
    """Each number of each card has a value with the examples, and the card says that they are examples."""
    values = collect(Path("/nonexistent"))
    for line in card.numbers:
        told = tell(line, values, where=card.id)
        assert "{" not in told.text and told.own == ()


def test_w1_to_w9_the_support_assistant_and_the_code_completion():
    """W1-W4, W6: 6,200 tokens, 0.775 s, 299 gaps = 6.578 s, 7.353 s, 89.5% writing, cached 25 ms saves 0.750 s of it."""
    done = work(next(e for e in all_examples() if e.id == "support-assistant"))
    assert done.values["in_tok"] == 6200 and done.values["read_s"] == 0.775
    assert done.values["write_s"] == pytest.approx(6.578) and done.values["total_s"] == pytest.approx(7.353)
    assert "89.5%" in done.steps[3] and "25 ms" in done.steps[4]
    other = work(done.example, {"system_tok": 0, "question_tok": 200, "out_tok": 30})
    assert other.values["read_s"] == 0.025 and other.values["write_s"] == pytest.approx(0.638)
    assert other.values["total_s"] == pytest.approx(0.663)


def test_own_numbers_come_from_runs_and_say_so(tmp_path):
    """A short and a long measured run replace the examples; a simulated or damaged one does not."""
    save(tmp_path / "runs" / "short", 12, 0.2, 0.03)
    save(tmp_path / "runs" / "long", 4000, 2.0, 0.04)
    save(tmp_path / "runs" / "fake", 12, 9.0, 9.0, kind="simulated")
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "run.json").write_text("{")
    numbers = collect(tmp_path)
    assert numbers["ttft_short_ms"].said == "200 ms (runs/short)"
    assert numbers["ttft_long_ms"].said == "2,000 ms (runs/long)"
    assert numbers["itl_long_ms"].value == pytest.approx(40.0) and numbers["isl_long_tok"].value == 4000
    assert numbers["memory_gb"].said == "36 GB (example)" and numbers["hosted_ttft_ms"].said == "-"
    told = tell("{ttft_short_ms|0} of {memory_gb|0}", numbers)
    assert told.own == ("200 ms (runs/short)",) and told.examples == ("Memory",)


def test_typed_numbers_win_and_are_marked(tmp_path):
    """P3: an override beats the run and says so; the ceiling follows bandwidth and size."""
    save(tmp_path / "short", 12, 0.2, 0.03)
    numbers = collect(tmp_path, typed={"ttft_short_ms": 150.0, "bandwidth_gb_per_s": 546.0})
    assert numbers["ttft_short_ms"].said == "150 ms (typed by you)"
    assert numbers["ceiling_tok_per_s"].value == pytest.approx(111.43, abs=0.01)
    assert numbers["ceiling_tok_per_s"].origin == "typed"


def test_check_json_gives_memory_and_bandwidth(tmp_path):
    """A saved check fills the machine's fields; a damaged one fills none."""
    write_json(
        tmp_path / "check.json", {"machine": {"memory_bytes": 64e9}, "places": [{"bandwidth_bytes_per_s": 100e9}]}
    )
    assert collect(tmp_path)["memory_gb"].said == "64 GB (check.json)"
    assert collect(tmp_path)["ceiling_tok_per_s"].value == pytest.approx(100 / 4.9)
    (tmp_path / "check.json").write_text("[")
    assert collect(tmp_path)["memory_gb"].origin == "example"


@pytest.mark.parametrize(("text", "value"), [("4,210", 4210), ("4.21 s", 4210), ("4210ms", 4210), ("22.4", 22.4)])
def test_typed_values_as_people_write_them(text, value):
    """M18, P3: 4,210 and 4.21 s are the same wait."""
    field = next(f for f in all_fields() if f.name == "ttft_long_ms")
    assert typed_value(field, text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "-3", "0", "3 GB", "soon"])
def test_what_cannot_be_a_wait_is_refused(text):
    """One sentence with the text in it."""
    field = next(f for f in all_fields() if f.name == "ttft_long_ms")
    with pytest.raises(ServefitError) as caught:
        typed_value(field, text)
    assert text in caught.value.message


GOOD = """
[[card]]
id = "x"
topic = "machine"
question = "Q?"
plain = "P."
picture = "Pic."
numbers = ["{memory_gb|0}"]
words = ["TTFT"]
deeper = "D."
source = "S"
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [('topic = "machine"', 'topic = "cooking"', "cooking"), ('"{memory_gb|0}"', '"{memry_gb|0}"', "memry_gb"), ('["TTFT"]', '["TFTT"]', "TFTT"),
     ('plain = "P."', "", "plain"), ('source = "S"', 'sauce = "S"', "sauce"), ('plain = "P."', 'plain = " "', "empty"), ("[[card]]", "[[card]", "TOML")],
)  # fmt: skip
def test_a_broken_deck_names_file_and_line(tmp_path, old, new, said):
    """Whatever is wrong in a deck, its author is sent to the line."""
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_deck(path)[0].id == "x"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ServefitError) as caught:
        load_deck(path)
    assert "mine.toml" in caught.value.message and "line" in caught.value.message and said in caught.value.message


def test_a_card_id_that_stands_twice_is_refused(tmp_path):
    """Two cards with one id would share a schedule."""
    (tmp_path / "d.toml").write_text(GOOD.replace('id = "x"', f'id = "{load_cards()[0].id}"'))
    with pytest.raises(ServefitError, match="twice"):
        load_cards([tmp_path / "d.toml"])


def test_reviews_are_appended_replayed_and_survive_a_torn_line(tmp_path):
    """The log alone decides what is due; easy comes back later than hard; the same log gives the same dates."""
    log = tmp_path / "reviews.jsonl"
    append(log, Review(card="a", rating="easy", at=NOW))
    append(log, Review(card="b", rating="again", at=NOW))
    with log.open("a") as file:
        file.write('{"card": "c", "ra')
    reviews = read_log(log)
    assert [r.card for r in reviews] == ["a", "b"]
    due = due_dates(reviews)
    assert due == due_dates(list(reversed(reviews))) and due["a"] > due["b"] > NOW
    append(log, Review(card="c", rating="good", at=NOW))
    assert [r.card for r in read_log(log)] == ["a", "b", "c"]
    assert next_card(["a", "b", "new"], reviews, now=NOW) == "new"
    assert next_card(["a", "b"], reviews, now=NOW) is None
    assert next_card(["a", "b"], reviews, now=NOW + timedelta(hours=1)) == "b"


def test_a_damaged_log_line_is_named(tmp_path):
    """A rating that is none, in the middle, is an error with its line."""
    log = tmp_path / "reviews.jsonl"
    log.write_text(json.dumps({"card": "a", "rating": "great", "at": NOW.isoformat()}) + "\n" + "{}\n")
    with pytest.raises(ServefitError, match="line 1"):
        read_log(log)


def test_anki_export_is_one_line_a_card_and_escaped():
    """Tabs and new lines in a card do not break the file; markup in it stays text."""
    card = replace(load_cards()[0], question="a\tb\n<script>")
    lines = to_anki([card], collect(Path("/nonexistent"))).splitlines()
    assert len(lines) == 5 and lines[4].count("\t") == 2 and "&lt;script&gt;" in lines[4]


def test_sayings_fit_in_their_time():
    """P7: at 150 words a minute each answer is said within its 20 seconds; its phrases stand in it."""
    for saying in all_sayings():
        assert len(saying.answer.split()) / 150 * 60 <= saying.seconds_s
        assert all(phrase.said in saying.answer for phrase in saying.phrases)


def test_topics_are_named():
    """Every topic of the drill has a title."""
    assert {c.topic for c in load_cards()} <= TOPICS.keys()


def test_a_deck_in_the_folder_is_the_terminals_too_and_a_broken_one_names_its_line(cli, tmp_path):
    """learn/decks is read by page and terminal alike; named once more with --deck it still counts once."""
    deck = tmp_path / "learn" / "decks" / "mine.toml"
    deck.parent.mkdir(parents=True)
    card = (
        'id = "mine-1"\ntopic = "machine"\nquestion = "Q?"\nplain = "P."\npicture = "I."\ndeeper = "D."\nsource = "S"\n'
    )
    deck.write_text(f"[[card]]\n{card}numbers = []\nwords = []\n")
    code, out, _ = cli("learn", "cards", "--folder", str(tmp_path), "--deck", str(deck), "--json")
    assert code == 0 and out.count('"mine-1"') == 1
    deck.write_text(f"# a comment\n\n[[card]]\n{card}numbers = 5\nwords = []\n")
    code, _, err = cli("learn", "cards", "--folder", str(tmp_path))
    assert code == 2 and "mine.toml, line 3" in err
