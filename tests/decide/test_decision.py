"""The decision file: front matter, sections, bindings and bare numbers."""

import re
from dataclasses import replace

import pytest

from decide.case import make_case, make_plan
from servefit.decide.decision import load_decision, numbers_in, parse_decision
from servefit.decide.quantities import Ledger
from servefit.decide.sections import Choices, Page
from servefit.errors import ServefitError
from servefit.plan.edges import group_of
from servefit.plan.pick import answer

FRONT = """---
status: proposed
date: 2026-11-30
deciders: [Ada]
servefit:
  schema: 1
  version: "0"
  candidate: a
  seed: 1
  inputs:
    - {role: plan, path: plan.json, sha256: abc}
---
"""


def parse(body: str):
    """A decision with a front matter that is in order."""
    return parse_decision(FRONT + body, where="d.md")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# Notes\n", "no front matter"),
        ("---\nstatus: x\n", "no closing line"),
        ("---\ntitle: a\n---\n", "no 'servefit' table"),
        ("---\n- a\n---\n", "no 'servefit' table"),
        ("---\na: [1\n---\n", "not YAML"),
        ("---\na: &x [1]\nb: *x\n---\n", "YAML alias"),
        ("---\na: " + "[" * 5000 + "]" * 5000 + "\n---\n", "nest"),
        ("---\na: " + "[" * 40 + "]" * 40 + "\n---\n", "nested too deeply"),
        ("---\na: " + "x" * 300_000 + "\n---\n", "300,0"),
        ("---\na: !!python/object/apply:os.system ['echo']\n---\n", "not YAML"),
        (FRONT.replace("schema: 1", "schema: 99"), "schema version 99"),
        (FRONT.replace("schema: 1", "schema: one"), "'one'"),
        (FRONT.replace("status: proposed", "status: done"), "'done'"),
        (FRONT.replace("status: proposed\n", ""), "status is missing"),
        (FRONT.replace("deciders: [Ada]", "deciders: Ada"), "deciders is 'Ada'"),
        (FRONT.replace("seed: 1", "seed: x"), "seed is 'x'"),
        (FRONT.replace("role: plan", "role: run"), "names no plan"),
        (FRONT.replace("role: plan", "role: spoon"), "'spoon'"),
        (FRONT.replace("sha256: abc", "sha: abc"), "sha256 is missing"),
    ],
)
def test_a_broken_front_matter_is_one_sentence(text, said):
    """What is wrong is said with its value, and nothing is executed or expanded."""
    with pytest.raises(ServefitError, match=r"d\.md") as caught:
        parse_decision(text, where="d.md")
    assert said in caught.value.message
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.message


def test_keys_of_others_are_left_alone():
    """MADR's own keys and a date that YAML reads as one do no harm."""
    text = FRONT.replace("status: proposed", "status: accepted\nconsulted: [Bob]\ntags:\n  - a")
    front = parse_decision(text, where="d.md").front
    assert (front.status, front.date, front.plan.path) == ("accepted", "2026-11-30", "plan.json")


def test_bindings_are_found_in_prose_and_tables_and_not_in_code():
    """A comment right behind a number or word binds it; one in a code block, or after a space, does not."""
    decision = parse(
        "## Evidence\n\n| a | **105 ms**<!--ttft.p99--> |\n|---|---|\n\n`x`<!--device--> and <!-- a note with 5 in it -->\n\n"
        "```\n5 ms<!--no-->\n```\n\n    7 ms<!--no-->\n"
    )
    assert [(b.name, b.written.text, b.section) for b in decision.bindings] == [
        ("ttft.p99", "105 ms", "Evidence"),
        ("device", "x", "Evidence"),
    ]
    assert not decision.bare


@pytest.mark.parametrize(
    "line",
    [
        "on 2026-11-30, at 12:30, in November 2026, on 3 Nov 2026 and in Q3 2026",
        "p99 of llama-3.1-8b on H100 with bf16, GPT-4 and v0.1.2",
        "version 1.2.3 of issue #12",
        "`servefit -n 200` and ``a ` 5``",
        "[text](https://example.org/2024/7) <https://a.org/9> https://b.org/8",
        "1. first\n2. second",
        "<!-- 5 of\nmany 7 lines\n--> words",
        "> 5 GB/s, says the vendor.<!--quoted: ACME datasheet, 2026-01-->",
        "they claim 3,350 GB/s<!--quoted: NVIDIA H100 datasheet, 2024-07-->",
    ],
)
def test_what_is_no_bare_number(line):
    """Dates, names, code, links, list marks and quotations with their source are not findings."""
    assert not parse("## Decision\n\n" + line + "\n").bare


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("it takes 105 ms", "105 ms"),
        ("it takes 105ms.", "105ms"),
        ("| 7 |", "7"),
        ("it is 1.38× slower", "1.38×"),
        ("-3%", "-3%"),
        ("$5", "$5"),
        ("4-bit", "4"),
        ("# Serve on 8 devices", "8 devices"),
        ("in 2 weeks", "2 weeks"),
        ("> 5 GB/s, says the vendor.", "5 GB/s"),
        ("<b>5</b>", "5"),
        ("105 ms <!--ttft.p99-->", "105 ms"),
        ("they claim 3,350 GB/s<!--quoted: NVIDIA-->", "3,350 GB/s"),
        ("they claim 3,350 GB/s<!--quoted: 2024-->", "3,350 GB/s"),
    ],
)
def test_what_is_a_bare_number(line, text):
    """A number that nothing vouches for is found, wherever it stands."""
    assert text in [bare.text for bare in parse("## Decision\n\n" + line + "\n").bare]


def test_line_numbers_and_offsets_are_those_of_the_file():
    """A binding's line and offset point at what is written, with Windows line ends as well."""
    for end in ("\n", "\r\n"):
        text = (FRONT + "\n# T\n\n## Decision\n\n16<!--seats--> seats\n").replace("\n", end)
        decision = parse_decision(text, where="d.md")
        [binding] = decision.bindings
        assert text.split("\n")[binding.line - 1].startswith("16<!--")
        start = binding.offset + binding.written.start
        assert text[start : start + 2] == "16"
        assert [s.title for s in decision.sections] == ["Decision"]


def test_the_written_file_is_in_order(tmp_path):
    """The generated file has the five sections in order, hundreds of bound numbers and no bare one."""
    decision = load_decision(make_case(tmp_path))
    assert [s.title for s in decision.sections] == [
        "Decision", "Evidence", "Assumptions", "Trade-offs", "What would change it",
    ]  # fmt: skip
    assert len(decision.bindings) > 150
    assert not decision.bare


def test_numbers_in_a_sentence_come_with_their_unit():
    """A unit is taken along, another word is not."""
    found = [w.text for _, w in numbers_in("Answers of 256 tokens, 1.5 times as long at 4.5 req/s and 20% of p99")]
    assert found == ["256 tokens", "1.5", "4.5 req/s", "20%"]


def test_a_policy_of_whole_prompts_has_no_token_budget(tmp_path):
    """A server of whole prompts refuses a budget below the context, so the decision names none unless several were tried."""
    plan = make_plan(tmp_path)
    choices = Choices(date="2026-11-30", tool_version="0")

    def said(policy: str, *budgets: int) -> str:
        known = replace(plan, candidates=tuple(
            replace(c, policy=policy, budget_tok=budgets[i % len(budgets)]) for i, c in enumerate(plan.candidates)
        ))  # fmt: skip
        ledger = Ledger(plan=known, candidate=known.candidates[0])
        return "\n".join(Page(ledger=ledger, choices=choices).decision())

    assert "token budget of a step" in said("chunked", 256)
    assert not [p for p in ("none", "static", "dynamic", "continuous") if "<!--budget-->" in said(p, 256)]
    assert "whole prompts that share a step | 256 tok<!--budget-->" in said("static", 256, 2048)


def _with_checks(plan, id_, checks):
    return replace(plan, candidates=tuple(replace(c, checks=checks) if c.id == id_ else c for c in plan.candidates))


def test_the_tightest_is_the_plans(tmp_path):
    """Goodput at its ceiling has the smallest margin and is not the tightest: the decision names what the plan names."""
    plan = make_plan(tmp_path)
    best = plan.candidate(plan.recommended.id)
    full = tuple(
        replace(c, value=1.0, interval=(1.0, 1.0), target=0.99, margin=1 / 99) if c.name == "goodput" else c
        for c in best.checks
    )
    plan = _with_checks(plan, best.id, full)
    said = answer(plan.candidates, plan.recommended, None)
    text = make_case(tmp_path, plan=plan).read_text(encoding="utf-8")
    (label,) = re.findall(r"the tightest is `(.*?)`<!--tightest.check-->", text)
    assert f"the tightest is {label} with" in said and label != "goodput"


def test_an_edge_in_doubt_says_what_it_may_be(tmp_path):
    """Too close to call: the interval and not the value, which reads as a pass; every number bound and verified."""
    plan = make_plan(tmp_path)
    best = plan.candidate(plan.recommended.id)
    top = max((c for c in plan.candidates if group_of(c) == group_of(best)), key=lambda c: c.seats)
    assert top.id != best.id
    near = tuple(
        replace(c, value=0.95 * c.target, interval=(0.9 * c.target, 1.1 * c.target), verdict="too close to call")
        if c.name == "tpot"
        else c
        for c in best.checks
    )
    path = make_case(tmp_path, plan=_with_checks(plan, top.id, near))
    (line,) = [row for row in path.read_text(encoding="utf-8").splitlines() if row.startswith("- High edge")]
    bare = re.sub("<!--.*?-->", "", line)
    target = best.check("tpot").target * 1e3
    assert f"is `too close to call`, {0.9 * target:.1f} ms to {1.1 * target:.1f} ms against {target:.1f} ms" in bare
    assert f"{0.95 * target:.1f}" not in bare and "<!--range.high.low-->" in line


def test_the_nearest_breaking_point_stands_first(tmp_path):
    """Half and twice are equally near: the table is in the order of the factor up or down, whatever the plan's order is."""
    plan = make_plan(tmp_path)
    some = [a for a in plan.assumptions if a.breaking]
    assert len(some) >= 2
    factors = [5.0, 0.5, 1.2, 0.05][: len(some)]
    moved = {a.id: replace(a, breaking=replace(a.breaking, factor=f)) for a, f in zip(some, factors, strict=False)}
    text = make_case(
        tmp_path, plan=replace(plan, assumptions=tuple(moved.get(a.id, a) for a in plan.assumptions))
    ).read_text()
    table = text[text.index("| assumption | unit |") :].partition("\n\n")[0]
    order = sorted(moved.values(), key=lambda a: max(a.breaking.factor, 1 / a.breaking.factor))
    at = [table.index(f"`{a.id}`") for a in order]
    assert at == sorted(at)


def test_what_may_be_nothing_is_up_to(tmp_path):
    """An interval from 0 says "up to": "0.00 ms to 216 ms" claims a figure that no clock gives."""
    plan = make_plan(tmp_path)

    def from_nothing(c):
        checks = tuple(
            replace(k, interval=(0.0, k.interval[1])) if k.name == "ttft" and k.interval else k for k in c.checks
        )
        return replace(c, checks=checks)

    path = make_case(tmp_path, plan=replace(plan, candidates=tuple(map(from_nothing, plan.candidates))))
    row = next(line for line in path.read_text().splitlines() if line.startswith("| p99 TTFT"))
    assert "| up to " in row and "ttft.low" not in row and "ttft.high" in row


def test_a_device_that_is_only_too_close_says_what_its_check_may_be(tmp_path):
    """Not its value alone, which stands on the right side of the target: at the seats with the fewest checks in doubt."""
    plan = make_plan(tmp_path)
    first = next(c for c in plan.candidates if c.figures and c.check("tpot"))

    def doubt(c, seats, *names):
        close = {"value": 0.9, "interval": (0.8, 1.1), "target": 1.0, "verdict": "too close to call"}
        fine = close | {"interval": (0.8, 0.95), "verdict": "pass"}
        checks = tuple(replace(k, **(close if k.name in names else fine), unit="s", at_most=True) for k in c.checks)
        made = replace(
            c, id=f"other/{c.model}/{c.precision}/kv16/chunked/seats{seats}/b1/tp1/x1", device="other", seats=seats
        )
        return replace(made, policy="chunked", checks=checks, verdict="too close to call")

    both, one = doubt(first, 8, "ttft", "tpot"), doubt(first, 16, "tpot")
    ledger = Ledger(plan=replace(plan, candidates=(*plan.candidates, both, one)), candidate=first)
    page = Page(ledger=ledger, choices=Choices(date="2026-11-30", tool_version="0"))
    said = [re.sub("<!--.*?-->", "", line) for line in page.never_pass() if "`other`" in line]
    assert len(said) == 1 and "`chunked, 16 seats`" in said[0], said
    assert "| 900 ms, but may be 800 ms to 1.10 s | 1.00 s |" in said[0]
    assert ledger.value("on/other#nearest.candidate") == "chunked, 8 seats"  # as decisions of earlier versions named it


def test_a_rate_that_the_draw_made_is_said_to_be(tmp_path):
    """Served more than asked: the draw's doing, and said. Less is the last answers' doing too: nothing is said."""
    plan = make_plan(tmp_path)
    first = next(c for c in plan.candidates if c.figures)
    asked = plan.spec.workload.rate_req_per_s

    def said(served, failed=0):
        figures = replace(first.figures, req_per_s=served, failed=failed, waiting_at_end=False)
        page = Page(
            ledger=Ledger(plan=plan, candidate=replace(first, figures=figures)),
            choices=Choices(date="2026-11-30", tool_version="0"),
        )
        return "Arrivals are drawn for" in "".join(page.evidence())

    assert [said(asked * 1.035), said(asked), said(asked * 0.9), said(asked * 1.035, failed=3)] == [
        True,
        False,
        False,
        False,
    ]
