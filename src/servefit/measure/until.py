"""Enough is enough: the load ends when a percentile is known narrowly enough (`--until p95=5%`)."""

import re
from bisect import insort
from typing import Literal

from servefit.errors import ServefitError
from servefit.records import Finding, RequestRecord
from servefit.stats import percentile, percentile_interval

_PATTERN = re.compile(r"(?:(ttft|tpot|e2e)\.)?p(\d{1,2})=(\d+(?:\.\d+)?)%")
_EVERY = 20


class Until:
    """Sees each row; `enough` once the percentile's 95% interval is within the asked share of it, to either side.

    Looking again and again makes the interval a little too hopeful: it is looked at every 20 successes, not at each.
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
        self._values: list[float] = []

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
        if len(self._values) % _EVERY == 0:
            interval = percentile_interval(self._values, self.p)
            middle = percentile(self._values, self.p)
            if interval is not None and middle:
                self.enough = max(interval[1] - middle, middle - interval[0]) <= self.share * middle
