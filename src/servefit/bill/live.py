"""All accounts asked, one answer: nothing, something, or could not ask. And stopping one thing, verified."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from servefit.bill.config import Account, BillConfig, make_ask
from servefit.bill.hosted import Ask, CouldNotAsk, Deployment
from servefit.bill.providers import PROVIDERS
from servefit.errors import AnswerIsNo, ServefitError


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one account answered. `error` where it could not be asked: then nothing is known about it."""

    provider: str
    account: str | None
    deployments: tuple[Deployment, ...] = ()
    error: str | None = None
    hint: str = ""


Verdict = Literal["nothing", "something", "could not ask"]


def ask_all(accounts: Sequence[Account], config: BillConfig, env: Mapping[str, str]) -> tuple[Asked, ...]:
    """Every account's answer; one that fails does not keep the others from being asked."""
    answers = []
    for account in accounts:
        try:
            found = PROVIDERS[account.provider].find(make_ask(account, config, env))
            answers.append(Asked(provider=account.provider, account=account.account, deployments=tuple(found)))
        except CouldNotAsk as error:
            answers.append(
                Asked(provider=account.provider, account=account.account, error=error.message, hint=error.hint)
            )
    return tuple(answers)


def verdict(answers: Sequence[Asked]) -> Verdict:
    """Something is billing (or will be, or may be), nothing is, or nobody can tell.

    "nothing" needs every account asked and every deployment in a state that is documented not to be charged. Something
    that is known to be charged outweighs an account that could not be asked: the answer is no either way.
    """
    states = {d.billing for a in answers for d in a.deployments}
    if states & {"yes", "soon"}:
        return "something"
    if not answers or "unknown" in states or any(a.error for a in answers):
        return "could not ask"
    return "nothing"


EXIT_CODES: dict[Verdict, int] = {"nothing": 0, "something": 5, "could not ask": 3}


def pick(answers: Sequence[Asked], name: str) -> Deployment:
    """The one deployment called `name` (name, id, or provider/name). Raises ServefitError where it is none or several."""
    everything = [d for a in answers for d in a.deployments]
    found = [d for d in everything if name in {d.name, d.id, d.id.rsplit("/", 1)[-1], f"{d.provider}/{d.name}"}]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(d.id for d in found)
        raise ServefitError(f"'{name}' names {len(found)} deployments: {ids}.", hint="Use the id of the one you mean.")
    failed = [a.error for a in answers if a.error]
    if failed:
        raise CouldNotAsk(f"'{name}' was not found, and not everybody could be asked: {failed[0]}", hint="See above.")
    listed = ", ".join(d.name for d in everything) or "nothing at all"
    raise ServefitError(f"There is no deployment called '{name}'.", hint=f"There is: {listed}.")


def halt(
    deployment: Deployment,
    ask: Ask,
    *,
    sleep: Callable[[float], None],
    tries: int = 30,
    wait_s: float = 4.0,
) -> Deployment | None:
    """Stop it and look again until it is no longer charged; the last state seen, None where it is gone.

    Raises AnswerIsNo where it is still charged after `tries` looks: asked to stop is not stopped. A look that fails is one
    look; where the last one did, raises CouldNotAsk: whether it stopped is not known.
    """
    provider = PROVIDERS[deployment.provider]
    provider.halt(ask, deployment)
    last, failed = deployment, ""
    for attempt in range(tries):
        try:
            seen = next((d for d in provider.find(ask) if d.id == deployment.id), None)
        except CouldNotAsk as error:
            failed = error.message
        else:
            if seen is None or seen.billing == "no":
                return seen
            if seen.state != deployment.state and seen.billing == "yes" and seen.state == "EXITED":
                return seen  # stopped; what is left to pay (storage) is said in its note
            last, failed = seen, ""
        if attempt + 1 < tries:
            sleep(wait_s)
    if failed:
        raise CouldNotAsk(
            f"{deployment.name} was asked to stop, and whether it did is not known: {failed}",
            hint=f"servefit bill live asks again; the provider's own way: {deployment.stop}",
        )
    raise AnswerIsNo(
        f"{deployment.name} was asked to stop and is still {last.state}: it may still be charged.",
        hint=f"Look at the provider's own console, or: {deployment.stop}",
    )
