"""Findings that need more than a changed character: thin margins, failing checks, inputs that contradict themselves."""

from dataclasses import replace

import pytest

from decide.case import make_case, make_plan
from servefit.decide.choice import choose, find_candidate
from servefit.decide.verify import fixed, verify
from servefit.errors import AnswerIsNo, ServefitError
from servefit.plan.files import save_plan


def with_check(plan, candidate_id, name, **changes):
    """The plan with one check of one candidate changed."""
    candidates = []
    for c in plan.candidates:
        if c.id == candidate_id:
            checks = tuple(replace(k, **changes) if k.name == name else k for k in c.checks)
            candidates.append(replace(c, checks=checks, verdict=changes.get("verdict", c.verdict)))
        else:
            candidates.append(c)
    return replace(plan, candidates=tuple(candidates))


def codes(path):
    """The findings' codes."""
    return {f.code for f in verify(path).findings}


@pytest.fixture
def plan(tmp_path):
    """The golden plan on disk in `tmp_path`."""
    return make_plan(tmp_path)


def test_one_configuration_exactly(plan):
    """None named is the plan's pick; a plan without one, an ambiguous name and an unknown one are refused."""
    assert choose(plan, None).seats == 16
    assert find_candidate(plan, "seats32").seats == 32
    with pytest.raises(AnswerIsNo, match="none to decide on"):
        choose(replace(plan, recommended=None), None)
    with pytest.raises(ServefitError, match="names 4 configurations"):
        choose(plan, "a100-80gb")
    with pytest.raises(ServefitError, match="no configuration 'seats17'"):
        choose(plan, "seats17")


def test_a_failing_configuration_needs_a_reason(plan, tmp_path):
    """Refused with the check and its value; with a reason it is written, and the reason is in the file."""
    with pytest.raises(AnswerIsNo, match=r"p99 TPOT 34\.5 ms against 30\.0 ms"):
        choose(plan, "seats64")
    path = make_case(tmp_path, runs=0, candidate="seats64", plan=plan, despite="We tested it with 3 customers.")
    report = verify(path)
    assert "We tested it with 3 customers." in path.read_text()
    assert report.holds
    assert {f.code for f in report.findings} == {"FAILS"}
    path.write_text(path.read_text().replace("  despite:", "  # despite:"))
    assert not verify(path).holds


def test_a_configuration_that_was_not_simulated_can_be_written(plan, tmp_path):
    """Where nothing was observed "-" is written and verified, and the overturning expression is still understood."""
    nothing = {"value": None, "interval": None, "margin": None, "verdict": "fail"}
    first = plan.candidates[0]
    checks = tuple(replace(k, **nothing) if k.name != "memory" else k for k in first.checks)
    bare = replace(plan, candidates=(replace(first, figures=None, checks=checks), *plan.candidates[1:]))
    save_plan(bare, tmp_path / "plan.json")
    path = make_case(tmp_path, runs=0, plan=bare, candidate=first.id, despite="It is all we have.")
    assert "| p99 TTFT | at most 500 ms<!--ttft.target--> | -<!--ttft.value--> |" in path.read_text()
    report = verify(path)
    assert report.holds
    assert {f.code for f in report.findings} == {"FAILS"}


def test_a_margin_inside_its_interval_is_thin(plan, tmp_path):
    """A candidate that is too close to call is not a pass."""
    best = plan.recommended.id
    thin = with_check(plan, best, "tpot", interval=(0.02, 0.031), verdict="too close to call")
    save_plan(thin, tmp_path / "plan.json")
    with pytest.raises(AnswerIsNo, match="too close to call"):
        choose(thin, None)
    path = make_case(tmp_path, runs=0, plan=thin, despite="Nothing else is there.")
    assert codes(path) == {"THIN"}


def test_many_that_pass_are_grouped(plan, tmp_path):
    """Beyond a dozen, a group gets a line with its range and why it was rejected; the file still verifies."""
    first = plan.candidate(plan.recommended.id)
    others = []
    for policy, extra, usd in (("continuous", 10**9, 1.79), ("static", 0, 2.5), ("dynamic", 0, None)):
        for seats in (16, 24, 32, 48, 64):
            memory = replace(first.memory, needed_bytes=first.memory.needed_bytes + extra)
            cost = replace(first.cost, usd_per_hour=usd) if usd else None
            id_ = first.id.replace("chunked/seats16", f"{policy}/seats{seats}")
            others.append(replace(first, id=id_, policy=policy, seats=seats, memory=memory, cost=cost))
    many = replace(plan, candidates=plan.candidates + tuple(others))
    save_plan(many, tmp_path / "plan.json")
    path = make_case(tmp_path, runs=0, plan=many)
    text = path.read_text()
    report = verify(path)
    assert not report.findings
    assert report.ledger.value("range.high.seats") == 32  # its own policy's edge, not that of the others' 64
    assert report.ledger.value("any/static#range.high.seats") == 64
    assert "Takes more memory (+1.00 GB<!--with/continuous#delta.memory-->) and carries no more." in text
    assert "Dearer by +$0.71/h<!--with/static#delta.cost-->." in text
    assert "Has no known price." in text
    assert text.count("- `a100-80gb`:\n  - `") == 1  # one heading a device, its groups under it
    gone = "\n".join(line for line in text.split("\n") if "any/static#" not in line)
    path.write_text(gone)
    assert [f.code for f in verify(path).findings] == ["MISSING"] * 5


def test_a_plan_that_contradicts_itself_is_found(plan, tmp_path):
    """A margin or verdict in the plan that does not follow from its own values."""
    for changes in ({"margin": 0.9}, {"verdict": "fail"}):
        wrong = with_check(plan, plan.candidates[0].id, "tpot", **changes)
        save_plan(wrong, tmp_path / "plan.json")
        assert codes(make_case(tmp_path, runs=0, plan=wrong)) == {"SOURCE"}


def test_a_datasheet_alone_is_a_note(plan, tmp_path):
    """A plan without a measured step time verifies, with a note that nothing was measured."""
    bases = tuple(replace(b, source="spec", lower_bound=True) for b in plan.bases)
    bare = replace(plan, bases=bases)
    save_plan(bare, tmp_path / "plan.json")
    path = make_case(tmp_path, runs=0, plan=bare)
    report = verify(path)
    assert report.holds
    assert [(f.code, f.level) for f in report.findings] == [("UNMEASURED", "warning")]


def test_a_run_that_is_no_input_is_unmeasured(tmp_path):
    """A number bound to a run that is not among the inputs."""
    path = make_case(tmp_path, runs=1)
    path.write_text(path.read_text().replace("run/real0#", "run/real7#"))
    assert "UNMEASURED" in codes(path)


def test_an_empty_place_for_the_authors_own_is_a_finding(tmp_path):
    """A note while it is proposed, an error once it is accepted."""
    path = make_case(tmp_path, own=())
    assert [(f.code, f.level) for f in verify(path).findings] == [("MISSING", "warning")]
    path.write_text(path.read_text().replace("status: proposed", "status: accepted"))
    assert not verify(path).holds


def test_a_file_without_bindings_has_no_coverage(tmp_path):
    """Nothing bound means nothing was checked."""
    import re

    path = make_case(tmp_path)
    path.write_text(re.sub(r"[\d,.]+[^|\n]*?<!--.*?-->|`[^`]*`<!--.*?-->|\w+<!--.*?-->", "", path.read_text()))
    assert "COVERAGE" in codes(path)


def test_fix_touches_numbers_alone(tmp_path):
    """Stale numbers are respelled in their style; words, prose and everything else stay byte for byte."""
    path = make_case(tmp_path)
    good = path.read_text()
    stale = good.replace("210 ms<!--ttft.value-->", "9,999 ms<!--ttft.value-->").replace("+58.0%<!--", "−7.00%<!--")
    stale = stale.replace("pass<!--ttft.verdict-->", "fail<!--ttft.verdict-->")
    path.write_text(stale)
    text = fixed(verify(path))
    assert text == stale.replace("9,999 ms", "210 ms").replace("−7.00%", "+58.00%")


def test_fix_is_refused_on_other_inputs(tmp_path):
    """Numbers of another plan are never spliced into a decision that names this one."""
    path = make_case(tmp_path)
    (tmp_path / "plan.json").write_text((tmp_path / "plan.json").read_text().replace("0.21", "0.22"))
    with pytest.raises(ServefitError, match="not the recorded ones"):
        fixed(verify(path))


def test_a_newer_plan_is_refused(tmp_path):
    """The schema version is read: a plan of a newer servefit is one sentence, whatever its hash."""
    path = make_case(tmp_path)
    plan = tmp_path / "plan.json"
    import re

    plan.write_text(re.sub(r'"schema_version": \d+', '"schema_version": 999', plan.read_text()))
    with pytest.raises(ServefitError, match="schema version 999") as caught:
        verify(path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("words", "holds"),
    [("at most", True), ("at least", False), ("At least", False), ("up to", True), ("**no more than", True), ("not less than", False), ("≤", True),
     (">=", False), ("a target of", True), ("it breaks above", True), ("", True)],
)  # fmt: skip
def test_a_target_keeps_its_side(tmp_path, words, holds):
    """A TTFT of "at least 1.00 s" is no promise, though the number is the target: words for the other side are found, others are prose."""
    path = make_case(tmp_path)
    text = path.read_text(encoding="utf-8")
    for name, mine in (("ttft.target", words), ("memory.target", words)):
        at = text.index(f"<!--{name}-->")
        cell = text.rindex("|", 0, at)
        written = text[cell + 1 : at].strip()
        assert written.startswith("at most ")
        text = text[: cell + 1] + f" {mine} {written.removeprefix('at most ')}" + text[at:]
    path.write_text(text, encoding="utf-8")
    findings = [f for f in verify(path).findings if f.level == "error"]
    assert [(f.code, f.name, f.recomputed) for f in findings] == (
        [] if holds else [("SIDE", "ttft.target", "at most"), ("SIDE", "memory.target", "at most")]
    )


def test_a_floor_keeps_its_side_and_fix_leaves_it(tmp_path):
    """Goodput is at least its target; "at most" is found, and --fix, which respells numbers, does not touch words."""
    path = make_case(tmp_path)
    text = path.read_text(encoding="utf-8")
    wrong = text.replace("at least", "at most")
    assert wrong != text and codes(path) == set()
    path.write_text(wrong, encoding="utf-8")
    assert [(f.code, f.name) for f in verify(path).findings] == [("SIDE", "goodput.target")]
    assert fixed(verify(path)) == wrong


BESIDE = ["TTFT—900 ms was seen", "TTFT:900ms", "up-to-900 ms", "TTFT≈900 ms", "TTFT/900 ms", "TTFT…900 ms", "don't—42% fail", "TTFT is\n900. That is bad",
          "TTFT\u200b900 ms", "v900 ms", "p99 TTFT_900 ms", "@900 ms", "§900 ms", "_900 ms_", "__900 ms__", "*TTFT*900ms", "`900` ms", "``900`` ms", "`900 ms`"]  # fmt: skip


@pytest.mark.parametrize("said", BESIDE)
def test_no_number_hides_behind_what_stands_before_it(tmp_path, said):
    """A dash, a colon, emphasis, an invisible space or a code span around nothing but a number makes no name of it."""
    path = make_case(tmp_path)
    path.write_text(path.read_text(encoding="utf-8") + f"\n- {said}\n", encoding="utf-8")
    assert [f.code for f in verify(path).findings if f.level == "error"] == ["BARE"]


@pytest.mark.parametrize(
    "name",
    [
        "p99 s",
        "llama-3.1-8b",
        "a100-80gb",
        "`seats16/b2048`",
        "#12",
        "version 0.1.0",
        "H100",
        "int8",
        "2026-11-30",
        "Q3 2026",
        "gpt-4o",
    ],
)
def test_names_stay_names(tmp_path, name):
    """Digits within a name are no number."""
    path = make_case(tmp_path)
    path.write_text(path.read_text(encoding="utf-8") + f"\n- About {name} as such.\n", encoding="utf-8")
    assert not [f for f in verify(path).findings if f.level == "error"]


@pytest.mark.parametrize("behind", ["k seats", " thousand seats", "% of seats", "½ seats", "<sup>2</sup>"])
def test_nothing_behind_a_number_multiplies_it(tmp_path, behind):
    """The comment of a bound number ends it: what reads on is another number."""
    path = make_case(tmp_path)
    text = path.read_text(encoding="utf-8")
    at = text.index("<!--seats-->") + len("<!--seats-->")
    path.write_text(text[:at] + behind + text[at:].removeprefix(" seats"), encoding="utf-8")
    assert [f.code for f in verify(path).findings if f.level == "error"] == (["BARE"] if "sup" in behind else ["STALE"])


@pytest.mark.parametrize("minus", ["\u2011", "\u2012", "—", "\uff0d", "<b>-", "minus "])
def test_a_margin_does_not_turn_negative(tmp_path, minus):
    """A dash of any kind before a margin reads as its sign."""
    path = make_case(tmp_path)
    text = path.read_text(encoding="utf-8")
    at = text.index("<!--tightest.margin-->")
    plus = text.rindex("+", 0, at)
    path.write_text(text[:plus] + minus + text[plus + 1 :], encoding="utf-8")
    assert {f.code for f in verify(path).findings if f.level == "error"} == {"STALE"}
