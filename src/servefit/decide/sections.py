"""The five sections of a decision, written from a ledger: prose around bound numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from servefit.decide.against import MARK, refuse_unfit
from servefit.decide.decision import numbers_in
from servefit.decide.derive import PERCENTILES, Quantity, check_label, verdict
from servefit.decide.prose import aside, flat, sentence, shortened, spelled, table, word
from servefit.decide.quantities import Ledger, group_id, names_budget
from servefit.decide.written import Written, agrees
from servefit.plan.plan import Assumption, Candidate, Check, Plan

DRAWN_FRAC = 0.005
"""A rate served that is so near to the rate asked needs no words."""
MAX_ROWS = 12
"""Passing candidates that get a line of their own; beyond that a group gets one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the author chose, each with a flag of its own."""

    date: str
    """ISO date of the decision."""
    tool_version: str
    status: str = "proposed"
    deciders: tuple[str, ...] = ()
    despite: str = ""
    own: tuple[str, ...] = ()
    """The author's own assumptions about the real service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The sections. `b` binds: the value in our own spelling with its name behind it."""

    ledger: Ledger
    choices: Choices

    def b(self, name: str) -> str:
        quantity = self.ledger.find(name)
        assert quantity is not None, f"the write-up uses {name}, which the plan has not"
        return f"{spelled(quantity)}<!--{name}-->"

    def has(self, name: str) -> bool:
        quantity = self.ledger.find(name)
        return quantity is not None and quantity.value is not None

    # --- title and decision

    def title(self) -> Iterator[str]:
        yield f"# Serve {self.b('model')} on {self.b('device')}"
        yield ""
        yield "<!-- Edit the prose freely. A number with a comment right behind it is bound to a named quantity, and"
        yield "`servefit verify` recomputes it. Mark a number of somebody else's with a comment: quoted: who, when. -->"
        yield ""

    def decision(self) -> Iterator[str]:
        c = self.ledger.candidate
        yield "## Decision"
        yield ""
        yield (
            f"Run {self.b('model')} in {self.b('precision')} on {self.b('device')} with {self.b('policy')} batching and a "
            f"batch limit of {self.b('seats')} seats{self._spread_out(c)}."
        )
        yield ""
        if self.choices.despite:
            yield f"It is {self.b('verdict')}, and is chosen all the same. The reason given:"
            yield ""
            yield f"> {flat(self.choices.despite)}<!--quoted: the deciders, {self.choices.date}-->"
        else:
            tight = f"the tightest is {self.b('tightest.check')}, with a margin of {self.b('tightest.margin')}"
            yield f"It meets every target ({self.b('verdict')}); {tight}."
        yield ""
        rows = [
            ("device", "device"),
            ("batching policy", "policy"),
            ("batch limit (seats)", "seats"),
            ("model", "model"),
            ("precision of the weights", "precision"),
            ("bits of a KV value", "kv_bits"),
            *([(said, "budget")] if (said := self._budget(c)) else []),
            ("devices per replica", "tp"),
            ("replicas", "replicas"),
        ]
        yield from table(("setting", "value"), [(label, self.b(name)) for label, name in rows])
        if self.has("cost.per_hour"):
            since = f"price of {self.b('cost.as_of')}" if self.has("cost.as_of") else f"a price {self.b('cost.source')}"
            yield (
                f"It costs {self.b('cost.per_hour')} ({since})"
                + (f", {self.b('cost.per_mtok')} of output" if self.has("cost.per_mtok") else "")
                + (f" and {self.b('cost.per_request')} per request" if self.has("cost.per_request") else "")
                + " at this load."
            )
            yield ""

    def _budget(self, c: Candidate) -> str:
        """What the budget is to the policy; nothing where a server of whole prompts is not told any."""
        if not names_budget(self.ledger.plan, c):
            return ""
        return "token budget of a step" if c.policy == "chunked" else "tokens of the whole prompts that share a step"

    def _spread_out(self, c: Candidate) -> str:
        out = "" if c.replicas == 1 else f", as {self.b('replicas')} replicas"
        return out + ("" if c.tp == 1 else f" over {self.b('tp')} devices each")

    # --- evidence

    def evidence(self) -> Iterator[str]:
        c = self.ledger.candidate
        yield "## Evidence"
        yield ""
        yield (
            f"{self._load()}, {self.b('load.isl')} in and {self.b('load.osl')} out on average (the longest request "
            f"reaches {self.b('load.context')}), {self.b('load.n')} requests in each of {self.b('seeds')} schedule(s) from "
            f"seed {self.b('seed')}; every candidate saw the same ones."
        )
        yield ""
        rows = []
        for check in c.checks:
            n = check.name
            interval = self._span(n) if self.has(f"{n}.low") else "-"
            bound = "at most" if check.at_most else "at least"
            rows.append(
                (
                    check.label,
                    f"{bound} {self.b(f'{n}.target')}",
                    self.b(f"{n}.value"),
                    interval,
                    self.b(f"{n}.margin"),
                    self.b(f"{n}.verdict"),
                )
            )
        yield from table(("check", "target", "value", "what it may be", "margin", "verdict"), rows)
        if c.figures:
            yield (
                f"It serves {self.b('throughput')} and {self.b('output.rate')} of output; {self.b('goodput.rate')} of that "
                f"meet every latency target (goodput). Of {self.b('n')} requests {self.b('failed')} did not complete."
            )
            yield from self._drawn(c)
            yield ""
        basis = self.ledger.plan.basis(c.basis)
        error = f", within {self.b('basis.error')}" if self.has("basis.error") else ", with an error that is not known"
        yield f"Step times are {self.b('basis.source')} ({word(shortened(basis.origin))}){error}."
        if basis.lower_bound:
            yield "They rest on the datasheet alone: every time above is a lower bound, because overhead is unknown."
        yield ""
        yield from self.passing_range()
        yield from self.never_pass()
        yield from self.predicted_and_measured()

    def _drawn(self, c: Candidate) -> Iterator[str]:
        """Where more is served than the rate that was asked: only the draw of the arrivals can do that."""
        asked, served = self.ledger.plan.spec.workload.rate_req_per_s, c.figures and c.figures.req_per_s
        if not (asked and served and c.figures) or c.figures.failed or c.figures.waiting_at_end:
            return
        if served / asked - 1 > DRAWN_FRAC:  # less may be the last answers, which come after the last arrival
            yield f"Arrivals are drawn for {self.b('load.rate')} on average; these schedules came out faster."

    def _span(self, name: str) -> str:
        """What a value may be; "up to" where it may be next to nothing, which no clock tells from 0."""
        high = self.b(f"{name}.high")
        return f"{self.b(f'{name}.low')} to {high}" if self.ledger.value(f"{name}.low") else f"up to {high}"

    def _load(self) -> str:
        work = self.ledger.plan.spec.workload
        if work.rate_req_per_s is not None:
            return f"At {self.b('load.rate')} ({word(work.arrivals)} arrivals)"
        if work.concurrency is not None:
            return f"With {self.b('load.concurrency')} users, each sending again when its answer is complete"
        return f"On the trace {word(work.trace)}" if work.trace else "Under a load in stages"

    def passing_range(self) -> Iterator[str]:
        yield "### The passing range"
        yield ""
        if not self.has("range.low.seats"):
            yield f"No number of seats passes with {self.b('policy')} on {self.b('device')}."
            yield ""
            return
        yield (
            f"With {self.b('policy')} on {self.b('device')}, from {self.b('range.low.seats')} to "
            f"{self.b('range.high.seats')} seats pass ({self.b('range.count')} of the numbers tried)."
        )
        yield ""
        for side, said in (("low", "Low"), ("high", "High")):
            name = f"range.{side}"
            if not self.has(f"{name}.check"):
                yield f"- {said} edge: {self.b(f'{name}.reached')}; the search ended at {self.b(f'{name}.seats')} seats."
                continue
            there = self.b(f"{name}.value")
            if self.ledger.value(f"{name}.verdict") == "too close to call" and self.has(f"{name}.low"):
                there = f"{self.b(f'{name}.verdict')}, {self._span(name)}"
            yield (
                f"- {said} edge ({self.b(f'{name}.reached')}): set by {self.b(f'{name}.check')}, which at "
                f"{self.b(f'{name}.outside')} seats is {there} against {self.b(f'{name}.target')}."
            )
        yield ""

    def never_pass(self) -> Iterator[str]:
        """The devices on which nothing passes: the checks they never pass with the best value, else how near they come."""
        rows: list[tuple[str, ...]] = []
        for device in self.ledger.devices_without_a_pass():
            members = [c for c in self.ledger.plan.candidates if c.device == device]
            best = [n for n in self.ledger.scope(f"on/{device}") if n.startswith("never.") and n.endswith(".best")]
            for name in best:
                check = name.split(".")[1]
                target = self.b(f"on/{device}#never.{check}.target")
                label = check_label(members[0], check) or check
                rows.append((word(device), label, self.b(f"on/{device}#{name}"), target))
            if not best and self.ledger.find(f"on/{device}#closest.value"):
                at = f"on/{device}#closest."
                value = self.b(at + "value") + (f", but may be {self._span(at[:-1])}" if self.has(at + "high") else "")
                rows.append(
                    (
                        word(device),
                        f"never all at once; the nearest ({self.b(at + 'candidate')}) does not surely keep {self.b(at + 'check')}",
                        value,
                        self.b(at + "target"),
                    )
                )
        if rows:
            yield "### What never passes"
            yield ""
            yield from table(("device", "check", "its best value at any setting", "target"), rows)

    def predicted_and_measured(self) -> Iterator[str]:
        if not self.ledger.runs:
            return
        yield "### Predicted and measured"
        yield ""
        tail = f"p{self.ledger.plan.spec.targets.p}"
        names = (
            *(f"{figure}.{p}" for figure in ("ttft", "tpot") for p in dict.fromkeys(("p50", tail))),
            f"e2e.{tail}",
            "output.rate",
            "goodput.rate",
            "goodput.share",
        )
        for run in self.ledger.runs:
            scope, notes = f"run/{run.name}", refuse_unfit(self.ledger, run)
            yield f"Run {word(run.name)}, {self.b(f'{scope}#n')} requests:"
            yield ""
            rows = [
                (name.replace(".", " "), self.b(name), self.b(f"{scope}#{name}"), self.b(f"{scope}#gap.{name}"))
                for name in names
                if self.ledger.find(name) and self.ledger.find(f"{scope}#{name}")
            ]
            yield from table(("figure", "predicted", "measured", "measured - predicted"), rows)
            yield from (f"- Note: {word(note)}" for note in notes)
            yield from [""] if notes else []

    # --- assumptions

    def assumptions(self) -> Iterator[str]:
        plan = self.ledger.plan
        yield "## Assumptions"
        yield ""
        decisive = [a for a in plan.assumptions if a.breaking or a.changes_decision]
        moving = [a for a in plan.assumptions if a not in decisive and any(b.direction != "none" for b in a.biases)]
        rest = [a for a in plan.assumptions if a not in decisive and a not in moving]
        full = decisive + moving
        full += rest[: max(0, 3 - len(full))]
        brief = [a for a in rest if a not in full]
        yield "What the decision depends on, the nearest breaking point first."
        if plan.recommended and plan.recommended.id != self.ledger.candidate.id:
            yield f"Evaluated for the plan's own pick, {word(plan.recommended.id)}."
        yield ""
        broken = [a for a in full if a.breaking]
        if broken:
            rows = [self.breaking(a) for a in sorted(broken, key=_nearness)]
            yield from table(("assumption", "unit", "planned", "breaks at", "which is", "misses first"), rows)
        for a in full:
            yield f"- {self.b(f'assumption/{a.id}')} {' '.join(self.assumption(a))}"
        for a in brief:
            yield f"- {self.b(f'assumption/{a.id}')} {self.prose(a, 'text')}"
        yield ""
        yield "### Our own, about the real service"
        yield ""
        yield "<!-- What do you know about the real service that no plan can? An empty place here is a finding. -->"
        yield ""
        for text in self.choices.own:
            yield f"- {self.quote_numbers(text)}"
        if self.choices.own:
            yield ""

    def breaking(self, a: Assumption) -> tuple[str, ...]:
        at = f"assumption/{a.id}#"
        assert a.breaking is not None, f"{a.id} has no breaking point"
        first = check_label(self.ledger.candidate, a.breaking.check) or a.breaking.check
        return (
            word(a.id),
            word(a.unit),
            *(self.b(at + name) for name in ("planned", "breaking", "breaking.factor")),
            first,
        )

    def assumption(self, a: Assumption) -> Iterator[str]:
        at = f"assumption/{a.id}#"
        yield f"({word(a.source)}): {self.prose(a, 'text')}"
        if a.measured:
            reach = (
                f"; this workload reaches {self.b(at + 'reached.low')} to {self.b(at + 'reached.high')}"
                if a.reached
                else ""
            )
            yield f"Measured from {self.b(at + 'measured.low')} to {self.b(at + 'measured.high')}{reach}."
        for key in a.details:
            yield f"{word(key)}: {self.b(at + 'detail.' + key)}."
        moved = [b for b in a.biases if b.direction != "none"]
        if moved:
            said = ", ".join(
                f"{check_label(self.ledger.candidate, b.check)} {self.b(f'{at}{b.check}.otherwise')} instead of "
                f"{self.b(f'{at}{b.check}.planned')} ({self.b(f'{at}{b.check}.ratio')}, so the plan is "
                f"{self.b(f'{at}{b.check}.direction')})"
                for b in moved
            )
            yield f"Otherwise ({self.prose(a, 'alternative')}): {said}."
        if a.changes_decision:
            yield "**That alone would change the decision.**"
        if a.tried and not a.breaking:
            yield f"Nothing from {self.b(at + 'tried.low')} to {self.b(at + 'tried.high')} changes the decision."

    def prose(self, a: Assumption, part: str) -> str:
        """One of the plan's sentences, each number in it bound to the quantity it states, or to the plan's wording."""
        text = aside(flat(getattr(a, part)))
        scope = self.ledger.scope(f"assumption/{a.id}")
        out, at = "", 0
        for end, found in numbers_in(text):
            own = (q for n, q in scope.items() if "." not in n or n.split(".")[0] in ("measured", "reached", "planned"))
            match = next((q.name for q in own if q.dim not in ("plain", "ratio") and _states(found, q)), None)
            match = match or next(n for n, q in scope.items() if n.startswith(f"{part}.") and _states(found, q))
            out += f"{text[at:end]}<!--assumption/{a.id}#{match}-->"
            at = end
        return out + text[at:]

    def quote_numbers(self, text: str) -> str:
        """The author's own sentence, its numbers marked as theirs."""
        who = ", ".join(self.choices.deciders) or "the deciders"
        text, out, at = flat(text), "", 0
        for end, _ in numbers_in(text):
            out += f"{text[at:end]}<!--quoted: {who}, {self.choices.date}-->"
            at = end
        return out + text[at:]

    # --- trade-offs

    def trade_offs(self) -> Iterator[str]:
        plan, decided = self.ledger.plan, self.ledger.candidate
        others = [c for c in plan.candidates if c.id != decided.id and verdict(c) == "pass"]
        yield "## Trade-offs"
        yield ""
        yield (
            f"Configurations tried: {self.b('count.candidates')}; of these {self.b('count.pass')} pass, "
            f"{self.b('count.fail')} miss a target, {self.b('count.close')} too close to call."
        )
        yield ""
        yield from self.rejected(others)
        yield from self.extra_seats(others)

    def rejected(self, others: Sequence[Candidate]) -> Iterator[str]:
        if not others:
            yield "No other configuration passes, so none was rejected."
            yield ""
            return
        decided = self.ledger.candidate
        yield "Passed and rejected:"
        yield ""
        own = [c for c in others if group_id(c) == group_id(decided)]
        by_group: dict[str, list[Candidate]] = {}
        for c in others:
            by_group.setdefault(group_id(c), []).append(c)
        if len(others) > MAX_ROWS:
            lone = own if len(own) <= MAX_ROWS else []
            groups = {g: m for g, m in by_group.items() if not (lone and g == group_id(decided))}
        else:
            lone, groups = list(others), {}
        rows = [self._rejected_row(c) for c in lone]
        p = self.ledger.plan.spec.targets.p
        if rows:
            yield from table(
                ("configuration", "seats", "memory", "capacity", f"p{p} TTFT", f"p{p} TPOT", "why not"), rows
            )
        devices: dict[str, list[str]] = {}
        for group, members in groups.items():
            devices.setdefault(members[0].device, []).append(group)
        for device, own_groups in devices.items():
            yield f"- {word(device)}:"
            for group in own_groups:
                yield f"  - {word(group.removeprefix(f'{device}/'))}: {self._group(groups[group])}"
        if groups:
            yield ""

    def _group(self, members: Sequence[Candidate]) -> str:
        """Which numbers of seats of this group pass, and why its best one was rejected."""
        at = self.ledger.any_(members[0])
        low, high = (self.b(f"{at}#range.{end}.seats") for end in ("low", "high"))
        if len(members) == 1:
            said = f"passes with {low} seats only" if members[0].seats > 1 else f"passes with {low} seat only"
        else:
            said = f"{self.b(f'{at}#range.count')} numbers of seats pass, from {low} to {high}"
        return f"{said}. {sentence(self._why(self._best(members)))}"

    def _best(self, members: Sequence[Candidate]) -> Candidate:
        def cost(c: Candidate) -> tuple[float, int]:
            return (c.cost.usd_per_hour if c.cost else 0.0, c.memory.needed_bytes)

        return min(members, key=cost)

    def _rejected_row(self, c: Candidate) -> tuple[str, ...]:
        at = f"{self.ledger.with_(c)}#delta."
        what = [c.device, c.policy] if c.model == self.ledger.candidate.model else [c.device, c.model, c.policy]
        decided = self.ledger.candidate
        for name, ours, theirs in (
            ("", decided.precision, c.precision),
            ("budget ", decided.budget_tok, c.budget_tok),
            ("KV bits ", decided.kv_bits, c.kv_bits),
            ("tp ", decided.tp, c.tp),
            ("replicas ", decided.replicas, c.replicas),
        ):
            if ours != theirs:
                what.append(f"{name}{theirs}")
        seats = f"{self.ledger.with_(c)}#seats"
        return (
            word(" ".join(what)),
            self.b(seats),
            *(self.b(at + name) for name in ("memory", "capacity", self._at_p("ttft"), self._at_p("tpot"))),
            self._why(c),
        )

    def _at_p(self, figure: str) -> str:
        """A latency at the percentile of the plan's targets, as differences are named."""
        return f"{figure}.p{self.ledger.plan.spec.targets.p}"

    def _why(self, c: Candidate) -> str:
        at, decided = f"{self.ledger.with_(c)}#delta.", self.ledger.candidate
        cost, memory, capacity = (self.ledger.value(at + n) for n in ("cost", "memory", "capacity"))
        known, theirs = (self.ledger.plan.basis(x.basis).source for x in (decided, c))
        if known == "measured" != theirs:
            return (
                "its step times come from a datasheet."
                if theirs == "spec"
                else f"its step times are {theirs}, not measured."
            )
        if decided.cost and not c.cost:
            return "has no known price."
        if isinstance(cost, int | float) and cost > 0:
            return f"dearer by {self.b(at + 'cost')}."
        if c.device == decided.device and isinstance(memory, int | float) and memory > 0:
            if isinstance(capacity, int | float) and capacity > 0:
                return f"its extra capacity ({self.b(at + 'capacity')}) is not needed at this load and costs memory."
            return f"takes more memory ({self.b(at + 'memory')}) and carries no more."
        if isinstance(capacity, int | float) and capacity < 0:
            return f"carries less ({self.b(at + 'capacity')})."
        here, there = self.ledger.value("tightest.margin"), self.ledger.value(f"{self.ledger.with_(c)}#tightest.margin")
        if isinstance(here, int | float) and isinstance(there, int | float) and there < here:
            return f"its tightest margin is smaller ({self.b(self.ledger.with_(c) + '#tightest.margin')})."
        return "not better by the rule that picked (say here why it was not taken)."

    def extra_seats(self, others: Sequence[Candidate]) -> Iterator[str]:
        """What more seats cost (memory) and buy (capacity), against the nearest larger number, else the nearest smaller."""
        decided = self.ledger.candidate
        members = [c for c in self.ledger.plan.candidates if group_id(c) == group_id(decided) and c.id != decided.id]
        larger = sorted((c for c in members if c.seats > decided.seats), key=lambda c: c.seats)
        smaller = sorted((c for c in members if c.seats < decided.seats), key=lambda c: -c.seats)
        passing = [c for c in larger if c in others] or [c for c in smaller if c in others]
        near = (passing or larger or smaller)[:1]
        yield "### What extra seats cost and buy"
        yield ""
        if not near:
            yield "No other number of seats was tried."
            yield ""
            return
        c = near[0]
        at, p = f"{self.ledger.with_(c)}#", self.ledger.plan.spec.targets.p
        fails = "" if c in others else f" (verdict: {self.b(at + 'verdict')})"
        more = "More" if c.seats > decided.seats else "Fewer"
        buys = [
            f"{self.b(at + 'delta.capacity')} of capacity" if self.has(at + "delta.capacity") else "",
            f"{self.b(at + 'delta.goodput')} of goodput at this load" if self.has(at + "delta.goodput") else "",
            *(
                f"{self.b(name)} of p{p} {figure.upper()}"
                for figure in ("ttft", "tpot")
                if self.has(name := f"{at}delta.{self._at_p(figure)}")
            ),
        ]
        yield (
            f"{more} seats, {self.b(at + 'seats')} instead of {self.b('seats')}{fails}: "
            f"{self.b(at + 'delta.memory')} of memory per replica; {', '.join(filter(None, buys)) or 'nothing else known'}. "
            f"One seat holds {self.b('memory.kv_per_seat')} of KV cache at the longest request."
        )
        yield ""

    # --- what would change it

    def what_would_change_it(self) -> Iterator[str]:
        plan, c = self.ledger.plan, self.ledger.candidate
        yield "## What would change it"
        yield ""
        first = next((a for a in plan.assumptions if a.breaking), None)
        nearest = (
            f" It also tests the assumption with the nearest breaking point, {self.b(f'assumption/{first.id}')}."
            if first
            else ""
        )
        yield (
            "The first measurement on the real system is this load on this configuration, then the check against it."
            + nearest
        )
        yield ""
        yield "```sh"
        yield f"servefit measure URL {_load_flags(plan)} --out real"
        yield "servefit verify decision.md --against real"
        yield "```"
        yield ""
        terms, said = [], []
        for check in c.checks:
            if term := _overturning(check, plan):
                terms.append(term)
                side = "above" if check.at_most else "below"
                said.append(f"{check.label} {side} {self.b(f'{check.name}.target')}")
        if not terms:
            yield "No target can be seen in a run: say here which result overturns the decision."
            return
        yield f"The decision is overturned when `{' or '.join(terms)}`<!--{MARK}-->: {', or '.join(said)}."


def _overturning(check: Check, plan: Plan) -> str | None:
    """The comparison that a run of the real system can meet, for one check."""
    p = f"p{plan.spec.targets.p}"
    if check.name in ("ttft", "tpot", "e2e"):
        return f"{check.name}.{p if p in PERCENTILES else 'value'} > {check.name}.target"
    if check.name == "goodput":
        return f"goodput.{'rate' if check.unit == 'req_per_s' else 'share'} < goodput.target"
    return None


def _load_flags(plan: Plan) -> str:
    work = plan.spec.workload
    if work.trace or work.stages:
        return "--workload workload.toml"
    arrive = (
        f"--rate {work.rate_req_per_s:g} --arrivals {work.arrivals}"
        if work.rate_req_per_s is not None
        else f"--concurrency {work.concurrency or 1}"
    )
    return f"-n {work.n} {arrive} --isl {work.isl.mean} --osl {work.osl.mean} --seed {work.seed}"


def _states(found: Written, quantity: Quantity) -> bool:
    return (
        isinstance(quantity.value, int | float)
        and quantity.dim != "text"
        and agrees(found, quantity.value, quantity.dim)
    )


def _nearness(a: Assumption) -> float:
    """How far the breaking point is away as a factor, up or down alike: half and twice are equally near."""
    assert a.breaking, "only what breaks stands in the table"
    factor = a.breaking.factor
    return max(factor, 1 / factor) if factor and factor > 0 else float("inf")
