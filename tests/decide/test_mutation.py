"""Change one thing at a time in a generated decision: every change is found, and the untouched file has no finding."""

import re
import shutil
from pathlib import Path

import pytest

from decide.case import make_case
from servefit.decide.decision import load_decision, parse_decision
from servefit.decide.verify import verify, verify_text
from servefit.errors import ServefitError

SWAPS = {"ms": "s", "s": "ms", "GB": "GiB", "MB": "GB", "B": "MB", "%": "", "tok": "ktok", "tokens": "ktok", "req/s": "req/min",
         "tok/s": "tok/min", "$/h": "/Mtok", "$/Mtok": "/h", "×": "%", "$": "tok", "": " ms"}  # fmt: skip


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Path:
    """A decision with a calibration and two runs."""
    return make_case(tmp_path_factory.mktemp("case"), runs=2)


def mutations(path: Path):
    """Every (what, text) in which one bound number, unit, sign, name or word is changed."""
    decision = load_decision(path)
    text = decision.text
    for b in decision.bindings:
        start, end = b.offset + b.written.start, b.offset + b.written.end
        comment = b.offset + b.column
        head, tail = text[:start], text[end:]
        at = f"line {b.line} {b.name}"
        yield f"{at}: name", text[:comment] + f"<!--{b.name}x-->" + text[text.index("-->", comment) + 3 :]
        if b.written.number is None:
            if b.name != "overturns" and not b.written.nothing:
                yield f"{at}: word", head + b.written.text + "x" + tail
            continue
        yield f"{at}: comment gone", text[:comment] + text[text.index("-->", comment) + 3 :]
        digits = [i for i, c in enumerate(b.written.text) if c.isdigit()]
        for i in sorted({digits[0], digits[-1]}):
            other = str((int(b.written.text[i]) + 1) % 10)
            yield f"{at}: digit {i}", head + b.written.text[:i] + other + b.written.text[i + 1 :] + tail
        unit = b.written.unit.removeprefix("$")
        bare = b.written.text[: len(b.written.text) - len(unit)].rstrip() if unit else b.written.text
        space = "" if b.written.unit in ("%", "×") else " "
        if b.written.number != 0:
            yield f"{at}: unit", head + bare + space + SWAPS[b.written.unit].strip() + tail
            flipped = f"-{b.written.text.lstrip('+')}" if b.written.number > 0 else b.written.text.lstrip("-")
            yield f"{at}: sign", head + flipped + tail
        yield f"{at}: no unit known", head + bare + " parsec" + tail


@pytest.mark.slow
def test_every_changed_number_unit_sign_name_and_word_is_found(case):
    """Hundreds of files with one change each: none of them verifies."""
    survivors, count, known = [], 0, verify(case).ledger
    for what, text in mutations(case):
        count += 1
        if verify_text(parse_decision(text, where="d.md"), case, known=known).holds:
            survivors.append(what)
    assert count > 800
    assert not survivors


def test_the_untouched_file_has_no_finding(case):
    """Nothing is found where nothing was changed."""
    report = verify(case)
    assert not report.findings
    assert report.checked > 180


FRONT_CHANGES = [
    ("candidate", r"seats16/b2048", "seats32/b2048"),
    ("candidate unknown", r"seats16/b2048", "seats17/b2048"),
    ("seed", r"  seed: 1", "  seed: 2"),
    ("plan path", r'path: "plan.json"', 'path: "plan2.json"'),
    ("run path", r'path: "real0"', 'path: "real1"'),
    ("run name", r'name: "real0"', 'name: "real9"'),
    ("role", r"role: run", "role: other"),
]


@pytest.mark.parametrize(("what", "old", "new"), FRONT_CHANGES, ids=[c[0] for c in FRONT_CHANGES])
def test_every_change_of_the_front_matter_is_found(case, what, old, new):
    """The configuration, the seed, and every input's path, name and role are held."""
    text = case.read_text(encoding="utf-8")
    changed = re.sub(old, new, text, count=1)
    assert changed != text
    assert not verify_text(parse_decision(changed, where="d.md"), case).holds


def test_every_changed_hash_is_found(case):
    """One hex digit of any input's hash."""
    text = case.read_text(encoding="utf-8")
    hashes = list(re.finditer(r'sha256: "([0-9a-f]{64})"', text))
    assert len(hashes) == 4  # plan, calibration, two runs
    for match in hashes:
        digit = "0" if match.group(1)[0] != "0" else "1"
        changed = text[: match.start(1)] + digit + text[match.start(1) + 1 :]
        codes = [f.code for f in verify_text(parse_decision(changed, where="d.md"), case).findings]
        assert codes == ["SOURCE"]


@pytest.mark.parametrize(
    "name", ["plan.json", "calibration.json", "real0/run.json", "real0/requests.jsonl", "real1/requests.jsonl"]
)
def test_one_byte_of_any_input_is_found(case, tmp_path, name):
    """Eight bytes of every input, changed one at a time."""
    shutil.copytree(case.parent, tmp_path / "copy")
    path = tmp_path / "copy" / "decision.md"
    target = tmp_path / "copy" / name
    data = target.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 8)):
        target.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            assert not verify(path).holds, f"{name} byte {at}"
        except ServefitError as error:
            assert error.exit_code == 2  # noqa: PT017 - a damaged input may also be one that cannot be read
    target.write_bytes(data)
    assert verify(path).holds


@pytest.mark.parametrize("title", ["Decision", "Evidence", "Assumptions", "Trade-offs", "What would change it"])
def test_a_section_that_is_gone_renamed_or_moved_is_found(case, title):
    """Each of the five sections: removed, renamed, put last or first."""
    decision = load_decision(case)
    lines = decision.lines
    section = next(s for s in decision.sections if s.title == title)
    before, own, after = lines[: section.line - 1], lines[section.line - 1 : section.end], lines[section.end :]
    first = decision.sections[0].line - 1
    elsewhere = before + after + own if title != "What would change it" else before[:first] + own + before[first:]
    for changed in (before + after, [*before, own[0] + "s", *own[1:], *after], elsewhere):
        codes = {f.code for f in verify_text(parse_decision("\n".join(changed), where="d.md"), case).findings}
        assert codes & {"MISSING", "ORDER"}


def test_every_line_of_the_tables_is_needed(case):
    """A check's row, a failing device's row, a rejected candidate's row and the overturning sentence: none may go."""
    decision = load_decision(case)
    must = [
        n
        for n, line in enumerate(decision.lines, 1)
        if re.match(r"\| (p99 T|memory \||goodput \||`xeon|`a100)|The decision is over", line)
    ]
    assert len(must) >= 8
    for number in must:
        text = "\n".join(decision.lines[: number - 1] + decision.lines[number:])
        holds = verify_text(parse_decision(text, where="d.md"), case).holds
        # The rejected candidate is named a second time, where its seats' cost and gain are stated.
        assert not holds or "a100-80gb chunked" in decision.lines[number - 1]


def test_prose_may_be_edited(case):
    """Words, order of sentences, a paragraph more: no finding."""
    text = case.read_text(encoding="utf-8").replace("It meets every target", "After long talks: all targets are met")
    text = text.replace("## Trade-offs\n", "## Trade-offs\n\nWe looked at all of them on 2026-11-29, see `notes 7`.\n")
    assert not verify_text(parse_decision(text, where="d.md"), case).findings
