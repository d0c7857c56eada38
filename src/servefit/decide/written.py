"""Numbers as people write them: the number, its unit and its precision, and whether a recomputed value agrees.

Rounding is decimal, half up, at the precision that is written: 104.6 ms agrees with "105 ms" and not with "105.0 ms".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal

from servefit.units import fmt, fmt_bytes, fmt_percent, fmt_s

_NOUNS = ("seat", "request", "replica", "candidate", "configuration", "block", "seed", "GPU", "run", "row", "user")
_COUNTS = {"": Decimal(1)} | {noun + ending: Decimal(1) for noun in _NOUNS for ending in ("", "s")}
_PER_S = {"/s": Decimal(1), "/min": 1 / Decimal(60), "/h": 1 / Decimal(3600)}

UNITS: Mapping[str, Mapping[str, Decimal]] = {
    "s": {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "μs": Decimal("1e-6"),
          "ms": Decimal("1e-3"), "s": Decimal(1), "min": Decimal(60), "h": Decimal(3600)},
    "bytes": {"B": Decimal(1), "bytes": Decimal(1), "MB": Decimal(10**6), "GB": Decimal(10**9), "TB": Decimal(10**12),
              "KiB": Decimal(2**10), "MiB": Decimal(2**20), "GiB": Decimal(2**30), "TiB": Decimal(2**40)},
    "tok": {"": Decimal(1), "tok": Decimal(1), "token": Decimal(1), "tokens": Decimal(1), "ktok": Decimal(1000),
            "Mtok": Decimal(10**6)},
    "frac": {"": Decimal(1), "%": Decimal("0.01"), "x": Decimal(1), "×": Decimal(1)},
    "ratio": {"": Decimal(1), "x": Decimal(1), "×": Decimal(1), "%": Decimal("0.01")},
    "req_per_s": {"req" + k: v for k, v in _PER_S.items()} | {"requests" + k: v for k, v in _PER_S.items()},
    "tok_per_s": {"tok" + k: v for k, v in _PER_S.items()} | {"tokens" + k: v for k, v in _PER_S.items()},
    "usd": {"$": Decimal(1), "USD": Decimal(1)},
    "usd_per_hour": {"$/h": Decimal(1), "$/hour": Decimal(1), "USD/h": Decimal(1)},
    "usd_per_mtok": {"$/Mtok": Decimal(1), "USD/Mtok": Decimal(1)},
    "count": _COUNTS,
    "plain": {"": Decimal(1)},
    "score": {"": Decimal(1), "%": Decimal("0.01")},
}  # fmt: skip
"""Dimension -> the units it may be written in, each as a multiple of the unit inside. A "KB" is never read."""

COARSEST = Decimal("0.1")
"""Rounding may take so much of a value: more, and a reader is told something else."""
NUMBER = (
    r"(?P<sign>(?<![\w)>.,])[+\-−–])?(?P<dollar>\$)?"
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?P<fraction>\.\d+)?(?P<exponent>[eE][+-]?\d+)?"
)
UNIT = r"(?:[ \u00a0\u2009\u202f]?(?P<unit>[A-Za-zµμ%×/][A-Za-zµμ%×/]*))?"
_AT_END = re.compile(rf"(?<![\d.,$\w]){NUMBER}{UNIT}(?P<close>[*_]*)$")
_CODE_AT_END = re.compile(r"`([^`\n]+)`[*_]*$")
_WORD_AT_END = re.compile(r"[^\s|`*_()\[\]\"',;:]+[*_]*$")
_NOTHING_AT_END = re.compile(r"(?:^|(?<=[\s|*_(]))[-–—][*_]*$")
_CONTEXT = Context(prec=60, rounding=ROUND_HALF_UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What stands before a binding comment, and where: `text` is `line[start:end]`."""

    text: str
    start: int
    end: int
    number: Decimal | None = None
    """None where it is a word, or the dash that says nothing was observed."""
    unit: str = ""
    """With the currency sign in front of the rest: "$/h" for "$1.79/h"."""
    nothing: bool = False
    """Whether it is the dash."""


def read_back(before: str) -> Written:
    """The number, the dash or else the word at the end of `before` (the line up to the comment).

    >>> w = read_back("p99 TTFT is **1,250.5 ms**"); w.number, w.unit, w.text
    (Decimal('1250.5'), 'ms', '1,250.5 ms')
    >>> read_back("on `a100-80gb`").text
    'a100-80gb'
    """
    if code := _CODE_AT_END.search(before):
        return Written(text=code.group(1), start=code.start(1), end=code.end(1))
    if match := _AT_END.search(before):
        end = match.start("close")
        return Written(
            text=before[match.start() : end],
            start=match.start(),
            end=end,
            number=_number(match),
            unit=(match.group("dollar") or "") + (match.group("unit") or ""),
        )
    if match := _NOTHING_AT_END.search(before):
        text = match.group().rstrip("*_")
        return Written(text=text, start=match.start(), end=match.start() + len(text), nothing=True)
    match = _WORD_AT_END.search(before)
    text = match.group().rstrip("*_") if match else ""
    start = match.start() if match else len(before)
    return Written(text=text, start=start, end=start + len(text))


def _number(match: re.Match[str]) -> Decimal:
    sign = "-" if match.group("sign") in ("-", "−", "–") else ""
    digits = match.group("digits").replace(",", "")
    return Decimal(f"{sign}{digits}{match.group('fraction') or ''}{match.group('exponent') or ''}")


def is_unit(unit: str) -> bool:
    """Whether some dimension is written in this unit (a count's nouns are not meant)."""
    return bool(unit) and any(unit in units for dim, units in UNITS.items() if dim != "count")


def parse_quantity(text: str, dim: str) -> float:
    """The value of "0.1 s" or "$1.79/h" in the inside unit of `dim`. Raises ValueError where it is none."""
    written = read_back(text.strip())
    scale = UNITS[dim].get(written.unit)
    if written.number is None or written.text != text.strip() or scale is None:
        raise ValueError(f"'{text.strip()}' is no {SAID[dim]}")
    return float(written.number * scale)


def agrees(written: Written, value: float | None, dim: str) -> bool:
    """Whether `value` (in the inside unit of `dim`), rounded half up as it is written, is the number that is written.

    A written zero agrees only with zero itself, and none that is off by more than a tenth: "0 s" is no rounding of 105 ms, "1 ktok"
    none of 512.

    >>> agrees(read_back("105 ms"), 0.1045, "s"), agrees(read_back("105.0 ms"), 0.1045, "s")
    (True, False)
    >>> agrees(read_back("+12.5%"), 0.125, "frac"), agrees(read_back("12 500"), 12500, "count")
    (True, False)
    """
    if value is None or written.nothing:
        return value is None and written.nothing
    scale = UNITS[dim].get(written.unit)
    if written.number is None or scale is None:
        return False
    rounded = at_precision(value, scale, written.number)
    exact = Decimal(repr(value))
    near = abs(exact - written.number * scale) <= COARSEST * abs(exact)
    near = near or (bool(rounded) and scale == 1 and dim in ("bytes", "tok", "count"))  # there is no half of a byte
    return rounded == written.number and near


def at_precision(value: float, scale: Decimal, like: Decimal) -> Decimal:
    """`value / scale`, rounded half up to the decimals of `like`."""
    exponent = like.as_tuple().exponent
    assert isinstance(exponent, int), f"{like} is no finite number"
    exact = _CONTEXT.divide(Decimal(repr(value)), scale)
    if exact.adjusted() - exponent > 50:
        return exact
    return exact.quantize(Decimal(1).scaleb(exponent), context=_CONTEXT)


def respell(written: Written, value: float | None, dim: str, *, signed: bool = False) -> str:
    """`value` in the style of what is written: same unit, same decimals, same commas; in our own where that fails."""
    scale = UNITS[dim].get(written.unit)
    if value is None or written.number is None or scale is None:
        return show(value, dim, signed=signed)
    number = at_precision(value, scale, written.number)
    exponent = number.as_tuple().exponent
    if (number == 0 and value != 0) or not isinstance(exponent, int) or exponent > 0:
        return show(value, dim, signed=signed)
    grouped = "," in written.text or (abs(number) >= 10_000)
    digits = f"{abs(number):,f}" if grouped else f"{abs(number):f}"
    sign = (
        ("−" if "−" in written.text else "-") if number < 0 else ("+" if written.text.startswith("+") or signed else "")
    )
    dollar = "$" if written.unit.startswith("$") else ""
    head = re.search(r"[\d.,]+", written.text)
    tail = written.text[head.end() :] if head else ""
    return f"{sign}{dollar}{digits}{tail}"


SAID = {
    "s": "time",
    "bytes": "size",
    "tok": "number of tokens",
    "frac": "share",
    "ratio": "ratio",
    "req_per_s": "request rate",
    "tok_per_s": "token rate",
    "usd": "sum of money",
    "usd_per_hour": "price per hour",
    "usd_per_mtok": "price per million tokens",
    "count": "count",
    "plain": "bare number",
    "score": "score",
}
"""Dimensions for people."""


def show(value: float | None, dim: str, *, signed: bool = False) -> str:
    """`value` for people, precise enough that reading it back agrees; "-" where nothing was observed.

    >>> show(0.58, "frac", signed=True), show(1.79, "usd_per_hour"), show(18.5e9, "bytes"), show(None, "s")
    ('+58.0%', '$1.79/h', '18.50 GB', '-')
    """
    if value is None:
        return "-"
    size = abs(value)
    sign = "-" if value < 0 else ("+" if signed else "")
    return sign + _SHOW[dim](size)


def _places(size: float, figures: int) -> int:
    """Decimals that show `figures` significant digits of a size."""
    if size == 0:
        return 0
    return max(0, figures - 1 - Decimal(repr(size)).adjusted())


def _significant(size: float, figures: int = 3) -> str:
    return fmt(size, _places(size, figures))


def _plain(size: float) -> str:
    return fmt(size, 0) if float(size).is_integer() else _significant(size)


def _percent(size: float) -> str:
    return fmt_percent(size, max(1, _places(size * 100, 2)) if size else 1)


def _seconds(size: float) -> str:
    return fmt_s(size) if size >= 1e-6 or not size else f"{_significant(size * 1e9)} ns"


def _money(size: float) -> str:
    return f"${fmt(size, max(2, _places(size, 2)))}"


_SHOW = {
    "s": _seconds,
    "bytes": lambda size: fmt_bytes(size) if size >= 1 or not size else f"{_significant(size)} B",
    "tok": lambda size: f"{_plain(size)} tok",
    "frac": _percent,
    "ratio": lambda size: f"{fmt(size, max(2, _places(size, 2)) if size else 0)}×",
    "req_per_s": lambda size: f"{_significant(size)} req/s",
    "tok_per_s": lambda size: f"{_significant(size)} tok/s",
    "usd": _money,
    "usd_per_hour": lambda size: f"{_money(size)}/h",
    "usd_per_mtok": lambda size: f"{_money(size)}/Mtok",
    "count": _plain,
    "plain": _plain,
    "score": _significant,
}
