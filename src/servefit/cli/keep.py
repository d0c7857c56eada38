"""What a decision rests on is kept: no verb writes over it unasked."""

from pathlib import Path

from servefit.errors import ServefitError


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
