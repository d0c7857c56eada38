"""What a decision rests on is kept, and what a verb reads: no verb writes over it."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from servefit.errors import ServefitError

OF_A_FOLDER: Final = ("run.json", "requests.jsonl", "plan.json")
"""The files that are meant where a folder is read."""


def check_not_read(
    path: Path | None, sources: Iterable[Path | str | None], *, option: str = "--out", decision: bool = False
) -> None:
    """Raise ServefitError where `path`, which the flag `option` names to be written, is one of the `sources` (in a folder: the file that counts).

    Nor may it be what people wrote or measured: a run's own file, a TOML file, or (unless a `decision` is what is written) a decision.
    No flag lifts this: what is read would be gone before anybody knows whether the answer was worth it.
    """
    if path is None:
        return
    place = os.path.realpath(path)  # unlike Path.resolve it has an answer for links that go in a circle
    for source in sources:
        if source is None:
            continue
        there = Path(source)
        own = [there / name for name in OF_A_FOLDER] if there.is_dir() else [there]
        if place in map(os.path.realpath, own):
            raise ServefitError(
                f"{path} is one of the files of this very command, and would be written over.",
                hint=f"Name another file with {option}.",
            )
    if (kept := _kept(path)) and not (decision and kept == "a decision"):
        raise ServefitError(f"{path} is {kept}, and would be written over.", hint=f"Name another file with {option}.")


def _kept(path: Path) -> str:
    """What is in the file, where people wrote or measured it; "" of all else, and where there is none."""
    if not path.is_file():
        return ""
    if path.name in OF_A_FOLDER[:2] and (path.parent / "run.json").exists():
        return "part of a run"
    if path.suffix.lower() == ".toml":
        return "a TOML file"
    with path.open("rb") as file:
        return "a decision" if path.suffix.lower() == ".md" and file.read(3) == b"---" else ""


def check_not_decided_on(path: Path, *, what: str, option: str = "--out", force: bool = False) -> None:
    """Raise ServefitError where a decision beside `path` rests on the file in it, which `what` (as "this plan") would write over.

    `option` is the flag that names another file. `force` says that --force lets it through here.
    """
    from servefit.decide.decision import resting_on

    if decisions := resting_on(path):
        names = " and ".join(str(d) for d in decisions)
        raise ServefitError(
            f"{names} {'rests' if len(decisions) == 1 else 'rest'} on {path}, which {what} would write over.",
            hint=f"Name another file with {option}{', or say --force and decide again' if force else ''}.",
        )
