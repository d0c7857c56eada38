"""One unit per dimension inside (seconds, bytes, tokens, flop, US dollars); parsing and formatting for people.

GB is 10^9 bytes, GiB is 2^30; "KB" is never printed, because half its readers would be wrong.
"""

import re
from decimal import ROUND_HALF_UP, Context, Decimal

from servefit.errors import ServefitError

GB = 10**9
GIB = 2**30

_TIME = {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1),
         "min": Decimal(60), "h": Decimal(3600)}  # fmt: skip
_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_DIGITS = r"[+-]?(?:[0-9]{1,3}(?:[,_ ][0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*\$?\s*({_DIGITS})\s*([^\W\d]*(?:/[^\W\d]+)?|%)\s*")


def parse_number(text: str) -> tuple[Decimal, str]:
    """The number in `text` and the unit written after it ("" where none): thousands commas are read.

    >>> parse_number("4,210 ms")
    (Decimal('4210'), 'ms')
    >>> parse_number("36")
    (Decimal('36'), '')
    """
    match = _QUANTITY.fullmatch(text)
    digits = match.group(1) if match else ""
    if not match or not any(c.isdigit() for c in digits):
        raise ServefitError(f"'{text}' is not a number.", hint="Write 4,210 or 4.21s or 780ms.")
    number = Decimal(re.sub("[,_ ]", "", digits))
    if number and not -100 <= number.adjusted() <= 100:
        short = f"{text[:20]}..." if len(text) > 20 else text
        raise ServefitError(f"'{short}' is beyond what can be calculated.", hint="Write 4,210 or 4.21s or 780ms.")
    return number, match.group(2)


def parse_plain(text: str, *units: str) -> float:
    """The number in `text`, which has no unit or one of `units`: another would be passed over, and 2k read as 2.

    >>> parse_plain("4,210"), parse_plain("2.5 req/s", "req/s")
    (4210.0, 2.5)
    """
    number, unit = parse_number(text)
    if unit and unit.lower() not in {known.lower() for known in units}:
        raise ServefitError(
            f"'{text}' has the unit '{unit}', which is not known here.",
            hint=f"Write a number{f' in {units[0]}' if units else ''}, e.g. 4,210.",
        )
    return float(number)


def parse_seconds(text: str, *, bare: str = "s") -> float:
    """Seconds from what people write; a bare number is in the unit `bare`. Raises ServefitError.

    >>> parse_seconds("780ms"), parse_seconds("4.21 s"), parse_seconds("4,210", bare="ms")
    (0.78, 4.21, 4.21)
    """
    number, unit = parse_number(text)
    scale = _TIME.get((unit or bare).lower())
    if scale is None:
        raise ServefitError(f"'{text}' has the unit '{unit}', which is no time.", hint="Use ms, s, min or h.")
    if number < 0:
        raise ServefitError(f"'{text}' is a time below zero.", hint="Write 4.21s or 780ms.")
    return float(number * scale)


def parse_bytes(text: str, *, bare: str = "b") -> int:
    """Whole bytes from what people write: GB is 10^9, GiB is 2^30; a bare number is in the unit `bare`.

    >>> parse_bytes("36 GiB"), parse_bytes("4.9GB"), parse_bytes("36", bare="gb")
    (38654705664, 4900000000, 36000000000)
    """
    number, unit = parse_number(text)
    scale = _BYTES.get((unit or bare).lower())
    if scale is None:
        raise ServefitError(
            f"'{text}' has the unit '{unit}', which is no size.", hint="Use GB (10^9 bytes) or GiB (2^30)."
        )
    return int(number * scale)


_WIDE = Context(prec=700)
"""Digits enough for every float: 309 before the point, and as many behind it."""


def round_half_up(value: float | Decimal, places: int) -> Decimal:
    """`value` at `places` decimals, decimal half up: the rounding of every printed number and of `verify`.

    A float is read as the shortest decimal that means it, so 0.125 and 2.675 round the way they are written.

    >>> round_half_up(2.675, 2), round_half_up(89.46, 0)
    (Decimal('2.68'), Decimal('89'))
    """
    exact = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
    if not exact.is_finite():
        raise OverflowError(f"{exact} has no decimals")
    return exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP, context=_WIDE)


def fmt(value: float | None, places: int = 0) -> str:
    """`value` with thousands commas at `places` decimals, or as many as its first two digits need where that would read as zero.

    "-" where nothing was observed; below a millionth it is zero.

    >>> fmt(1234.5), fmt(0.24), fmt(0.001, 2), fmt(-0.0000001), fmt(0.0, 1), fmt(None)
    ('1,235', '0.24', '0.0010', '0', '0.0', '-')
    """
    if value is None:
        return "-"
    rounded = round_half_up(value, places)
    if not rounded:
        small = abs(value) >= 1e-6
        rounded = round_half_up(value, 1 - Decimal(repr(float(value))).adjusted()) if small else abs(rounded)
    return f"{rounded:,f}"


def fmt_s(value: float | None) -> str:
    """A time for people: "22.4 ms", "145 ms", "4.21 s", "7.4 min"; "-" where nothing was observed.

    >>> fmt_s(0.0224), fmt_s(0.145), fmt_s(4.21), fmt_s(None)
    ('22.4 ms', '145 ms', '4.21 s', '-')
    """
    if value is None:
        return "-"
    size = abs(value)
    if size < 1e-4 and value:
        return f"{fmt(value * 1e6, 1)} µs"
    if size < 0.01:
        return f"{fmt(value * 1e3, 2)} ms"
    if size < 0.1:
        return f"{fmt(value * 1e3, 1)} ms"
    if size < 1:
        return f"{fmt(value * 1e3, 0)} ms"
    if size < 600:
        return f"{fmt(value, 2)} s"
    return f"{fmt(value / 60, 1)} min"


def fmt_bytes(value: float | None) -> str:
    """A size in decimal units: "4.90 GB", "1.57 MB"; "-" where nothing was observed."""
    if value is None:
        return "-"
    for scale, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if abs(value) >= scale:
            return f"{fmt(value / scale, 2)} {name}"
    return f"{fmt(value)} B"


def fmt_both_bytes(value: float | None) -> str:
    """A memory size in both units: "38.7 GB (36.0 GiB)", so that nobody has to guess which was meant."""
    if value is None:
        return "-"
    return f"{fmt(value / GB, 1)} GB ({fmt(value / GIB, 1)} GiB)"


def fmt_percent(fraction: float | None, places: int = 0) -> str:
    """A fraction as a percentage, times 100 in decimal: 1.005 is 100.5%, which a float's product just misses.

    >>> fmt_percent(0.8949), fmt_percent(1.005), fmt_percent(-0.001), fmt_percent(None)
    ('89%', '101%', '0%', '-')
    """
    if fraction is None:
        return "-"
    rounded = round_half_up(Decimal(repr(float(fraction))) * 100, places)
    return f"{rounded or abs(rounded):,f}%"


def fmt_count(n: float, noun: str) -> str:
    """A number of things, in words that agree with it.

    >>> fmt_count(1, "user"), fmt_count(1200, "user")
    ('1 user', '1,200 users')
    """
    return f"{fmt(n)} {noun}{'' if n == 1 else 's'}"
