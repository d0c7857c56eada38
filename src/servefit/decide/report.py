"""The decision as one page: self-contained HTML from the same file, each number with its formula, inputs and source.

Nothing is fetched: style, script and figures are in the page, and its own content security policy forbids requests.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

from servefit.charts import embed
from servefit.charts.figures import Chart
from servefit.decide.against import MARK
from servefit.decide.decision import Binding
from servefit.decide.derive import Quantity
from servefit.decide.figures import figures
from servefit.decide.prose import spelled
from servefit.decide.quantities import Ledger
from servefit.decide.verify import Report
from servefit.errors import ServefitError

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACE = re.compile(f"{_OPEN}(\\d+){_CLOSE}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """What a number shows when it is asked."""

    name: str
    rows: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Cards:
    """Cards by name, numbered in the order in which they are first met."""

    order: dict[str, _Card] = field(default_factory=dict)

    def number(self, card: _Card) -> int:
        """The card's number, from 1; the same name has one card."""
        self.order.setdefault(card.name, card)
        return list(self.order).index(card.name) + 1


def report_html(report: Report) -> str:
    """The page. Raises ServefitError where the plan could not be had, since there would be nothing behind the numbers."""
    if report.ledger is None:
        raise ServefitError(f"{report.path} cannot be shown without its plan.", hint="Bring the plan back.")
    cards = _Cards()
    body = _body(report, report.ledger, cards)
    charts = figures(report.ledger)
    title = next((line[2:] for line in report.decision.lines if line.startswith("# ")), "Decision")
    title = re.sub(r"<!--.*?-->|[`*_]", "", title).strip()
    parts = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{escape(title)}</title>",
        f"<style>{_resource('report.css')}{embed.STYLE if charts else ''}</style></head><body>",
        _head(report),
        f"<main>{body}{_figures(charts)}{''.join(_popovers(cards))}</main>",
        _foot(report, cards),
        f"<script>{embed.library_js()}</script><script>{embed.DRAW_JS}</script>" if charts else "",
        f"<script>{_resource('report.js')}</script>",
        "</body></html>",
    )
    return "\n".join(part for part in parts if part) + "\n"


def _resource(name: str) -> str:
    return (files("servefit.decide") / name).read_text(encoding="utf-8")


# --- the text -------------------------------------------------------------------------------------------------------


def _body(report: Report, ledger: Ledger, cards: _Cards) -> str:
    from markdown_it import MarkdownIt

    shown: list[str] = []
    source = _placed(report, ledger, cards, shown)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    html = markdown.render(source)
    html = _PLACE.sub(lambda m: shown[int(m.group(1))], html)
    return _tables(html)


def _placed(report: Report, ledger: Ledger, cards: _Cards, shown: list[str]) -> str:
    """The body's Markdown with every bound number replaced by a placeholder, and every other comment dropped."""
    decision = report.decision
    stale = {(f.line, f.name) for f in report.findings if f.code in ("STALE", "SIDE", "UNKNOWN", "UNMEASURED")}
    by_line: dict[int, list[Binding]] = {}
    for binding in decision.comments:
        by_line.setdefault(binding.line, []).append(binding)
    out = []
    for number in range(decision.body_line, len(decision.lines) + 1):
        line = decision.lines[number - 1].replace(_OPEN, "").replace(_CLOSE, "")
        for binding in reversed(by_line.get(number, [])):
            end = line.index("-->", binding.column) + 3
            w = binding.written
            start, code = w.start, line[w.start - 1 : w.start] == "`" and line[w.end : w.end + 1] == "`"
            marks = line[w.end + code : binding.column]
            card = _card(binding, ledger, w.text)
            kind = "stale" if (number, binding.name) in stale else _kind(w.text, binding, ledger)
            place = f"{_OPEN}{len(shown)}{_CLOSE}"
            shown.append(_button(w.text, cards.number(card), kind, code=code))
            line = line[: start - code] + place + marks + line[end:]
        out.append(line)
    return re.sub(r"<!--.*?-->", "", "\n".join(out), flags=re.DOTALL)


def _kind(text: str, binding: Binding, ledger: Ledger) -> str:
    quantity = ledger.find(binding.name)
    if quantity is None or not quantity.name.endswith("verdict"):
        return ""
    return {"pass": "pass", "fail": "fail", "too close to call": "close"}.get(text, "")


def _button(text: str, number: int, kind: str, *, code: bool) -> str:
    inner = f"<code>{escape(text)}</code>" if code else escape(text)
    css = f"q {kind}".strip()
    return (
        f'<button type="button" class="{css}" popovertarget="c{number}" popovertargetaction="show">{inner}</button>'
        f'<sup class="n" aria-hidden="true">{number}</sup>'
    )


def _tables(html: str) -> str:
    count = iter(range(1, 10_000))
    html = re.sub(
        "<table>",
        lambda _: f'<div class="scroll" tabindex="0" role="group" aria-label="Table {next(count)}"><table>',
        html,
    )
    html = html.replace("</table>", "</table></div>").replace("<th>", '<th scope="col">')
    return html.replace("<pre>", '<pre tabindex="0">')


# --- cards ----------------------------------------------------------------------------------------------------------


def _card(binding: Binding, ledger: Ledger, text: str) -> _Card:
    if binding.name.startswith("quoted"):
        said = binding.name.removeprefix("quoted").lstrip(": ") or "nobody is named"
        return _Card(name=f"{text}, quoted", rows=(("source", said), ("", "Somebody else's number: not recomputed.")))
    if binding.name == MARK:
        return _Card(name="what overturns it", rows=(("", "Evaluated on a run by servefit verify --against RUN."),))
    quantity = ledger.find(binding.name)
    if quantity is None:
        return _Card(name=binding.name, rows=(("", "No quantity of this plan and its runs has this name."),))
    return _Card(name=binding.name, rows=tuple(_rows(binding.name, quantity, ledger)))


def _rows(name: str, quantity: Quantity, ledger: Ledger) -> Iterator[tuple[str, str]]:
    yield "value", exact(quantity)
    yield "formula", quantity.formula
    scope = name.rpartition("#")[0]
    inputs = []
    for part in quantity.inputs:
        full = f"{scope}#{part}" if scope else part
        if other := ledger.find(full):
            inputs.append(f"{part} = {exact(other)}")
    if inputs:
        yield "inputs", "; ".join(inputs)
    yield "source", quantity.source


def exact(quantity: Quantity) -> str:
    """A value as it is printed, with all its digits behind where the print is shorter."""
    said = spelled(quantity).strip("`")
    if quantity.dim == "text" or not isinstance(quantity.value, float) or quantity.value.is_integer():
        return said
    unit = {"s": " s", "bytes": " bytes", "req_per_s": " per s", "tok_per_s": " per s"}.get(quantity.dim, "")
    return f"{said} ({quantity.value:.9g}{unit})"


def _popovers(cards: _Cards) -> Iterator[str]:
    for number, card in enumerate(cards.order.values(), 1):
        rows = "".join(
            f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" if k else f"<dd>{escape(v)}</dd>" for k, v in card.rows
        )
        if not any(k for k, _ in card.rows):
            rows = "".join(f"<p>{escape(v)}</p>" for _, v in card.rows)
            yield f'<div popover id="c{number}" class="card"><p class="name">{escape(card.name)}</p>{rows}</div>'
            continue
        rows = "".join(f"<dt>{escape(k or 'note')}</dt><dd>{escape(v)}</dd>" for k, v in card.rows)
        yield f'<div popover id="c{number}" class="card"><p class="name">{escape(card.name)}</p><dl>{rows}</dl></div>'


# --- around it ------------------------------------------------------------------------------------------------------


def _head(report: Report) -> str:
    front = report.decision.front
    said = "every number holds" if report.holds else "does not hold as it is"
    chips = (
        f'<li><span class="chip {escape(front.status)}">{escape(front.status)}</span></li>',
        f"<li>{escape(front.date)}</li>",
        f"<li>decided by {escape(', '.join(front.deciders))}</li>" if front.deciders else "",
        f'<li><span class="chip {"holds" if report.holds else "broken"}">{said}</span></li>',
        _checked(report),
        f"<li>{report.checked} bound numbers and words recomputed; hover or tap one</li>",
    )
    findings = "".join(
        f"<li>line {f.line}: <strong>{escape(f.code)}</strong> {escape(f.name)}: {escape(f.message)}</li>"
        for f in report.findings
    )
    block = f'<section class="findings" aria-label="Findings"><ul>{findings}</ul></section>' if findings else ""
    return f'<header><ul class="facts">{"".join(chips)}</ul>{block}</header>'


def _checked(report: Report) -> str:
    """The newest run that the decision was held against, and what it said."""
    if not report.decision.front.checked_against:
        return ""
    newest = report.decision.front.checked_against[0]
    return (
        f'<li><span class="chip {escape(newest.result)}">{escape(newest.result)}</span> by '
        f"<code>{escape(newest.run)}</code>{f', {escape(newest.date)}' if newest.date else ''}</li>"
    )


def _figures(charts: Sequence[Chart]) -> str:
    if not charts:
        return ""
    drawn = "".join(embed.figure_html(chart, anchor=f"figure-{i}") for i, chart in enumerate(charts, 1))
    return f'<section aria-label="Figures"><h2>Figures</h2>{drawn}</section>'


def _foot(report: Report, cards: _Cards) -> str:
    front = report.decision.front
    rows = []
    for number, card in enumerate(cards.order.values(), 1):
        known = dict(card.rows)
        cells = (str(number), card.name, known.get("value", ""), known.get("formula", known.get("", "")),
                 known.get("inputs", ""), known.get("source", ""))  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    heads = "".join(f'<th scope="col">{h}</th>' for h in ("no.", "name", "value", "formula", "inputs", "source"))
    inputs = "".join(
        f"<li>{escape(i.role)} <code>{escape(i.path)}</code>, sha256 <code>{escape(i.sha256)}</code></li>"
        for i in front.inputs
    )
    return (
        '<footer><details class="ledger"><summary>Where every number comes from</summary>'
        '<div class="scroll" tabindex="0" role="group" aria-label="Where every number comes from">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
        f"<details><summary>What it rests on</summary><p>Configuration <code>{escape(front.candidate)}</code>, seed "
        f"{front.seed}, written by servefit {escape(front.tool_version)}.</p><ul>{inputs}</ul></details>"
        "<p>Check it again: <code>servefit verify decision.md</code></p></footer>"
    )
