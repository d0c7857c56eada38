"""The decision file: YAML front matter and Markdown in which every number is bound to a named quantity.

A number is bound by an invisible comment right behind it: `105 ms<!--ttft.p99-->`. A vendor's claim is quoted with its
source and date: `3,350 GB/s<!--quoted: NVIDIA H100 datasheet, 2024-07-->`. Everything else is the author's prose.

Schema history
    1   2026-11-30   first
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from servefit.decide.written import NUMBER, Written, is_unit, read_back
from servefit.errors import ServefitError
from servefit.files import read_text
from servefit.records import content_sha256

SCHEMA_VERSION = 1
MAX_BYTES = 4 * 2**20
MAX_FRONT_CHARS = 64 * 2**10
MAX_DEPTH = 16

SECTIONS = ("Decision", "Evidence", "Assumptions", "Trade-offs", "What would change it")
"""The headings, in their order."""

STATUSES = ("proposed", "accepted", "rejected", "deprecated", "superseded", "overturned")
"""MADR's, and `overturned`: a measurement met what the file itself says would change it."""

Role = Literal["plan", "run", "calibration", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A file or run folder that the decision rests on."""

    role: Role
    path: str
    """Relative to the decision file, with forward slashes."""
    sha256: str
    name: str = ""
    """How a run is named in bound names: `run/NAME#ttft.p99`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A run that the decision was held against."""

    run: str
    sha256: str
    date: str
    result: Literal["confirmed", "overturned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The front matter. Keys that are not ours (MADR's `consulted`, your own) are left alone."""

    status: str
    date: str
    deciders: tuple[str, ...]
    schema_version: int
    tool_version: str
    candidate: str
    seed: int
    inputs: tuple[Input, ...]
    despite: str = ""
    """Why this configuration was chosen though a check does not pass; empty where all do."""
    checked_against: tuple[Checked, ...] = ()

    @property
    def plan(self) -> Input:
        """The plan that the numbers come from."""
        return next(i for i in self.inputs if i.role == "plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A bound number or word: what is written and the name it is bound to."""

    name: str
    line: int
    """1-based line in the file."""
    offset: int
    """Where in the text the line starts: `text[offset + written.start : offset + written.end]` is what is written."""
    column: int
    """Where in the line the comment starts."""
    written: Written
    section: str
    """The heading it stands under; "" before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bare:
    """A number that nothing vouches for."""

    text: str
    line: int
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading of level two and the lines under it (1-based, the heading's own line first)."""

    title: str
    line: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision file as text, with its parts found."""

    text: str
    front: Front
    front_end: int
    """Offset in `text` of the line that closes the front matter."""
    body_line: int
    """1-based line at which the body starts."""

    @cached_property
    def lines(self) -> list[str]:
        """The file's lines without their ends."""
        return [line.removesuffix("\r") for line in self.text.split("\n")]

    @cached_property
    def offsets(self) -> list[int]:
        """Where each line starts in the text."""
        out, at = [], 0
        for line in self.text.split("\n"):
            out.append(at)
            at += len(line) + 1
        return out

    @cached_property
    def layout(self) -> "Layout":
        """Which lines are code or quotation, and the headings."""
        return _layout("\n".join(self.lines[self.body_line - 1 :]), self.body_line)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The level-two headings in the order of the file."""
        heads = [*self.layout.heads, ("", len(self.lines) + 1)]
        return tuple(Section(title=t, line=at, end=after - 1) for (t, at), (_, after) in pairwise(heads))

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """Every bound number and word in the order of the file."""
        return tuple(b for b in self.comments if not _is_quoted(b.name))

    @cached_property
    def comments(self) -> tuple[Binding, ...]:
        """Every binding comment in the order of the file, quotations among them."""
        return tuple(
            Binding(
                name=match.group(1).strip(),
                line=number,
                offset=self.offsets[number - 1],
                column=match.start(),
                written=read_back(line[: match.start()]),
                section=self.section_at(number),
            )
            for number, line in self._prose()
            for match in _BINDING.finditer(_blank_code(line, keep_ends=True))
        )

    def section_at(self, line: int) -> str:
        """The heading that the line stands under, "" before the first."""
        return next((s.title for s in self.sections if s.line <= line <= s.end), "")

    def _prose(self) -> Iterable[tuple[int, str]]:
        for number in range(self.body_line, len(self.lines) + 1):
            if number not in self.layout.code:
                yield number, self.lines[number - 1]

    @cached_property
    def bare(self) -> tuple[Bare, ...]:
        """Every number in the prose that is not bound and is no date, code, link or quotation with its source."""
        found: list[Bare] = []
        sourced = {line for block in self.layout.quotes if self._has_source(block) for line in block}
        comments: dict[int, list[Binding]] = {}
        for binding in self.comments:
            comments.setdefault(binding.line, []).append(binding)
        inside = False  # a free comment that runs over several lines
        for number, line in self._prose():
            bound = [b.written for b in comments.get(number, ()) if not _is_quoted(b.name) or _has_source(b.name)]
            text, inside = _blank(line, bound, inside=inside)
            if number in sourced:
                continue
            found.extend(Bare(text=m.group().strip(), line=number) for m in _BARE.finditer(text) if _is_number(text, m))
            found.extend(
                Bare(text=b.written.text, line=number, why="a quotation needs a source and a date")
                for b in comments.get(number, ())
                if _is_quoted(b.name) and not _has_source(b.name)
            )
        return tuple(dict.fromkeys(found))

    def _has_source(self, block: range) -> bool:
        return any(_is_quoted(b.name) and _has_source(b.name) and b.line in block for b in self.comments)


# --- reading --------------------------------------------------------------------------------------------------------

_FENCE = re.compile(r"---[ \t]*\r?\n")
_CLOSE = re.compile(r"^---[ \t]*$", re.MULTILINE)


def load_decision(path: Path) -> Decision:
    """The decision in the file (or in the folder's decision.md). Raises ServefitError with one sentence for any fault."""
    path = path / "decision.md" if path.is_dir() else path
    return parse_decision(read_text(path, max_bytes=MAX_BYTES), where=str(path))


def resting_on(file: Path) -> tuple[Path, ...]:
    """The decisions in the file's folder that rest on it as it is now: writing over it would leave them with nothing."""
    if not file.is_file():
        return ()
    out, actual = [], content_sha256(file)
    for path in sorted(file.parent.glob("*.md")):
        try:
            with path.open("rb") as text:
                if text.read(3) != b"---":
                    continue
            inputs = load_decision(path).front.inputs
        except (ServefitError, OSError):
            continue
        if any(i.sha256 == actual and at(path, i.path).exists() and at(path, i.path).samefile(file) for i in inputs):
            out.append(path)
    return tuple(out)


def at(path: Path, item: str) -> Path:
    """Where an input of the decision at `path` lies: inputs are relative to its folder."""
    return path.parent / Path(PurePosixPath(item))


def parse_decision(text: str, *, where: str) -> Decision:
    """The decision in `text`. Raises ServefitError where it is none, or from a newer servefit."""
    hint = "A decision is what `servefit decide` writes."
    opening = _FENCE.match(text)
    if not opening:
        raise ServefitError(f"{where} is no decision: it has no front matter.", hint=hint)
    closing = _CLOSE.search(text.replace("\r", " "), opening.end())
    if not closing:
        raise ServefitError(f"{where}: the front matter has no closing line of three dashes.", hint=hint)
    front = read_front(text[opening.end() : closing.start()], where=where)
    body_line = text.count("\n", 0, closing.end()) + 2
    return Decision(text=text, front=front, front_end=closing.start(), body_line=body_line)


def read_front(text: str, *, where: str) -> Front:
    """The front matter in `text` (YAML). Raises ServefitError naming what is missing or wrong."""
    value = _yaml(text, where=where)
    ours = value.get("servefit") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(ours, dict):
        raise ServefitError(
            f"{where} is no decision: its front matter has no 'servefit' table.",
            hint="A decision is what `servefit decide` writes.",
        )
    version = ours.get("schema")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ServefitError(
            f"{where}: front matter: servefit.schema is {version!r}, which is no version.", hint="Write 1."
        )
    if version > SCHEMA_VERSION:
        raise ServefitError(
            f"{where} has schema version {version}; this servefit reads up to {SCHEMA_VERSION}.",
            hint="Update servefit.",
        )
    status = _want(value, "status", str, where)
    if status not in STATUSES:
        raise ServefitError(
            f"{where}: front matter: status is '{status}'.", hint=f"Write one of {', '.join(STATUSES)}."
        )
    inputs = tuple(_input(row, where) for row in _want(ours, "inputs", list, where))
    if sum(i.role == "plan" for i in inputs) != 1:
        raise ServefitError(
            f"{where}: front matter: servefit.inputs names no plan, or more than one.", hint="Name one."
        )
    return Front(
        status=status,
        date=str(value.get("date", "")),
        deciders=tuple(str(d) for d in _want(value, "deciders", list, where)),
        schema_version=version,
        tool_version=_want(ours, "version", str, where),
        candidate=_want(ours, "candidate", str, where),
        seed=_want(ours, "seed", int, where),
        inputs=inputs,
        despite=str(ours.get("despite") or ""),
        checked_against=tuple(_checked(row, where) for row in ours.get("checked_against") or ()),
    )


def _yaml(text: str, *, where: str) -> Any:
    import yaml

    if len(text) > MAX_FRONT_CHARS:
        raise ServefitError(
            f"{where}: the front matter is {len(text):,} characters long.", hint="Is it the right file?"
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ServefitError(f"{where}: the front matter is nested too deeply.", hint="Is it the right file?")
            if isinstance(event, yaml.AliasEvent):
                raise ServefitError(f"{where}: the front matter uses a YAML alias.", hint="Write the value out.")
        return yaml.load(text, Loader=loader)  # noqa: S506 - one of the two safe loaders
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f" (line {mark.line + 2})" if mark else ""
        said = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise ServefitError(
            f"{where}: the front matter is not YAML{at}: {said}.", hint="Quote values with a colon."
        ) from None


def _want(table: Any, key: str, kind: type, where: str) -> Any:
    value = table.get(key) if isinstance(table, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        said = "is missing" if value is None else f"is {value!r}"
        raise ServefitError(f"{where}: front matter: {key} {said}.", hint=f"It is a {_KIND[kind]}.")
    return value


_KIND = {str: "text", int: "whole number", list: "list"}


def _input(row: Any, where: str) -> Input:
    role = _want(row, "role", str, where)
    if role not in ("plan", "run", "calibration", "other"):
        raise ServefitError(
            f"{where}: front matter: an input has the role '{role}'.", hint="plan, run, calibration or other."
        )
    path = _want(row, "path", str, where)
    if "\0" in path:
        raise ServefitError(f"{where}: front matter: an input's path holds a zero byte.", hint="Write a path.")
    return Input(role=role, path=path, sha256=_want(row, "sha256", str, where), name=str(row.get("name") or ""))


def _checked(row: Any, where: str) -> Checked:
    result = _want(row, "result", str, where)
    if result not in ("confirmed", "overturned"):
        raise ServefitError(
            f"{where}: front matter: a check has the result '{result}'.", hint="confirmed or overturned."
        )
    return Checked(
        run=_want(row, "run", str, where),
        sha256=_want(row, "sha256", str, where),
        date=str(row.get("date") or ""),
        result=result,
    )


# --- recording a check ----------------------------------------------------------------------------------------------


def recorded(decision: Decision, checked: Checked, *, where: str) -> str:
    """The file's text with one more check on record, newest first; an overturned decision gets that status.

    Only the front matter changes. Raises ServefitError where it is written so that a line cannot be added.
    """
    text = decision.text
    head, rest = text[: decision.front_end], text[decision.front_end :]
    end = "\r\n" if "\r\n" in head else "\n"
    if checked.result == "overturned":
        head = re.sub(r"^status:[^\r\n]*", "status: overturned", head, count=1, flags=re.MULTILINE)
    entry = [
        f"    - run: {json.dumps(checked.run, ensure_ascii=False)}",
        f"      sha256: {json.dumps(checked.sha256)}",
        f"      date: {checked.date}",
        f"      result: {checked.result}",
    ]
    opening = re.search(r"^  checked_against:[ \t]*\r?\n", head, flags=re.MULTILINE)
    if not opening:
        entry.insert(0, "  checked_against:")
        opening = re.search(r"^servefit:[ \t]*\r?\n", head, flags=re.MULTILINE)
    if opening:
        head = head[: opening.end()] + end.join(entry) + end + head[opening.end() :]
    out = head + rest
    now = parse_decision(out, where=where).front
    status = "overturned" if checked.result == "overturned" else decision.front.status
    if now.checked_against != (checked, *decision.front.checked_against) or now.status != status:
        raise ServefitError(
            f"{where}: the result cannot be added to the front matter as it is laid out.",
            hint="Write 'servefit:' on a line of its own, with two spaces before the keys under it.",
        )
    return out


# --- layout: code, quotations, headings -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What Markdown makes of the body's lines (1-based in the file)."""

    code: frozenset[int]
    quotes: tuple[range, ...]
    heads: tuple[tuple[str, int], ...]


def _layout(body: str, first: int) -> Layout:
    from markdown_it import MarkdownIt

    code: set[int] = set()
    quotes: list[range] = []
    heads: list[tuple[str, int]] = []
    tokens = MarkdownIt("commonmark").disable("inline").parse(body)
    for index, token in enumerate(tokens):
        if token.map is None:
            continue
        lines = range(token.map[0] + first, token.map[1] + first)
        if token.type in ("fence", "code_block"):
            code.update(lines)
        elif token.type == "blockquote_open":
            quotes.append(lines)
        elif token.type == "heading_open" and token.tag == "h2" and token.level == 0:
            title = re.sub(r"<!--.*?-->", "", tokens[index + 1].content).strip()
            heads.append((title, lines.start))
    return Layout(code=frozenset(code), quotes=tuple(quotes), heads=tuple(heads))


# --- bare numbers ---------------------------------------------------------------------------------------------------

_BINDING = re.compile(r"(?<=\S)<!--(.*?)-->")
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_BARE = re.compile(rf"(?<![\d])(?<!\d[.,]){NUMBER}(?: ?(?:[A-Za-zµ%×/]+))?")
_DATES = re.compile(
    r"\b\d{4}-\d{2}(?:-\d{2})?(?:[T ]\d{2}:\d{2}(?::\d{2})?(?:Z|[+-]\d{2}:?\d{2})?)?\b"
    r"|\b(?:\d{1,2}\.? )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?(?: \d{1,2},?)? \d{4}\b"
    r"|\b\d{1,2}:\d{2}(?::\d{2})?\b"
    r"|\bQ[1-4] \d{4}\b"
)
_LINKS = re.compile(r"(?<=\])\([^)\s]*(?:\s+\"[^\"]*\")?\)|<https?://[^>]*>|https?://\S+|(?<=\]): +\S+")
_LIST_MARK = re.compile(r"^(\s*(?:>\s*)*)\d{1,2}[.)](?=\s)")
_ONLY_NUMBER = re.compile(rf" *{NUMBER}(?: ?[A-Za-zµ%×/]+)? *")
_SPACED_WORD = re.compile(r"[ \u00a0\u2009\u202f]([A-Za-zµμ%×/]+)")
_HEAD = re.compile(r"[\w.#§@+-]*$")
"""What a name may begin with, right before its digits: "llama-", "p", "#". A dash, a colon, a slash or a sign ends it."""
_SOURCE_DATE = re.compile(r"\b(?:19|20)\d{2}(?:-\d{2}(?:-\d{2})?)?\b")


def _is_quoted(name: str) -> bool:
    return name.startswith("quoted")


def _has_source(name: str) -> bool:
    said = name.removeprefix("quoted").lstrip(": ")
    date = _SOURCE_DATE.search(said)
    return bool(date) and bool(re.search(r"[^\W\d]{2}", said.replace(date.group(), "") if date else said))


def _blank_code(line: str, *, keep_ends: bool = False) -> str:
    """The line with what is in code spans blanked, its length kept; the ticks stay with `keep_ends`."""

    def blank(match: re.Match[str]) -> str:
        if _ONLY_NUMBER.fullmatch(match.group(2)) and not keep_ends:
            return " " * len(match.group(1)) + match.group(2) + " " * len(match.group(1))
        ticks = match.group(1) if keep_ends else " " * len(match.group(1))
        return ticks + " " * len(match.group(2)) + ticks

    return _CODE_SPAN.sub(blank, line)


def _blank(line: str, bound: Iterable[Written], *, inside: bool) -> tuple[str, bool]:
    """The line with everything that is no bare number blanked, and whether a comment is still open at its end."""
    chars = list(line)
    for written in bound:
        chars[written.start : written.end] = " " * (written.end - written.start)
    text = "".join(chars)
    if inside:
        end = text.find("-->")
        if end < 0:
            return "", True
        text = " " * (end + 3) + text[end + 3 :]
    text = _blank_code(text)
    text = re.sub(r"<!--.*?-->", _spaces, text)
    opened = text.find("<!--")
    if opened >= 0:
        text = text[:opened]
    for pattern in (_LINKS, _DATES):
        text = pattern.sub(_spaces, text)
    return _LIST_MARK.sub(_spaces, text), opened >= 0


def numbers_in(line: str) -> Iterator[tuple[int, Written]]:
    """Every number in a line of prose that `bare` would name, with the place where its text ends.

    >>> [w.text for _, w in numbers_in("p99 at 4.5 req/s on 2026-11-30, 24 seats")]
    ['4.5 req/s', '24']
    """
    text, _ = _blank(line, (), inside=False)
    for match in _BARE.finditer(text):
        if _is_number(text, match):
            written = _whole(line, match)
            yield written.end, written


def _whole(line: str, match: re.Match[str]) -> Written:
    """The number with its unit where the word behind it is one, else the number alone."""
    long, short = read_back(line[: match.end()]), read_back(line[: match.end("digits")])
    end = (
        match.end("exponent") if match.group("exponent") else match.end("fraction") if match.group("fraction") else None
    )
    short = read_back(line[:end]) if end else short
    return long if long.number is not None and is_unit(long.unit) else short


def _spaces(match: re.Match[str]) -> str:
    return " " * len(match.group())


def _is_number(text: str, match: re.Match[str]) -> bool:
    """Whether the digits are a number: "p99", "llama-3.1-8b", "#12" and "0.1.0" are names."""
    head = _HEAD.search(text, 0, match.start())
    word = head.group().lstrip("_") if head else ""
    behind = _SPACED_WORD.match(
        text,
        match.end("exponent")
        if match["exponent"]
        else match.end("fraction")
        if match["fraction"]
        else match.end("digits"),
    )
    if behind and is_unit(behind.group(1)) and word not in ("p", "P") and word[:1] != "#":
        return True  # "up-to-900 ms" and "v900 ms" are no names
    if word and (word[0].isalpha() or word[0] in "#§@"):
        return False
    tail = text[match.end("digits") :]
    return not re.match(r"\.\d+\.\d", tail)
