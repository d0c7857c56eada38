"""The numbers that options take, each with its range: a slip is one sentence at once, never a run that does not end."""

import math
from typing import TYPE_CHECKING, Any

import click

from servefit.errors import ServefitError

if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # not generic in older clicks


class Amount(_Type):
    """A number from `least` to `most`, which are what a service, or this machine, can have."""

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most

    def _read(self, value: Any) -> float:
        return float(value)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises ServefitError, with the option, the value and the range."""
        try:
            number = self._read(value)
            if self.least <= number <= self.most:
                return number
        except (ValueError, OverflowError):  # no number, or one without end
            pass
        flag = max(param.opts, key=len) if param else "The number"
        said = str(value) if len(str(value)) <= 40 else f"{str(value)[:40]}..."
        raise ServefitError(
            f"{flag} is {said or 'empty'}.",
            hint=f"Write a {self.kind} from {_plain(self.least)} to {_plain(self.most)}.",
        )

    kind = "number"
    name = "float"


class Whole(Amount):
    """A whole number from `least` to `most`."""

    kind = "whole number"
    name = "integer"

    def _read(self, value: Any) -> int:
        return int(value)


def _plain(value: float) -> str:
    """The number without an exponent: 1,000,000 or 0.000001."""
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.{max(1, -math.floor(math.log10(abs(value))))}f}"


REQUESTS = Whole(1, 10**8)
"""As many as a workload may have (`workload.arrivals.MAX_REQUESTS`): a day of 1,000 a second."""
TOK = Whole(1, 10**7)
ANY_TOK = Whole(0, 10**7)
SEATS = Whole(1, 10**6)
BLOCKS = Whole(1, 10**9)
BITS = Whole(1, 64)
USERS = Whole(1, 10**6)
COPIES = Whole(1, 10**4)
SPREAD = Whole(1, 1024)
"""GPUs of one copy."""
PROCESSES = Whole(1, 1024)
SEED = Whole(-(2**63), 2**63 - 1)
SEEDS = Whole(1, 100)
"""Schedules, or repeats: the interval narrows with their root."""
ROUNDS = Whole(1, 20)
DRAFT_TOK = Whole(1, 1000)
PORT = Whole(0, 65535)
PERCENT = Whole(1, 99)
CONTEXT = Whole(1, 10**8)

PER_S = Amount(1e-6, 1e6)
"""From one request in 12 days."""
SECONDS = Amount(0, 1e9)
"""Up to 30 years."""
WAIT_S = Amount(1e-6, 1e9)
"""A time after which something ends: 0 would be at once."""
SHAPE = Amount(1e-3, 1e9)
FRAC = Amount(0, 1)
USABLE = Amount(1e-3, 1)
TIMES = Amount(0, 1000)
USD = Amount(1e-6, 1e9)
CAP_USD = Amount(0, 1e9)
SCORE = Amount(-1e9, 1e9)
