"""Spaced repetition by FSRS: which card is due, and an append-only log of every rating.

The log is the truth; the state of a card is computed by replaying it, without fuzz, so the same log gives the same dates
anywhere. Source: open-spaced-repetition/free-spaced-repetition-scheduler (package `fsrs`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from servefit.errors import MissingExtra, ServefitError

Rating = Literal["again", "hard", "good", "easy"]
RATINGS: tuple[Rating, ...] = ("again", "hard", "good", "easy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One rating of one card."""

    card: str
    rating: Rating
    at: datetime


def read_log(path: Path) -> list[Review]:
    """Every review in the log; a torn last line is passed over. Raises ServefitError naming a damaged line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ServefitError(f"{path} cannot be read: {error}.", hint="Move it away to start anew.") from None
    reviews = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            value = json.loads(line)
            if value["rating"] not in RATINGS:
                raise ValueError(value["rating"])
            reviews.append(
                Review(card=str(value["card"]), rating=value["rating"], at=datetime.fromisoformat(value["at"]))
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            if number < len(lines):
                raise ServefitError(f"{path} is damaged in line {number}.", hint="Remove that line.") from None
    return reviews


def append(path: Path, review: Review) -> None:
    """Add one review to the log, on disk when this returns; a torn last line before it is closed first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"card": review.card, "rating": review.rating, "at": review.at.astimezone(UTC).isoformat()})
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(line.encode() + b"\n")


def due_dates(reviews: Sequence[Review]) -> dict[str, datetime]:
    """When each reviewed card is due again, by FSRS with fuzz off."""
    try:
        import fsrs
    except ImportError:
        raise MissingExtra("fsrs", "learn", purpose="The drill's schedule") from None
    scheduler = fsrs.Scheduler(enable_fuzzing=False)
    grades = {"again": fsrs.Rating.Again, "hard": fsrs.Rating.Hard, "good": fsrs.Rating.Good, "easy": fsrs.Rating.Easy}
    cards: dict[str, Any] = {}
    for review in sorted(reviews, key=lambda r: r.at):
        at = review.at.astimezone(UTC)
        card = cards.get(review.card) or fsrs.Card(card_id=1, due=at)
        cards[review.card], _ = scheduler.review_card(card, grades[review.rating], review_datetime=at)
    return {name: card.due for name, card in cards.items()}


def next_card(ids: Sequence[str], reviews: Sequence[Review], *, now: datetime) -> str | None:
    """The card to show now: the one due longest, else the first not yet seen, else None until something is due."""
    due = due_dates(reviews)
    waiting = sorted((at, i) for i in ids if (at := due.get(i)) is not None and at <= now)
    if waiting:
        return waiting[0][1]
    return next((i for i in ids if i not in due), None)
