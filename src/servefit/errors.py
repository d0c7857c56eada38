"""What a person can fix, said once: one sentence with the value, one hint with what to do.

    ServefitError        2  usage, or an input that cannot be read
    +-- CannotMeasure    3  nothing there to measure or to ask
    +-- DoesNotVerify    4  a number, hash or name does not hold
    +-- AnswerIsNo       5  target missed, over the cap, something still billing
    +-- MissingExtra     2  an optional package is not installed

Exit code 1 is left to crashes, which are our bugs; 130 is Ctrl-C, with what was measured kept.
A failed request is a row, never an exception; a broken invariant is an assert with a sentence.
"""

from typing import ClassVar


class ServefitError(Exception):
    """A fault that the user can fix: `message` says what happened with the value, `hint` says what to do."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CannotMeasure(ServefitError):
    """No server, no answer, no permission: there is nothing to measure or to ask."""

    exit_code = 3


class DoesNotVerify(ServefitError):
    """A written number, hash or name is not what recomputing gives."""

    exit_code = 4


class AnswerIsNo(ServefitError):
    """The question was answered, and the answer is no."""

    exit_code = 5


class MissingExtra(ServefitError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, *, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed.",
            hint=f"pip install 'servefit[{extra}]'",
        )
