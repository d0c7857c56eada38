"""The spend cap: an estimate before, a reservation for each request, and a ledger of what was really used.

The ledger is one line a request, flushed before it is sent (reserved, at its worst case) and after it ended (settled, at
what the server counted). A process that is killed leaves its reservations, which then count in full: the cap holds
across restarts. One capped run at a time: the ledger is locked.
"""

import json
import math
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from servefit.bill.cost import Shape, TokenPrice, by_tokens
from servefit.errors import AnswerIsNo, ServefitError
from servefit.records import RequestRecord

Period = Literal["run", "day", "month"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be spent, in US dollars, by one run, in a day and in a month (UTC). None is no limit."""

    usd_per_run: float | None = None
    usd_per_day: float | None = None
    usd_per_month: float | None = None

    def by_period(self) -> dict[Period, float]:
        """The limits that are set."""
        every: dict[Period, float | None] = {
            "run": self.usd_per_run,
            "day": self.usd_per_day,
            "month": self.usd_per_month,
        }
        return {period: usd for period, usd in every.items() if usd is not None}


def ledger_path(env: dict[str, str] | None = None) -> Path:
    """Where the ledger lies: $SERVEFIT_LEDGER, else the user's state folder."""
    values = dict(os.environ) if env is None else env
    if values.get("SERVEFIT_LEDGER"):
        return Path(values["SERVEFIT_LEDGER"])
    state = values.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "servefit" / "spend.jsonl"


def in_period(at: str, now: datetime, period: Period) -> bool:
    """Whether a moment (ISO 8601, UTC) lies in the running day or month; never, for "run" (another run's).

    >>> in_period("2026-11-30T10:00:00+00:00", datetime(2026, 11, 30, 23, tzinfo=UTC), "day")
    True
    >>> in_period("2026-10-31T10:00:00+00:00", datetime(2026, 11, 1, tzinfo=UTC), "month")
    False
    """
    if period == "run":
        return False
    then = datetime.fromisoformat(at).astimezone(UTC)
    today = now.astimezone(UTC)
    return (then.year, then.month) == (today.year, today.month) and (period == "month" or then.day == today.day)


def spent_usd(path: Path, now: datetime, period: Period) -> float:
    """US dollars used in the period: settled requests at what they cost, unsettled ones at their worst case.

    A torn last line (a process killed while writing) is passed over; any other damage raises ServefitError, because a
    cap that cannot count must not say yes.
    """
    return sum(usd for at, usd in _entries(path).values() if in_period(at, now, period))


def _entries(path: Path) -> dict[str, tuple[str, float]]:
    entries: dict[str, tuple[str, float]] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return entries
    except (OSError, UnicodeDecodeError) as error:
        raise ServefitError(
            f"The ledger {path} cannot be read: {error}.", hint="Restore it: the cap cannot count."
        ) from None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            value = json.loads(line)
            name, at, usd = str(value["id"]), str(value["at"]), float(value["usd"])
            datetime.fromisoformat(at)
            if not 0 <= usd < math.inf:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            if number == len(lines):
                continue
            raise ServefitError(
                f"The ledger {path} is damaged in line {number}.", hint="Repair or move it: the cap cannot count."
            ) from None
        entries[name] = (entries.get(name, (at, 0.0))[0], usd)
    return entries


def worst_usd(price: TokenPrice, *, isl: int, osl: int) -> float:
    """The most that one request can cost: no cache hit, the whole answer. Raises ServefitError without an output price."""
    cost = by_tokens(Shape(isl=isl, osl=osl), price)
    if cost.output_usd is None:
        raise ServefitError(
            "The output price is not known, so a cap cannot be kept.", hint="Give --price-out, or [bill.token_prices]."
        )
    return cost.usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a run would cost at most, beside the limit that leaves least."""

    n: int
    usd: float
    period: Period | None
    """Whose limit leaves least; None where none is set."""
    limit_usd: float | None
    spent_usd: float
    """Used of that limit so far."""

    @property
    def fits(self) -> bool:
        """Whether the whole run stays within every limit."""
        return self.limit_usd is None or self.spent_usd + self.usd <= self.limit_usd

    @property
    def sentence(self) -> str:
        """The estimate in one sentence."""
        at_most = f"{self.n:,} requests cost ${self.usd:.4f} at most"
        if self.limit_usd is None:
            return f"{at_most}; no cap is set ([caps] in servefit.toml)."
        left = max(self.limit_usd - self.spent_usd, 0.0)
        return f"{at_most}; of the cap of {_whole_cents(self.limit_usd)} a {self.period} ${self.spent_usd:.4f} is used, ${left:.4f} is left."


def _whole_cents(usd: float) -> str:
    """Dollars and cents, with more places where a cap has a part of a cent."""
    return f"${usd:.2f}" if round(usd, 2) == usd else f"${usd:.4f}"


class Guard:
    """Keeps a run under the caps: `require` before it starts, `may_send` before each request, `settle` after it.

    with Guard(ledger_path(), price, Limits(usd_per_month=20.0), target="fireworks") as guard:
        guard.require([(6200, 300)] * 100)
        if guard.may_send(row_id, isl=6200, osl=300): ...
        guard.settle(row_id, row)
    """

    def __init__(
        self,
        path: Path,
        price: TokenPrice,
        limits: Limits,
        *,
        target: str = "",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.path, self.price, self.limits, self.target, self._now = path, price, limits, target, now
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab+")
        except OSError as error:
            raise ServefitError(
                f"The ledger {path} cannot be written: {error.strerror}.",
                hint="Set SERVEFIT_LEDGER to a file that can.",
            ) from None
        try:
            _lock(self._file.fileno(), path)
            self._mend()
            entries = _entries(path).values()
        except BaseException:
            self._file.close()
            raise
        self._spent: dict[Period, float] = {
            period: sum(usd for at, usd in entries if in_period(at, now(), period))
            for period in ("run", "day", "month")
        }
        self._open: dict[str, float] = {}
        """What is reserved for each request under way: a settled one is counted and forgotten."""
        self._asked: dict[str, float] = {}
        """What each open request would cost if all went as asked."""
        self._more = 1.0
        """How many times a reservation has turned out too small (a chat template, a tokenizer): the next ones are larger."""
        self._prefix = f"{secrets.token_hex(6)}/"  # row ids repeat from run to run

    def spent_usd(self, period: Period = "run") -> float:
        """US dollars used in the period, this run's open requests at their worst case."""
        return self._spent[period]

    def estimate(self, shapes: Iterable[tuple[int, int]]) -> Estimate:
        """What requests of these (prompt, answer) tokens cost at most, beside the limit that leaves least."""
        n, usd = 0, 0.0
        for isl, osl in shapes:
            n, usd = n + 1, usd + worst_usd(self.price, isl=isl, osl=osl)
        tightest = min(self.limits.by_period().items(), key=lambda item: item[1] - self._spent[item[0]], default=None)
        if tightest is None:
            return Estimate(n=n, usd=usd, period=None, limit_usd=None, spent_usd=self._spent["month"])
        period, limit = tightest
        return Estimate(n=n, usd=usd, period=period, limit_usd=limit, spent_usd=self._spent[period])

    def require(self, shapes: Iterable[tuple[int, int]]) -> Estimate:
        """The estimate; raises AnswerIsNo where the run would pass a cap."""
        estimate = self.estimate(shapes)
        if not estimate.fits:
            raise AnswerIsNo(
                f"Over the cap: {estimate.sentence}",
                hint="Ask for fewer or shorter requests, or raise [caps] in servefit.toml.",
            )
        return estimate

    def may_send(self, key: str, *, isl: int, osl: int) -> bool:
        """Reserve one request's worst case under `key`; False where it would pass a cap: then do not send it."""
        asked = worst_usd(self.price, isl=isl, osl=osl)
        usd = asked * self._more
        if any(self._spent[period] + usd > limit for period, limit in self.limits.by_period().items()):
            return False
        self._asked[key] = asked
        self._note(key, usd, "reserved")
        return True

    def settle(self, key: str, row: RequestRecord) -> float:
        """Replace the reservation by what was used, in US dollars: the server's counts, else what is known of the row.

        A request that was refused before any token costs nothing; one that broke off keeps its prompt and what it wrote.
        """
        isl, osl = row.isl if row.isl is not None else row.isl_asked, row.osl
        refused = not row.chunk_s and row.http_status is not None and row.http_status >= 400
        if refused or row.status == "refused":
            usd = 0.0
        elif isl is None:
            self._asked.pop(key, None)
            return self._open.pop(key, 0.0)  # nothing is known: the worst case stays
        else:
            written = osl if osl is not None else len(row.token_s) if row.chunk_s else (row.osl_asked or 0)
            usd = by_tokens(Shape(isl=isl, osl=written, cached_tok=min(row.cached_tok or 0, isl)), self.price).usd
        asked = self._asked.pop(key, None)
        if asked is None and row.isl_asked and row.osl_asked:  # a warm-up: nothing was reserved for it
            asked = worst_usd(self.price, isl=row.isl_asked, osl=row.osl_asked)
        if asked:
            self._more = max(self._more, usd / asked)
        self._note(key, usd, "settled")
        return usd

    def close(self) -> None:
        """Let the next run have the ledger."""
        self._file.close()

    def _note(self, key: str, usd: float, kind: str) -> None:
        line: dict[str, Any] = {
            "at": self._now().isoformat(),
            "id": self._prefix + key,
            "usd": round(usd, 9),
            "kind": kind,
            "target": self.target,
        }
        try:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise ServefitError(
                f"The ledger {self.path} cannot be written: {error.strerror}.",
                hint="Nothing more is sent: the cap cannot count.",
            ) from None
        for period in self._spent:
            self._spent[period] += usd - self._open.get(key, 0.0)
        if kind == "reserved":
            self._open[key] = usd
        else:
            self._open.pop(key, None)

    def _mend(self) -> None:
        """Cut a last line that was torn when a process was killed: its request was never sent."""
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            self._file.truncate(data.rfind(b"\n") + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock(handle: int, path: Path) -> None:
    if os.name == "nt":
        return
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ServefitError(
            f"Another run is spending under the same cap ({path}).", hint="Wait for it: one capped run at a time."
        ) from None
