"""The one configuration that is decided on: named, or the plan's pick; never one that does not pass, unless told why."""

import difflib

from servefit.decide.derive import check_dim, verdict
from servefit.decide.written import show
from servefit.errors import AnswerIsNo, ServefitError
from servefit.plan.plan import Candidate, Plan


def choose(plan: Plan, candidate_id: str | None, *, despite: str = "") -> Candidate:
    """The one configuration to decide on: the one named, or the plan's recommendation.

    Raises AnswerIsNo where nothing passes, or the one named does not (unless `despite` says why it is taken all the
    same); ServefitError where there is no such candidate.
    """
    if candidate_id is None:
        if plan.recommended is None:
            nearest = f" The nearest is {plan.nearest.id}: {plan.nearest.rule}." if plan.nearest else ""
            raise AnswerIsNo(
                f"No configuration of this plan meets every target, so there is none to decide on.{nearest}",
                hint="Change the targets or the search, or name one with --candidate and say why with --despite.",
            )
        candidate_id = plan.recommended.id
    candidate = find_candidate(plan, candidate_id)
    if (said := verdict(candidate)) != "pass" and not despite:
        misses = [
            f"{c.label} {show(c.value, check_dim(c))} against {show(c.target, check_dim(c))}"
            for c in candidate.checks
            if c.verdict != "pass"
        ]
        what = "misses a target" if said == "fail" else "is too close to call"
        raise AnswerIsNo(
            f"{candidate.id} {what}: {'; '.join(misses)}.", hint='Choose another, or say why with --despite "reason".'
        )
    return candidate


def find_candidate(plan: Plan, text: str) -> Candidate:
    """The candidate with that id, or the only one whose id holds every part of `text` ("a100-80gb/seats16")."""
    ids = [c.id for c in plan.candidates]
    if text in ids:
        return plan.candidate(text)
    parts = text.split("/")
    matches = [c for c in plan.candidates if all(part in c.id.split("/") for part in parts)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ServefitError(
            f"'{text}' names {len(matches)} configurations of this plan; a decision is exactly one.",
            hint=f"For example {matches[0].id} or {matches[1].id}.",
        )
    near = difflib.get_close_matches(text, ids, n=1)
    raise ServefitError(
        f"This plan has no configuration '{text}'.",
        hint=f"Did you mean {near[0]}?" if near else f"One of them: {ids[0]}.",
    )
