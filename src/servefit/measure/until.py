"""Enough is enough: the load ends when a percentile is known narrowly enough (`--until p95=5%`)."""

import re
from array import array
from bisect import insort
from typing import Literal

from servefit.errors import ServefitError
from servefit.records import Finding, RequestRecord
from servefit.stats import interval_ranks, rank

_PATTERN = re.compile(r"(?:(ttft|tpot|e2e)\.)?p(\d{1,2})=(\d+(?:\.\d+)?)%")
_EVERY, _OF = 20, 1_000


class Until:
    """Sees each row; `enough` once the percentile's 95% interval is within the asked share of it, to either side.

    Looking again and again makes the interval a little too hopeful: it is looked at every 20 successes, not at each; beyond
    20,000 of them, whenever there are a thousandth more.
    """

    def __init__(self, text: str) -> None:
        """Read "p95=5%" or "tpot.p99=2%". Raises ServefitError."""
        match = _PATTERN.fullmatch(text.strip().lower())
        if match is None or not 1 <= int(match.group(2)) <= 99 or float(match.group(3)) <= 0:
            raise ServefitError(f"--until '{text}' is not understood.", hint="Write p95=5% or tpot.p99=2%.")
        self.figure: Literal["ttft_s", "tpot_s", "e2e_s"] = f"{match.group(1) or 'ttft'}_s"  # type: ignore[assignment]
        self.p = int(match.group(2))
        self.share = float(match.group(3)) / 100
        self.enough = False
        self._values = array("d")
        """In rising order."""
        self._look_at = _EVERY

    def finding(self) -> Finding:
        """Whether it was enough, in words."""
        what = f"{self.figure.removesuffix('_s').upper()} p{self.p}"
        n, share = len(self._values), f"{self.share * 100:g}%"
        if self.enough:
            return Finding(
                code="until", level="note", message=f"{what} is known to {share} after {n} successes: stopped."
            )
        return Finding(code="until", level="note", message=f"{what} is not known to {share} after {n} successes.",
                       hint="Raise -n.")  # fmt: skip

    def saw(self, row: RequestRecord) -> None:
        """Take a load row into account."""
        value = getattr(row, self.figure)
        if self.enough or not row.ok or row.phase != "load" or value is None:
            return
        insort(self._values, value)
        n = len(self._values)
        if n < self._look_at:
            return
        self._look_at = n + max(_EVERY, n // _OF)
        ranks, middle = interval_ranks(self.p, n), self._values[rank(self.p, n) - 1]
        if ranks is not None and middle:
            lower, upper = (self._values[place - 1] for place in ranks)
            self.enough = max(upper - middle, middle - lower) <= self.share * middle
