"""The targets that `plan` and `sweep` take by the same flags: a latency each, the percentile, the good share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from servefit.cli import amounts
from servefit.errors import ServefitError
from servefit.units import parse_number, parse_seconds

F = TypeVar("F", bound=Callable[..., Any])

LATENCIES = {"ttft": "time to the first token", "tpot": "time per output token", "e2e": "whole time"}
_EXAMPLES = {"ttft": "500ms", "tpot": "50ms", "e2e": "10s"}


def latency_options(p: int) -> Callable[[F], F]:
    """The flags of latency targets; `p` is the verb's percentile where none is named."""

    def decorate(command: F) -> F:
        options = [
            click.option(f"--{name}", help=f"The {what} may be so long, e.g. {_EXAMPLES[name]}.")
            for name, what in LATENCIES.items()
        ]
        options.append(click.option("--p", "p", type=amounts.PERCENT, help=f"At this percentile.  [default: {p}]"))
        options += [
            click.option(f"--{name}-p99", f"{name}_p99", help=f"The same as --{name} with --p 99.")
            for name in LATENCIES
        ]
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def goodput_option(*, rate: bool) -> Callable[[F], F]:
    """The flag of the good share; with `rate`, of good requests a second, too."""
    text = "Share of requests that must meet every latency target, e.g. 99%"
    return click.option("--goodput", help=f"{text}; or so many of them a second, 4.5/s." if rate else f"{text}.")


def goodput(text: str, *, rate: bool) -> dict[str, float | None]:
    """goodput_frac of "99%" or "0.99"; with `rate`, goodput_req_per_s of "4.5/s". Raises ServefitError for anything else."""
    said = text.strip()
    if said.endswith("/s"):
        if not rate:
            raise ServefitError(
                f"--goodput {text} is a rate, and the load is what is raised here.",
                hint="Write a share such as 99%. A rate is a target of servefit plan.",
            )
        number, unit = parse_number(said.removesuffix("/s").removesuffix("req"))
        if unit or not number > 0:
            raise ServefitError(f"--goodput {text} is no rate above 0.", hint="Write 4.5/s.")
        return {"goodput_req_per_s": float(number), "goodput_frac": None}
    number, unit = parse_number(said)
    value = float(number) / (100 if unit == "%" else 1)
    if unit not in ("", "%") or not 0 < value <= 1:
        also = ", or 4.5/s for a rate" if rate else ""
        raise ServefitError(f"--goodput {text} is no share above 0 and up to 1.", hint=f"Write 99% or 0.99{also}.")
    return {"goodput_frac": value, "goodput_req_per_s": None}


def latencies(given: dict[str, Any]) -> dict[str, Any]:
    """ttft_s, tpot_s, e2e_s and p, as far as they were given. Raises ServefitError for what cannot be, or contradicts."""
    out: dict[str, Any] = {}
    for name in LATENCIES:
        plain, at_99 = given[name], given[f"{name}_p99"]
        if plain is not None and at_99 is not None:
            raise ServefitError(f"Both --{name} and --{name}-p99 are given.", hint="Choose one.")
        flag, text = (f"--{name}-p99", at_99) if plain is None else (f"--{name}", plain)
        if text is None:
            continue
        out[f"{name}_s"] = parse_seconds(text)
        if not out[f"{name}_s"] > 0:
            raise ServefitError(f"{flag} is {text}.", hint="Write a time above 0, e.g. 500ms.")
    said = [f"--{name}-p99" for name in LATENCIES if given[f"{name}_p99"] is not None]
    plain = [f"--{name}" for name in LATENCIES if given[name] is not None]
    if given["p"] is not None:
        out["p"] = given["p"]
    if said and given["p"] not in (None, 99):
        raise ServefitError(
            f"{said[0]} is at the 99th percentile, and --p is {given['p']}.", hint=f"Write {said[0][:-4]} with --p."
        )
    if said and plain and given["p"] is None:
        raise ServefitError(
            f"{said[0]} names its percentile and {plain[0]} none.",
            hint="Write all of them one way: one --p holds for all.",
        )
    if said:
        out["p"] = 99
    return out
