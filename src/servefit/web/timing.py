"""The timing table: a line a run, short and long prompts, local and hosted, and a line for every kind of failure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servefit.errors import ServefitError
from servefit.learn.numbers import is_hosted
from servefit.objectives import summarize
from servefit.records import Run, RunHeader, load_run
from servefit.stats import Spread
from servefit.web.shelf import Shelved

SHORT_TOK, LONG_TOK = 100, 1000
LARGEST_BYTES = 48 << 20
"""Runs with more rows than this are not read for the table; their own page reads them."""


WRONG = (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, AssertionError, MemoryError)
"""What comes of rows that no measurement leaves: times that overflow, counts below zero, a text for a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Requests of one run that failed in the same way."""

    status: str
    expected: bool
    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a run's rows say, in the columns of the table. Times in seconds."""

    path: str
    target: str
    where: Literal["local", "hosted", "simulated"]
    prompt: str
    """short, medium or long, with its tokens."""
    n: int
    ok: int
    ttft_s: Spread
    itl_s: Spread
    isl: int | None
    osl: int | None
    failures: tuple[Failure, ...]
    surprises: int
    """Requests that were expected to fail and did not."""


def where_of(header: RunHeader) -> Literal["local", "hosted", "simulated"]:
    """Whether the run is simulated, or its server stood on this machine or elsewhere."""
    if header.kind == "simulated":
        return "simulated"
    return "hosted" if is_hosted(header) else "local"


def timing_of(run: Run, path: str) -> Timing:
    """The run as a line of the table."""
    s = summarize(run)
    rows = run.load_rows
    isl = _median(r.isl if r.isl is not None else r.isl_asked for r in rows)
    return Timing(
        path=path,
        target=run.header.target or path,
        where=where_of(run.header),
        prompt="-" if isl is None else "short" if isl < SHORT_TOK else "long" if isl >= LONG_TOK else "medium",
        n=s.n,
        ok=s.ok,
        ttft_s=s.ttft_s,
        itl_s=s.itl_s,
        isl=isl,
        osl=_median(r.osl for r in rows if r.ok),
        failures=failures_of(run),
        surprises=sum(r.ok and r.expected_failure for r in rows),
    )


def read_run(folder: Path, path: str) -> tuple[Run, Timing]:
    """The run in `folder`, called `path`, and its timing. Raises ServefitError where it is damaged in any way."""
    try:
        run = load_run(folder)
        return run, timing_of(run, path)
    except WRONG as error:
        raise ServefitError(
            f"{path} is damaged: a row holds what no row can hold ({error}).", hint="Restore it, or measure again."
        ) from None


def failures_of(run: Run) -> tuple[Failure, ...]:
    """The run's failures by status, the commonest first, each with its commonest reason."""
    failed = [r for r in run.load_rows if not r.ok]
    counts = Counter((r.status, r.expected_failure) for r in failed)
    out = []
    for (status, expected), count in counts.most_common():
        reasons = Counter(r.error for r in failed if (r.status, r.expected_failure) == (status, expected) and r.error)
        reason = reasons.most_common(1)[0][0] if reasons else ""
        out.append(Failure(status=status, expected=expected, count=count, reason=reason[:300]))
    return tuple(out)


def _median(values: Iterable[int | None]) -> int | None:
    seen = sorted(v for v in values if v is not None)
    return seen[len(seen) // 2] if seen else None


class Timings:
    """Timings of runs, read once for as long as their rows do not change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], Timing | str]] = {}

    def of(self, run: Shelved, folder: Path) -> Timing | str:
        """The run's timing, or the sentence that says why there is none."""
        rows = folder / run.path / "requests.jsonl"
        try:
            stat = rows.stat()
        except OSError:
            return "no rows yet"
        stamp = (stat.st_mtime_ns, stat.st_size)
        known = self._known.get(run.path)
        if known and known[0] == stamp:
            return known[1]
        if stat.st_size > LARGEST_BYTES:
            found: Timing | str = f"{stat.st_size / 1e6:,.0f} MB of rows: open it"
        else:
            try:
                found = read_run(folder / run.path, run.path)[1]
            except ServefitError as error:
                found = error.message.replace(f"{folder}/", "")
        if len(self._known) > 2000:
            self._known.clear()
        self._known[run.path] = (stamp, found)
        return found
