"""Named quantities: everything that a decision may say about a plan, its candidates and the runs, recomputed.

A name is a scope and a figure. Without a scope it is the decided candidate (`ttft.p99`) or the plan (`load.rate`);
`with/seats32#ttft.p99` is the candidate that differs from the decided one in those parts of its id,
`on/DEVICE#never.ttft.best` the best that a device reached in a check it never passes, `any/static#range.high.seats` the
edge of another passing range, `assumption/ID#breaking` an assumption's breaking point, `run/NAME#ttft.p99` a measured run's and `run/NAME#gap.ttft.p99` how far that is from the prediction.

What can be derived (margins, verdicts, edges, differences) is derived here from the plan's values, never copied.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from servefit.decide.derive import (
    Quantity,
    Value,
    of_assumption,
    of_candidate,
    of_device,
    of_difference,
    of_plan,
    of_range,
    run_quantities,
    verdict,
)
from servefit.plan.edges import group_of, groups
from servefit.plan.plan import Candidate, Plan
from servefit.records import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run that the decision rests on or is held against."""

    name: str
    label: str
    """Where it lies, for people."""
    run: Run


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All named quantities of a plan, a decided candidate and some runs, each scope made when it is first asked for."""

    plan: Plan
    candidate: Candidate
    label: str = "plan.json"
    """The plan, for people."""
    runs: tuple[Measured, ...] = ()
    _scopes: dict[str, dict[str, Quantity]] = field(default_factory=dict, repr=False)

    def find(self, name: str) -> Quantity | None:
        """The quantity of that name; None where there is none."""
        if name.startswith("assumption/") and "#" not in name:
            name += "#id"
        scope, figure = name.rsplit("#", 1) if "#" in name else ("", name)
        return self.scope(scope).get(figure)

    def scope(self, scope: str) -> Mapping[str, Quantity]:
        """The quantities of one scope by their names in it; empty where there is no such scope."""
        if scope not in self._scopes:
            self._scopes[scope] = {q.name: q for q in self._make(scope)}
        return self._scopes[scope]

    @property
    def scopes(self) -> list[str]:
        """Every scope there is."""
        return [
            "",
            *(self.with_(c) for c in self.plan.candidates),
            *dict.fromkeys(f"on/{c.device}" for c in self.plan.candidates),
            *dict.fromkeys(self.any_(c) for c in self.plan.candidates),
            *(f"assumption/{a.id}" for a in self.plan.assumptions),
            *(f"run/{m.name}" for m in self.runs),
        ]

    def with_(self, candidate: Candidate) -> str:
        """The scope of a candidate: `with/` and the parts of its id in which it differs from the decided one."""
        return f"with/{_difference(candidate.id, self.candidate.id) or candidate.id}"

    def any_(self, candidate: Candidate) -> str:
        """The scope of a candidate's group: `any/` and the parts in which the group differs from the decided one's."""
        return f"any/{_difference(group_id(candidate), group_id(self.candidate)) or group_id(candidate)}"

    def devices_without_a_pass(self) -> list[str]:
        """The devices on which no candidate passes, in the plan's order."""
        passing = {c.device for c in self.plan.candidates if verdict(c) == "pass"}
        return [d for d in dict.fromkeys(c.device for c in self.plan.candidates) if d not in passing]

    def value(self, name: str) -> Value:
        """The value of that name; KeyError where there is none."""
        if (quantity := self.find(name)) is None:
            raise KeyError(name)
        return quantity.value

    def _make(self, scope: str) -> Iterable[Quantity]:
        if scope == "":
            members = [c for c in self.plan.candidates if group_of(c) == group_of(self.candidate)]
            return chain(
                of_plan(self.plan, self.label),
                of_candidate(self.plan, self.candidate, self.label),
                of_range(members, self.label),
            )
        if scope.startswith("assumption/"):
            found = next((a for a in self.plan.assumptions if a.id == scope.removeprefix("assumption/")), None)
            return of_assumption(self.plan, found, self.label) if found else ()
        if scope.startswith("run/"):
            run = next((m for m in self.runs if m.name == scope.removeprefix("run/")), None)
            return self._run(run) if run else ()
        kind, _, rest = scope.partition("/")
        if kind == "with":
            alike = [c for c in self.plan.candidates if rest == c.id or scope == self.with_(c)]
            if len(alike) == 1:
                return chain(
                    of_candidate(self.plan, alike[0], self.label), of_difference(alike[0], self.candidate, self.label)
                )
        elif kind == "any":
            alike = [c for c in self.plan.candidates if rest == group_id(c) or scope == self.any_(c)]
            if len({group_id(c) for c in alike}) == 1:
                return of_range(alike, self.label)
        elif kind == "on" and (alike := [c for c in self.plan.candidates if c.device == rest]):
            return of_device(alike, self.label)
        return ()

    def _run(self, measured: Measured) -> Iterator[Quantity]:
        targets = self.plan.spec.targets
        predicted = self.scope("")
        for quantity in run_quantities(measured.run, targets, source=measured.label):
            yield quantity
            other = predicted.get(quantity.name)
            if quantity.dim != "text" and quantity.name not in ("n", "ok") and other and other.dim == quantity.dim:
                yield Quantity(
                    name=f"gap.{quantity.name}",
                    value=_gap(quantity.value, other.value),
                    dim="frac",
                    formula="(measured - predicted) / predicted",
                    inputs=(quantity.name,),
                    source=f"{measured.label} against {self.label}",
                    signed=True,
                )


def _gap(measured: Value, predicted: Value) -> float | None:
    if not isinstance(measured, int | float) or not isinstance(predicted, int | float) or predicted == 0:
        return None
    return round((measured - predicted) / predicted, 12)


def _difference(theirs: str, ours: str) -> str:
    """The parts of one id that are not in the other at the same place.

    >>> _difference("a/m/bf16/static/seats32/x1", "a/m/bf16/static/seats16/x1")
    'seats32'
    """
    mine, other = theirs.split("/"), ours.split("/")
    if len(mine) != len(other):
        return theirs
    return "/".join(part for part, same in zip(mine, other, strict=True) if part != same)


def group_id(candidate: Candidate) -> str:
    """The name of a candidate's group: its id without the seats."""
    return "/".join(part for part in candidate.id.split("/") if not part.startswith("seats"))


def names_budget(plan: Plan, candidate: Candidate) -> bool:
    """Whether a decision names the token budget: a server that computes whole prompts has none to set.

    Where the plan tried several, they tell its configurations apart all the same.
    """
    return candidate.policy == "chunked" or len({c.budget_tok for c in plan.candidates}) > 1


def all_groups(plan: Plan) -> dict[str, list[Candidate]]:
    """The candidates of each group by the group's id, in rising seats."""
    return {group_id(members[0]): members for members in groups(plan.candidates).values()}
