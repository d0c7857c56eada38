"""A plan and a chosen candidate -> the decision file, every number bound to where it came from."""

import json
from collections.abc import Iterator, Sequence

from servefit.decide.decision import SCHEMA_VERSION, Input
from servefit.decide.quantities import Ledger
from servefit.decide.sections import Choices, Page


def write(ledger: Ledger, inputs: Sequence[Input], choices: Choices) -> str:
    """The decision file as text. The ledger's candidate is the decision; `inputs` are what it rests on."""
    page = Page(ledger=ledger, choices=choices)
    parts = (
        _front(ledger, inputs, choices),
        page.title(),
        page.decision(),
        page.evidence(),
        page.assumptions(),
        page.trade_offs(),
        page.what_would_change_it(),
    )
    return "\n".join(line for part in parts for line in part) + "\n"


def _front(ledger: Ledger, inputs: Sequence[Input], choices: Choices) -> Iterator[str]:
    yield "---"
    yield f"status: {choices.status}"
    yield f"date: {choices.date}"
    yield f"deciders: {json.dumps(list(choices.deciders), ensure_ascii=False)}"
    yield "servefit:"
    yield f"  schema: {SCHEMA_VERSION}"
    yield f"  version: {json.dumps(choices.tool_version)}"
    yield f"  candidate: {json.dumps(ledger.candidate.id)}"
    yield f"  seed: {ledger.plan.spec.workload.seed}"
    if choices.despite:
        yield f"  despite: {json.dumps(choices.despite, ensure_ascii=False)}"
    yield "  inputs:"
    for item in inputs:
        yield f"    - role: {item.role}"
        if item.name:
            yield f"      name: {json.dumps(item.name, ensure_ascii=False)}"
        yield f"      path: {json.dumps(item.path, ensure_ascii=False)}"
        yield f"      sha256: {json.dumps(item.sha256)}"
    yield "---"
    yield ""
