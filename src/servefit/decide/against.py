"""What would change it: an expression over a run's figures, evaluated on a run of the real system.

    ttft.p99 > ttft.target or failed.share > 1%

Names are those of `quantities` (the run's own figures, `gap.` against the prediction, and `CHECK.target`); a literal has
the unit of what it is compared with. Nothing is ever executed.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from servefit.decide.decision import Binding, Decision
from servefit.decide.derive import Quantity, run_quantities
from servefit.decide.quantities import Ledger, Measured
from servefit.decide.written import NUMBER, SAID, UNITS, parse_quantity, show
from servefit.errors import CannotMeasure, ServefitError
from servefit.expressions import evaluate, names_in
from servefit.facts.names import key
from servefit.plan.plan import Candidate, Plan
from servefit.records import Run, RunHeader, load_run
from servefit.stats import is_slowest

MARK = "overturns"
"""`EXPRESSION`<!--overturns--> is how the file says what overturns it."""

_LITERAL = re.compile(rf"(?<![\w.]){NUMBER}(?P<space> ?)(?P<unit>[A-Za-zµμ%×][A-Za-zµμ%×/]*)?(?![\w.])")
_WORDS = frozenset({"and", "or", "not"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One expression on one run."""

    expression: str
    line: int
    holds: bool
    """Whether it is met, which overturns the decision."""
    values: tuple[tuple[str, float, str], ...]
    """The (name, value, dimension) of what it used."""


def expressions(decision: Decision) -> tuple[Binding, ...]:
    """The bindings of what overturns the decision, in the order of the file."""
    return tuple(b for b in decision.bindings if b.name == MARK)


def vocabulary(ledger: Ledger, run: str | None) -> dict[str, Quantity]:
    """The quantities that an expression may use: a run's figures (the prediction's where `run` is None), and targets."""
    base = ledger.scope("")
    targets = {name: q for name, q in base.items() if name.endswith(".target") and not name.startswith("range.")}
    if run is None:
        nothing = Run(header=RunHeader(kind="measured"), rows=())
        names = {q.name: q for q in run_quantities(nothing, ledger.plan.spec.targets, source="")}
        figures = names | {name: base[name] for name in names if name in base}
        gaps = (replace(q, name=f"gap.{n}", value=0.0, dim="frac") for n, q in figures.items())
        return {q.name: q for q in gaps} | figures | targets
    return dict(ledger.scope(f"run/{run}")) | targets


def evaluate_on(text: str, words: Mapping[str, Quantity]) -> tuple[bool, tuple[tuple[str, float, str], ...]]:
    """Whether the expression holds, and the values it used.

    Raises ServefitError where it is none, or compares a time with a share; CannotMeasure where a value was not observed.
    """
    plain, literals = _with_names(text)
    used = [name for name in names_in(plain) if name not in literals]
    known = {name: q for name, q in words.items() if q.dim != "text"}
    for name in used:
        if name in known and known[name].value is None:
            raise CannotMeasure(f"'{text}' cannot be decided: nothing was observed of {name}.", hint="Measure it.")
    values = {name: float(q.value) for name, q in known.items() if isinstance(q.value, int | float)}
    dims = {name: q.dim for name, q in known.items()} | {name: dim for name, (_, dim) in literals.items()}
    result = evaluate(plain, values | {name: value for name, (value, _) in literals.items()})
    if not isinstance(result, bool):
        raise ServefitError(f"'{text}' is a number, not a comparison.", hint="Write something like ttft.p99 > 0.1 s.")
    _check_dims(ast.parse(plain.strip(), mode="eval").body, dims, text)
    return result, tuple((name, values[name], dims[name]) for name in used)


def _with_names(text: str) -> tuple[str, dict[str, tuple[float, str]]]:
    """The expression with every literal that has a unit replaced by a name of its own; name -> (value, dimension)."""
    literals: dict[str, tuple[float, str]] = {}

    def swap(match: re.Match[str]) -> str:
        unit = (match.group("dollar") or "") + (match.group("unit") or "")
        if not unit or unit in _WORDS:
            return match.group()
        for dim in UNITS:
            if unit in UNITS[dim]:
                name = f"literal_{len(literals)}"
                sign = match.group("sign") or ""
                literals[name] = (
                    parse_quantity(match.group().removeprefix(sign), dim),
                    "ratio" if dim == "frac" else dim,
                )
                return f"{sign}{name}"
        raise ServefitError(f"'{text}' has the unit '{unit}', which is none.", hint="Use ms, s, %, req/s, tok/s.")

    return _LITERAL.sub(swap, text), literals


_SHARES = frozenset({"frac", "ratio"})
_NUMBERS = frozenset({"count", "plain", "frac", "ratio", "tok"})
"""What may be compared with a number that has no unit."""


def _check_dims(node: ast.AST, dims: Mapping[str, str], text: str) -> None:
    for compare in (n for n in ast.walk(node) if isinstance(n, ast.Compare)):
        sides = [_dim(side, dims) for side in (compare.left, *compare.comparators)]
        for a, b in pairwise(sides):
            if "" in (a, b) or a == b or {a, b} <= _SHARES:
                continue
            if None in (a, b) and (a or b) in _NUMBERS:
                continue
            raise ServefitError(
                f"'{text}' compares a {SAID.get(a or 'plain', a)} with a {SAID.get(b or 'plain', b)}.",
                hint="Give the literal a unit, such as 0.1 s.",
            )


def _dim(node: ast.AST, dims: Mapping[str, str]) -> str | None:
    """The dimension of a side; None for a number without a unit, "" where it is a mixture that is not checked."""
    match node:
        case ast.Constant():
            return None
        case ast.Name() | ast.Attribute():
            return dims.get(ast.unparse(node), "")
        case ast.UnaryOp():
            return _dim(node.operand, dims)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            a, b = _dim(node.left, dims), _dim(node.right, dims)
            return a if a == b else ""
        case ast.BinOp(op=ast.Mult() | ast.Div()):
            a, b = _dim(node.left, dims), _dim(node.right, dims)
            return a if b in (None, "ratio", "frac") else b if a in (None, "ratio", "frac") else ""
        case _:
            return ""


def _lighter(plan: Plan, run: Run) -> Iterator[str]:
    """In which way the run asked for less than the plan: such a run confirms little."""
    work, rows = plan.spec.workload, run.load_rows
    sent = [r.due_s if r.sent_s is None else r.sent_s for r in rows]
    span, ended = max(sent) - min(sent), max(r.done_s or at for r, at in zip(rows, sent, strict=True))
    offered = (len(rows) - 1) / span if span > 0 else None
    waits_s = sum(max(0.0, (r.done_s or at) - at) for r, at in zip(rows, sent, strict=True))
    in_flight = waits_s / (ended - min(sent)) if ended > min(sent) else None  # Little: the users that a closed loop has
    isl = [r.isl for r in rows if r.isl is not None]
    osl = [r.osl for r in rows if r.osl is not None]
    for what, dim, theirs, ours in (
        ("rate", "req_per_s", offered, work.rate_req_per_s),
        ("concurrency", "plain", run.header.load.get("concurrency") or in_flight, work.concurrency),
        ("mean prompt", "tok", sum(isl) / len(isl) if isl else None, work.isl.mean if not work.trace else None),
        ("mean answer", "tok", sum(osl) / len(osl) if osl else None, work.osl.mean if not work.trace else None),
    ):
        if isinstance(theirs, int | float) and ours is not None and theirs < 0.9 * ours:
            yield f"The run's {what} is {show(theirs, dim)} against the plan's {show(ours, dim)}: a lighter load confirms nothing."


def hold_against(decision: Decision, ledger: Ledger, measured: Measured) -> tuple[Outcome, ...]:
    """Every expression of the decision, evaluated on the run (which the ledger knows by its name)."""
    words = vocabulary(ledger, measured.name)
    found = []
    for binding in expressions(decision):
        holds, values = evaluate_on(binding.written.text, words)
        found.append(Outcome(expression=binding.written.text, line=binding.line, holds=holds, values=values))
    return tuple(found)


def compared(p: int) -> tuple[str, ...]:
    """What is set beside the prediction: the typical latency, and the one at the targets' percentile `p`."""
    latencies = dict.fromkeys(f"{name}.p{q}" for name in ("ttft", "tpot") for q in (50, p))
    return (*latencies, f"e2e.p{p}", "output.rate", "throughput", "goodput.rate", "goodput.share", "failed.share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure, predicted and measured."""

    name: str
    dim: str
    predicted: float | None
    interval: tuple[float, float] | None
    """What was expected: the check's interval, over schedules and the step's error; None where the plan has none."""
    measured: float | None
    gap_frac: float | None
    """(measured - predicted) / predicted; None where one of them was not observed."""

    @property
    def is_outside(self) -> bool:
        """Whether what was measured lies outside what was expected."""
        if self.interval is None or self.measured is None:
            return False
        return not self.interval[0] <= self.measured <= self.interval[1]


Result = Literal["confirmed", "overturned", "open"]
"""What a run says: `open` where it does not overturn the decision and its load was too light to confirm it."""


def result_of(outcomes: Iterable[Outcome], plan: Plan, run: Run) -> Result:
    """Overturned where an expression is met; else confirmed, by a run that asked for no less than the plan did."""
    if any(outcome.holds for outcome in outcomes):
        return "overturned"
    return "open" if any(_lighter(plan, run)) else "confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A decision held against one run."""

    run: str
    result: "Result"
    outcomes: tuple[Outcome, ...]
    pairs: tuple[Pair, ...]
    outside: tuple[str, ...]
    """Names of the pairs that lie outside what was expected: a decision can stand on a prediction that does not."""
    notes: tuple[str, ...]
    """How far the run speaks about the decision."""


def hold(decision: Decision, ledger: Ledger, folder: Path) -> Held:
    """The decision against the run in `folder`: overturned where one of its expressions is met, else confirmed or open.

    Raises CannotMeasure where the run says nothing about the decision, or the decision names no result to look for.
    """
    if not expressions(decision):
        raise CannotMeasure(
            "The decision names no result that overturns it.", hint=f"Write `ttft.p99 > 0.1 s`<!--{MARK}--> into it."
        )
    measured = Measured(name="against", label=f"run {folder}", run=load_run(folder))
    wider = replace(ledger, runs=(*ledger.runs, measured), _scopes={})
    notes = refuse_unfit(wider, measured)
    outcomes = hold_against(decision, wider, measured)
    pairs = tuple(_pairs(wider, measured))
    return Held(
        run=str(folder),
        result=result_of(outcomes, ledger.plan, measured.run),
        outcomes=outcomes,
        pairs=pairs,
        outside=tuple(p.name for p in pairs if p.is_outside),
        notes=notes,
    )


def _elsewhere(header: RunHeader, decided: Candidate) -> Iterator[str]:
    """Notes where the run may have been made on another machine or model than the decision is about."""
    host = (urlsplit(str(header.endpoint.get("url", ""))).hostname or "").lower()
    if host in ("127.0.0.1", "localhost", "::1") and decided.device != "this-machine":
        yield f"The run's server was on the measuring machine itself; the decision is for {decided.device}: is it one?"
    ours, theirs = (key(name.rpartition("/")[2]) for name in (decided.model, header.model))
    if header.model and ours not in theirs and theirs not in ours:
        yield f"The run's model calls itself {header.model}; the decision is for {decided.model}."


def _pairs(ledger: Ledger, measured: Measured) -> Iterator[Pair]:
    scope, intervals = f"run/{measured.name}", _intervals(ledger)
    for name in dict.fromkeys((*compared(ledger.plan.spec.targets.p), *intervals)):
        here, there, gap = (ledger.find(n) for n in (name, f"{scope}#{name}", f"{scope}#gap.{name}"))
        if here is not None and there is not None:
            yield Pair(
                name=name,
                dim=here.dim,
                predicted=_number(here),
                interval=intervals.get(name),
                measured=_number(there),
                gap_frac=_number(gap) if gap else None,
            )


def _intervals(ledger: Ledger) -> dict[str, tuple[float, float]]:
    """Name of a run's figure -> the interval of the check on it."""
    targets = ledger.plan.spec.targets
    goodput = "goodput.rate" if targets.goodput_req_per_s is not None else "goodput.share"
    names = {n: f"{n}.p{targets.p}" for n in ("ttft", "tpot", "e2e")} | {"goodput": goodput}
    return {names[c.name]: c.interval for c in ledger.candidate.checks if c.interval and c.name in names}


def prediction_said(held: Held) -> str:
    """One sentence on the figures that lie outside what was expected; nothing where none does."""
    said = "; ".join(
        f"{_spoken(p.name)} is {show(p.measured, p.dim)}, expected {expected_said(p)}"
        for p in held.pairs
        if p.is_outside
    )
    begin = {
        "confirmed": "The decision stands, the prediction does not",
        "overturned": "Nor does the prediction hold",
        "open": "Outside what was predicted for the plan's own load",
    }
    return f"{begin[held.result]}: {said}." if said else ""


def expected_said(pair: Pair) -> str:
    """The interval in words: 2.00 s to 2.21 s, or a dash."""
    if pair.interval is None:
        return "-"
    low, high = (show(v, pair.dim) if isfinite(v) else "any" for v in pair.interval)
    return low if low == high else f"{low} to {high}"


def _spoken(name: str) -> str:
    """The name of a figure as people say it.

    >>> _spoken("ttft.p99"), _spoken("goodput.share")
    ('p99 TTFT', 'goodput share')
    """
    first, _, last = name.partition(".")
    return f"{last} {first.upper()}" if first in ("ttft", "tpot", "e2e") else f"{first} {last}"


def _number(quantity: Quantity) -> float | None:
    return float(quantity.value) if isinstance(quantity.value, int | float) else None


def refuse_unfit(ledger: Ledger, measured: Measured) -> tuple[str, ...]:
    """Notes on how far the run speaks about the decision. Raises CannotMeasure where it does not at all.

    A run of another policy or batch limit, a simulated run, and one that its own findings call invalid say nothing.
    """
    header, decided = measured.run.header, ledger.candidate
    if header.kind != "measured":
        raise CannotMeasure(f"{measured.label} is a simulated run.", hint="Hold the decision against a measured one.")
    if header.verdict == "invalid":
        why = next((f.message for f in header.findings if f.level == "invalid"), "see its findings")
        raise CannotMeasure(f"{measured.label} is not valid: {why}", hint="Measure again.")
    if not measured.run.load_rows:
        raise CannotMeasure(f"{measured.label} holds no request that counts.", hint="Measure again.")
    for name, ours in (("policy", decided.policy), ("seats", decided.seats)):
        theirs = header.engine.get(name)
        if theirs is not None and theirs != ours:
            raise CannotMeasure(
                f"{measured.label} ran with {name} {theirs}, the decision is {ours}: it says nothing about it.",
                hint="Measure the engine with the decided configuration.",
            )
    notes = [*_elsewhere(header, decided), *_lighter(ledger.plan, measured.run)]
    if header.workload_sha256 != ledger.plan.workload_sha256:
        notes.append("The run's workload is not the plan's: two different loads are compared.")
    n, p = sum(row.ok for row in measured.run.load_rows), ledger.plan.spec.targets.p
    if is_slowest(p, n):
        notes.append(f"p{p} of {n} requests is simply the slowest of them.")
    if header.verdict == "suspect":
        notes.append("The run is suspect by its own findings.")
    return tuple(notes)
