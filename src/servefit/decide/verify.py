"""Does every number in a decision still hold? Recomputed from the recorded plan and runs, offline."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from servefit.decide.against import MARK, evaluate_on, expressions, hold_against, result_of, vocabulary
from servefit.decide.bundle import MANIFEST, confined
from servefit.decide.decision import SECTIONS, Binding, Decision, Input, at, load_decision
from servefit.decide.derive import Quantity, check_verdict, verdict
from servefit.decide.findings import Finding, Level
from servefit.decide.prose import spelled
from servefit.decide.quantities import Ledger, Measured
from servefit.decide.written import UNITS, agrees, respell
from servefit.errors import CannotMeasure, ServefitError
from servefit.objectives import margin
from servefit.plan.files import load_plan
from servefit.records import content_sha256, load_run

if TYPE_CHECKING:
    from servefit.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Report:
    """What verifying found. `ledger` is None where the plan could not be had."""

    path: Path
    decision: Decision
    ledger: Ledger | None
    findings: tuple[Finding, ...]
    checked: int
    """Bound numbers and words that were recomputed."""

    @property
    def holds(self) -> bool:
        """Whether there is no error."""
        return not any(f.level == "error" for f in self.findings)


def verify(path: Path | str) -> Report:
    """Recompute everything that the decision at `path` says. Raises ServefitError where it cannot be read."""
    path = Path(path)
    path = path / "decision.md" if path.is_dir() else path
    return verify_text(load_decision(path), path)


def verify_text(decision: Decision, path: Path, *, known: Ledger | None = None) -> Report:
    """The same for a decision that was read already; `path` is where its inputs are relative to.

    `known` spares reading the inputs again, for an editor that verifies with every change of the text.
    """
    found = list(_structure(decision))
    if (path.parent / MANIFEST).exists():
        found += confined(decision, path.parent)
    sources, faults = (known, []) if known else gather(decision, path)
    found += faults
    checked = 0
    if sources:
        found += _front(decision, sources)
        checked = sum(1 for b in decision.bindings if b.name != MARK)
        found += _bindings(decision, sources)
        found += _required(decision, sources)
        found += _standing(decision, sources)
        found += _expressions(decision, sources)
        found += _checked_against(decision, sources, path)
    found.sort(key=lambda f: (f.line, f.code, f.name))
    return Report(path=path, decision=decision, ledger=sources, findings=tuple(found), checked=checked)


# --- inputs ---------------------------------------------------------------------------------------------------------


def gather(decision: Decision, path: Path) -> tuple[Ledger | None, list[Finding]]:
    """The plan and runs that the decision names, and what is wrong with them.

    Raises ServefitError for an input of a newer servefit, or one that is intact and still cannot be read.
    """
    found: list[Finding] = []
    plan: Plan | None = None
    runs: list[Measured] = []
    for item in decision.front.inputs:
        where = at(path, item.path)
        fault = _intact(decision, item, where)
        if fault:
            found.append(fault)
            if not where.exists():
                continue
        try:
            if item.role == "plan":
                plan = load_plan(where)
            elif item.role == "run":
                name = item.name or where.name
                runs.append(Measured(name=name, label=f"run {name} ({item.path})", run=load_run(where)))
        except ServefitError as error:
            if fault is None or "schema version" in error.message:
                raise
            found[-1] = replace(fault, message=f"{fault.message} {error.message}")
    if plan is None:
        return None, found
    try:
        candidate = plan.candidate(decision.front.candidate)
    except KeyError:
        message = f"The plan has no configuration '{decision.front.candidate}'."
        found.append(
            _front_finding(
                decision, "SOURCE", "candidate", written=decision.front.candidate, recomputed="", message=message
            )
        )
        return None, found
    return Ledger(plan=plan, candidate=candidate, label=decision.front.plan.path, runs=tuple(runs)), found


def _intact(decision: Decision, item: Input, where: Path) -> Finding | None:
    if not where.exists():
        # The plan's own inputs are needed to simulate again, not to recompute.
        level: Level = "error" if item.role in ("plan", "run") else "warning"
        message = f"{item.path} is not there."
        return _front_finding(
            decision, "SOURCE", item.role, written=item.path, recomputed="", message=message, level=level
        )
    actual = content_sha256(where)
    if actual == item.sha256:
        return None
    message = f"{item.path} is not the file that was decided on: its hash has changed."
    if item.role == "plan":
        message += " A later `servefit plan` may have written over it."
    return _front_finding(decision, "SOURCE", item.role, written=item.sha256, recomputed=actual, message=message)


def _front_finding(
    decision: Decision,
    code: str,
    name: str,
    *,
    written: str,
    recomputed: str = "",
    message: str,
    level: Level = "error",
) -> Finding:
    lines = decision.lines[: decision.body_line - 1]
    line = next((i for i, text in enumerate(lines, 1) if written and written in text), 1)
    return Finding(
        code=code, level=level, line=line, name=name, written=written, recomputed=recomputed, message=message
    )


def _front(decision: Decision, ledger: Ledger) -> Iterator[Finding]:
    """What the front matter says beside the plan, and whether the plan agrees with itself."""
    seed, plan = ledger.plan.spec.workload.seed, ledger.plan
    if decision.front.seed != seed:
        message = f"The plan's seed is {seed}."
        yield _front_finding(
            decision, "SOURCE", "seed", written=f"seed: {decision.front.seed}", recomputed=str(seed), message=message
        )
    for candidate in plan.candidates:
        wrong = verdict(candidate) != candidate.verdict
        for check in candidate.checks:
            gap = None
            if check.value is not None and check.target:
                gap = margin(check.value, check.target, at_most=check.at_most)
            far = (gap is None) != (check.margin is None) or (
                gap is not None and abs(gap - (check.margin or 0.0)) > 1e-9
            )
            wrong = wrong or far or check_verdict(check) != check.verdict
        if wrong:
            message = (
                f"The plan contradicts itself: the verdicts or margins of {candidate.id} do not follow from its values."
            )
            yield _front_finding(
                decision, "SOURCE", "plan", written=decision.front.plan.path, recomputed="", message=message
            )
            return


# --- bound numbers --------------------------------------------------------------------------------------------------

_MORE = re.compile(r"[\w%‰½¼¾²³×°]\S*|\s(?:hundred|thousand|million|billion|k|M)\b")
"""Behind the comment of a number: no space, or a word that multiplies."""
_LESS = re.compile(r"(?:\bminus\s+|[-‐‑‒–—−－﹣])[*_]*$", re.IGNORECASE)
"""Before a number that has a sign of its own."""
_SIDE = re.compile(
    r"(?:(?P<upper>\b(?:at most|up to|(?:no|not) more than)|≤|<=)|(?P<lower>\b(?:at least|(?:no|not) (?:less|fewer) than)|≥|>=))[\s*_(]*$",
    re.IGNORECASE,
)
"""What promises a side of a number, at the end of the text before it. "Above" and "below" say as often what would break the promise."""


def _bindings(decision: Decision, ledger: Ledger) -> Iterator[Finding]:
    for binding in decision.bindings:
        if binding.name == MARK:
            continue
        quantity = ledger.find(binding.name)
        if quantity is None:
            yield _unknown(binding, ledger)
        elif wrong := _disagrees(decision, binding, quantity):
            code = "UNMEASURED" if binding.name.startswith("run/") and quantity.value is None else "STALE"
            yield Finding(
                code=code,
                level="error",
                line=binding.line,
                name=binding.name,
                written=binding.written.text,
                recomputed=spelled(quantity).strip("`"),
                message=wrong,
            )
        elif said := _beside(decision, binding, quantity):
            yield Finding(
                code="STALE",
                level="error",
                line=binding.line,
                name=binding.name,
                written=said,
                recomputed=spelled(quantity).strip("`"),
                message=f"'{said}' reads as another number than {spelled(quantity)}.",
            )
        elif said := _other_side(decision, binding, quantity):
            yield Finding(
                code="SIDE",
                level="error",
                line=binding.line,
                name=binding.name,
                written=said,
                recomputed=quantity.side,
                message=f"'{said}' is written before {binding.written.text}; the target is '{quantity.side}'.",
            )


def _beside(decision: Decision, binding: Binding, quantity: Quantity) -> str:
    """A number with what stands so near to it that it reads as part of it: "48k", "48 thousand", a minus; "" where nothing does."""
    if quantity.dim == "text" or binding.written.number is None:
        return ""
    line = decision.lines[binding.line - 1]
    end = line.index("-->", binding.column) + 3
    before, text = line[: binding.written.start], binding.written.text
    if more := _MORE.match(line, end):
        return text + more.group()
    less = _LESS.search(before) if quantity.signed else None
    return less.group().lstrip() + text if less else ""


def _other_side(decision: Decision, binding: Binding, quantity: Quantity) -> str:
    """The words right before a target that put the value on its other side; "" where there are none."""
    if not quantity.side:
        return ""
    found = _SIDE.search(decision.lines[binding.line - 1][: binding.written.start])
    if not found:
        return ""
    kept = found.group("upper" if quantity.side == "at most" else "lower")
    return "" if kept else found.group().rstrip("*_( ")


def _unknown(binding: Binding, ledger: Ledger) -> Finding:
    import difflib

    scope, _, figure = binding.name.rpartition("#")
    near = difflib.get_close_matches(figure, ledger.scope(scope), n=1) or []
    hint = f" Did you mean {scope + '#' if scope else ''}{near[0]}?" if near else ""
    code, message = "UNKNOWN", f"'{binding.name}' is no quantity of this plan and its runs.{hint}"
    if scope.startswith("run/") and not ledger.scope(scope):
        code, message = "UNMEASURED", f"No run '{scope.removeprefix('run/')}' is among the inputs."
    return Finding(
        code=code,
        level="error",
        line=binding.line,
        name=binding.name,
        written=binding.written.text,
        recomputed="",
        message=message,
    )


def _disagrees(decision: Decision, binding: Binding, quantity: Quantity) -> str:
    """Why what is written does not state the quantity; "" where it does."""
    written = binding.written
    if quantity.dim == "text":
        expected = spelled(quantity).strip("`")
        before = decision.lines[binding.line - 1][: binding.column].rstrip("*_")
        if written.text == expected and before.endswith(("`", expected)):
            return ""
        return f"'{written.text}' is written, it is '{expected}'."
    value = quantity.value
    assert not isinstance(value, str), f"{quantity.name} is a number"
    if agrees(written, value, quantity.dim):
        return ""
    if not written.nothing and written.number is None:
        return f"'{written.text}' is no number."
    if written.number is not None and written.unit not in UNITS[quantity.dim]:
        return f"{written.text} has the unit '{written.unit or 'none'}'; {quantity.name} is {spelled(quantity)}."
    return f"{written.text} is written, it is {spelled(quantity)}."


# --- structure ------------------------------------------------------------------------------------------------------


def _structure(decision: Decision) -> Iterator[Finding]:
    def finding(code: str, line: int, name: str, message: str, written: str = "") -> Finding:
        return Finding(code=code, level="error", line=line, name=name, written=written, recomputed="", message=message)

    titles = [s.title for s in decision.sections]
    ours = [s for s in decision.sections if s.title in SECTIONS]
    for title in SECTIONS:
        if title not in titles:
            yield finding("MISSING", decision.body_line, title, f"There is no section '## {title}'.")
    for before, after in pairwise(ours):
        if SECTIONS.index(after.title) <= SECTIONS.index(before.title):
            yield finding("ORDER", after.line, after.title, f"'{after.title}' stands after '{before.title}'.")
    for bare in decision.bare:
        why = bare.why or "bind it to a quantity, or quote it with its source and date"
        yield finding("BARE", bare.line, "", f"Nothing vouches for {bare.text}: {why}.", written=bare.text)
    if not decision.bindings:
        yield finding(
            "COVERAGE", decision.body_line, "", "No number in the file is bound, so nothing could be checked."
        )


def _required(decision: Decision, ledger: Ledger) -> Iterator[Finding]:
    """What each section must say, by the names that are bound in it."""
    by_section: dict[str, set[str]] = {title: set() for title in SECTIONS}
    for binding in decision.bindings:
        if binding.section in by_section:
            by_section[binding.section].add(binding.name)
    lines = {s.title: s.line for s in decision.sections}

    def missing(section: str, name: str, what: str, level: Level = "error") -> Finding:
        return Finding(
            code="MISSING",
            level=level,
            line=lines.get(section, decision.body_line),
            name=name,
            written="",
            recomputed="",
            message=f"'{section}' does not say {what}.",
        )

    for section, name, what in _musts(ledger):
        if section in lines and not by_section[section].intersection(name.split("|")):
            yield missing(section, name, what)
    if "Assumptions" in lines:
        yield from _assumptions(decision, ledger, by_section["Assumptions"], missing)
    if "Trade-offs" in lines:
        said = {name.rsplit("#", 1)[0] for name in by_section["Trade-offs"] if "#" in name}
        for c in ledger.plan.candidates:
            if c.id != ledger.candidate.id and verdict(c) == "pass":
                scopes = {ledger.with_(c), f"with/{c.id}", ledger.any_(c)}
                if not said & scopes:
                    yield missing("Trade-offs", ledger.with_(c), f"why {c.id}, which passes, was rejected")
    if "What would change it" in lines and MARK not in by_section["What would change it"]:
        yield missing("What would change it", MARK, f"which result overturns it (an expression marked {MARK})")


def _musts(ledger: Ledger) -> Iterator[tuple[str, str, str]]:
    """(section, names of which one must be bound, what that says)."""
    c, plan = ledger.candidate, ledger.plan
    for name, what in (("device", "the device"), ("policy", "the batching policy"), ("seats", "the batch limit")):
        yield "Decision", name, what
    for name, what in (("precision", "the precision"), ("model", "the model"), ("replicas", "how many replicas"),
                       ("budget_tok", "the token budget"), ("kv_bits", "the bits of a KV value"), ("tp", "devices per replica")):  # fmt: skip
        if len({getattr(x, name) for x in plan.candidates}) > 1:
            yield "Decision", name.removesuffix("_tok"), what
    for check in c.checks:
        for part in ("target", "value", "margin", "verdict"):
            yield "Evidence", f"{check.name}.{part}", f"the {part} of {check.label}"
    for side in ("low", "high"):
        if ledger.find(f"range.{side}.seats"):
            edge = f"the {side} edge of the passing range"
            yield "Evidence", f"range.{side}.seats|range.{side}.outside", edge
            yield "Evidence", f"range.{side}.check|range.{side}.reached", f"what sets {edge}"
    for run in ledger.runs:
        pairs = (name for name in ledger.scope(f"run/{run.name}") if name.startswith("gap."))
        yield (
            "Evidence",
            "|".join(f"run/{run.name}#{name}" for name in pairs),
            f"what run {run.name} measured beside it",
        )
    for device in ledger.devices_without_a_pass():
        if device != c.device:
            for name in ledger.scope(f"on/{device}"):
                if name.startswith("never.") and name.endswith(".best"):
                    yield "Evidence", f"on/{device}#{name}", f"the best that {device} reaches in {name.split('.')[1]}"


def _assumptions(
    decision: Decision, ledger: Ledger, names: set[str], missing: Callable[..., Finding]
) -> Iterator[Finding]:
    ids = {name.removeprefix("assumption/").split("#")[0] for name in names if name.startswith("assumption/")}
    known = {a.id for a in ledger.plan.assumptions}
    need = min(3, len(known))
    if len(ids & known) < need:
        yield missing("Assumptions", "assumption/", f"{need} assumptions of the plan (it names {len(ids & known)})")
    for a in ledger.plan.assumptions:
        if a.changes_decision and a.id not in ids:
            yield missing("Assumptions", f"assumption/{a.id}", f"'{a.id}', which alone would change the decision")
    if not _own_words(decision):
        level: Level = "error" if decision.front.status == "accepted" else "warning"
        yield missing(
            "Assumptions",
            "own",
            "what you assume about the real service (decide --assume, or a line under 'Our own')",
            level,
        )


def _own_words(decision: Decision) -> bool:
    """Whether something stands under the heading of level three with the word "own" in Assumptions."""
    inside, text = False, ""
    for number, line in enumerate(decision.lines, 1):
        if line.startswith("#"):
            inside = (
                bool(re.match(r"###\s.*\bown\b", line, re.IGNORECASE)) and decision.section_at(number) == "Assumptions"
            )
        elif inside:
            text += line + "\n"
    words = re.sub(r"<!--.*?-->", " ", text, flags=re.DOTALL)
    return len(re.findall(r"[^\W\d_]{2,}", words)) >= 3


# --- does it stand --------------------------------------------------------------------------------------------------


def _standing(decision: Decision, ledger: Ledger) -> Iterator[Finding]:
    """FAILS, THIN and UNMEASURED: what the checks of the decided configuration are worth."""
    level: Level = "warning" if decision.front.despite else "error"
    line = next((s.line for s in decision.sections if s.title == "Evidence"), decision.body_line)
    for check in ledger.candidate.checks:
        said = check_verdict(check)
        if said == "pass":
            continue
        value = ledger.find(f"{check.name}.value")
        target = ledger.find(f"{check.name}.target")
        assert value and target, f"{check.name} is a check of the candidate"
        code = "FAILS" if said == "fail" else "THIN"
        why = "misses its target" if said == "fail" else "has a margin inside its interval"
        despite = f" (chosen despite it: {decision.front.despite.rstrip('.')})" if decision.front.despite else ""
        yield Finding(
            code=code,
            level=level,
            line=line,
            name=f"{check.name}.verdict",
            written="",
            recomputed=said,
            message=f"{check.label} {why}: {spelled(value)} against {spelled(target)}{despite}.",
        )
    basis = ledger.plan.basis(ledger.candidate.basis)
    if basis.lower_bound and not ledger.runs:
        yield Finding(
            code="UNMEASURED",
            level="warning",
            line=line,
            name="basis.source",
            written="",
            recomputed=basis.source,
            message="Every time rests on the datasheet alone and is a lower bound; calibrate or measure.",
        )


def _expressions(decision: Decision, ledger: Ledger) -> Iterator[Finding]:
    words = vocabulary(ledger, None)
    for binding in expressions(decision):
        try:
            holds, _ = evaluate_on(binding.written.text, words)
        except CannotMeasure:
            continue
        except ServefitError as error:
            code, message = "UNKNOWN", f"{error.message} {error.hint}"
        else:
            if not holds or decision.front.despite:
                continue
            code, message = "FAILS", "By its own prediction the decision is overturned."
        yield Finding(
            code=code,
            level="error",
            line=binding.line,
            name=MARK,
            written=binding.written.text,
            recomputed="",
            message=message,
        )


def _checked_against(decision: Decision, ledger: Ledger, path: Path) -> Iterator[Finding]:
    """The runs it was held against: still the same, and still saying what is recorded."""
    results = [c.result for c in decision.front.checked_against]
    gone = ("overturned", "superseded", "rejected", "deprecated")
    if "overturned" in results[:1] and decision.front.status not in gone:
        message = "The newest check overturned it, so it is not " + decision.front.status + "."
        yield _front_finding(
            decision,
            "STALE",
            "status",
            written=f"status: {decision.front.status}",
            recomputed="overturned",
            message=message,
        )
    for number, checked in enumerate(decision.front.checked_against):
        where = at(path, checked.run)
        if not where.exists():
            message = f"{checked.run} is not there."
            yield _front_finding(
                decision, "SOURCE", "run", written=checked.run, recomputed="", message=message, level="warning"
            )
            continue
        actual = content_sha256(where)
        if actual != checked.sha256:
            message = f"{checked.run} is not the run that was held against: its hash has changed."
            yield _front_finding(decision, "SOURCE", "run", written=checked.sha256, recomputed=actual, message=message)
            continue
        measured = Measured(name=f"checked{number}", label=checked.run, run=load_run(where))
        try:
            outcomes = hold_against(decision, replace(ledger, runs=(measured,), _scopes={}), measured)
        except ServefitError:
            continue
        said = result_of(outcomes, ledger.plan, measured.run)
        if said != checked.result:
            message = f"{checked.run} says {said}."
            yield _front_finding(
                decision, "STALE", "run", written=f"result: {checked.result}", recomputed=said, message=message
            )


# --- fixing ---------------------------------------------------------------------------------------------------------


def fixed(report: Report) -> str:
    """The file's text with every stale number respelled, and nothing else touched.

    Raises ServefitError where an input is not the one that was decided on: those numbers would come from elsewhere.
    """
    if report.ledger is None or any(f.code == "SOURCE" and f.level == "error" for f in report.findings):
        raise ServefitError(
            f"{report.path} rests on inputs that are not the recorded ones, so its numbers are left alone.",
            hint="Bring the inputs back, or write the decision again with `servefit decide`.",
        )
    text = report.decision.text
    for binding in sorted(report.decision.bindings, key=lambda b: -(b.offset + b.column)):
        quantity = report.ledger.find(binding.name) if binding.name != MARK else None
        if quantity is None or quantity.dim == "text" or isinstance(quantity.value, str):
            continue
        written = binding.written
        if agrees(written, quantity.value, quantity.dim) or not (written.nothing or written.number is not None):
            continue
        new = respell(written, quantity.value, quantity.dim, signed=quantity.signed)
        start = binding.offset + written.start
        text = text[:start] + new + text[binding.offset + written.end :]
    return text
