"""The adapters: Fireworks, Together, Hugging Face, RunPod. Built from their public documentation, each page named.

To add one: write `find(ask) -> list[Deployment]` and `halt(ask, deployment)`, say for every documented state whether it
bills, and add a `Provider` to PROVIDERS. docs/bill.md walks through it. None of these has met the real service here.
"""

from typing import Any
from urllib.parse import quote

from servefit.bill.hosted import (
    Ask,
    Billing,
    CouldNotAsk,
    Deployment,
    Provider,
    call,
    changed,
    items,
    number,
    pages,
    text,
    when,
    whole,
)
from servefit.facts.prices import all_hourly

HOURS_A_MONTH = 730


def _price(ask: Ask, hardware: str, published: dict[str, tuple[float, str]]) -> tuple[float | None, str]:
    """US dollars an hour of one accelerator or instance, and where that comes from."""
    if hardware in ask.usd_per_hour:
        return ask.usd_per_hour[hardware], "servefit.toml"
    if hardware in published:
        return published[hardware]
    return None, f"no price known for {hardware or 'this hardware'}: give it under [bill.usd_per_hour] in servefit.toml"


# --- Fireworks ------------------------------------------------------------------------------------------------------

_FIREWORKS_DEVICES = {
    "NVIDIA_A100_80GB": "a100-80gb",
    "NVIDIA_H100_80GB": "h100-sxm",
    "NVIDIA_H200_141GB": "h200-sxm",
    "NVIDIA_B200_180GB": "b200",
    "NVIDIA_B300_288GB": "b300",
}
"""Their accelerator types, by the catalogue's names."""


def _published(provider: str, devices: dict[str, str]) -> dict[str, tuple[float, str]]:
    """The provider's prices that the catalogue knows, by its own hardware names, with source, date and doubt."""
    by_device = {p.device: p for p in all_hourly() if p.provider == provider}
    found = {}
    for theirs, ours in devices.items():
        if price := by_device.get(ours):
            doubt = f" ({price.status})" if price.doubtful else ""
            found[theirs] = (price.usd_per_hour, f"{price.source}, {price.date}{doubt}")
    return found


_FIREWORKS_STATES = {"CREATING", "READY", "DELETING", "FAILED", "UPDATING", "DELETED"}


def fireworks_accounts(ask: Ask) -> list[str]:
    """The accounts that the key can see, where none is named."""
    if ask.account:
        return [ask.account.removeprefix("accounts/")]
    found = [
        text(ask, a, "name").removeprefix("accounts/")
        for a in pages(ask, "/v1/accounts", "accounts", {"pageSize": "200"})
    ]
    if not found:
        changed(ask, "the key sees no account")
    return found


def find_fireworks(ask: Ask) -> list[Deployment]:
    """Every deployment of every account: replicas x accelerators x hours. Charged while replicas are up, used or not."""
    out = []
    for account in fireworks_accounts(ask):
        path = f"/v1/accounts/{quote(account, safe='')}/deployments"
        out += [_fireworks(ask, account, d) for d in pages(ask, path, "deployments", {"pageSize": "200"})]
    return out


def _fireworks(ask: Ask, account: str, d: dict[str, Any]) -> Deployment:
    name, state = text(ask, d, "name"), text(ask, d, "state")
    replicas, gpus = whole(d.get("replicaCount")), whole(d.get("acceleratorCount"))
    hardware = d.get("acceleratorType") if isinstance(d.get("acceleratorType"), str) else ""
    least = whole(d.get("minReplicaCount"))
    billing: Billing = "unknown"
    note = ""
    if state == "DELETED":
        billing = "no"
    elif state in _FIREWORKS_STATES and replicas is not None:
        if replicas > 0:
            billing = "yes"
        elif state == "CREATING":
            billing, note = "soon", "charges begin when it accepts requests"
        else:
            billing, note = "no", "scaled to zero: the next request wakes it"
            if least:
                billing, note = "soon", f"no replica now, but at least {least} are asked for"
    else:
        note = "no replica count" if state in _FIREWORKS_STATES else "a state that is not documented"
    each, source = _price(ask, hardware or "", _published("fireworks", _FIREWORKS_DEVICES))
    policy = d.get("autoscalingPolicy") if isinstance(d.get("autoscalingPolicy"), dict) else {}
    window = policy.get("scaleToZeroWindow") if policy else None
    sleeps = f"to zero after {window}" if window and least == 0 else "never to zero" if least else ""
    short = name.rsplit("/", 1)[-1]
    return Deployment(
        provider="fireworks", account=account, id=name, name=str(d.get("displayName") or short), state=state, billing=billing,
        usd_per_hour=each * replicas * (gpus or 1) if each is not None and replicas is not None else None, price_from=source,
        since=when(d.get("createTime")), hardware=f"{gpus or '?'} x {hardware}", replicas=replicas, sleeps=sleeps, note=note,
        stop=f"firectl deployment delete {short}, or scale to zero: firectl deployment scale {short} --replica-count=0",
    )  # fmt: skip


def halt_fireworks(ask: Ask, d: Deployment) -> None:
    """Scale to zero, which can be undone; deleting is left to its owner."""
    call(ask, "PATCH", f"/v1/{quote(d.id)}:scale", body={"replicaCount": 0})


def fireworks_limit(ask: Ask) -> list[dict[str, Any]]:
    """The account's own monthly limit and its use, in US dollars, from its list of quotas.

    At the limit every request of the account pauses. Source: docs.fireworks.ai/api-reference/list-quotas and
    /guides/quotas_usage/account-quotas.
    """
    out = []
    for account in fireworks_accounts(ask):
        for q in pages(ask, f"/v1/accounts/{quote(account, safe='')}/quotas", "quotas", {"pageSize": "200"}):
            if text(ask, q, "name").rsplit("/", 1)[-1] == "monthly-spend-usd":
                value = q.get("value")
                limit = float(value) if isinstance(value, str) and value.isdigit() else number(value)
                out.append(
                    {
                        "provider": "fireworks",
                        "account": account,
                        "limit_usd": limit,
                        "used_usd": number(q.get("usage")),
                    }
                )
    return out


# --- Together -------------------------------------------------------------------------------------------------------

_TOGETHER_STATES: dict[str, tuple[Billing, str]] = {
    "PENDING": ("soon", "charged by the minute once it runs"),
    "STARTING": ("soon", "charged by the minute once it runs"),
    "STARTED": ("yes", ""),
    "STOPPING": ("yes", "until it has stopped"),
    "STOPPED": ("no", ""),
    "ERROR": ("unknown", "the documentation does not say whether this state is charged"),
}


def find_together(ask: Ask) -> list[Deployment]:
    """Every dedicated endpoint of the key's owner, priced by the provider's own hardware list (cents a minute)."""
    listed = items(ask, call(ask, "GET", "/endpoints", query={"type": "dedicated", "mine": "true"}), "data")
    if not listed:
        return []
    cents = {}
    for h in items(ask, call(ask, "GET", "/hardware"), "data"):
        pricing = h.get("pricing")
        price = number(pricing.get("cents_per_minute")) if isinstance(pricing, dict) else None
        if price is not None:
            cents[text(ask, h, "id")] = (price * 60 / 100, "the provider's own hardware list, now")
    return [_together(ask, e, cents) for e in listed]


def _together(ask: Ask, e: dict[str, Any], published: dict[str, tuple[float, str]]) -> Deployment:
    key, state = text(ask, e, "id"), text(ask, e, "state")
    billing, note = _TOGETHER_STATES.get(state, ("unknown", "a state that is not documented"))
    detail: dict[str, Any] = {}
    if billing != "no":
        answer = call(ask, "GET", f"/endpoints/{quote(key, safe='')}")
        detail = answer if isinstance(answer, dict) else changed(ask, "no endpoint object")
    hardware = detail.get("hardware") if isinstance(detail.get("hardware"), str) else ""
    scaling = detail.get("autoscaling") if isinstance(detail.get("autoscaling"), dict) else {}
    least = whole(scaling.get("min_replicas")) if scaling else None
    most = whole(scaling.get("max_replicas")) if scaling else None
    each, source = _price(ask, hardware or "", published)
    if most and least is not None and most > least:
        note = f"{note + '; ' if note else ''}at least {least} replicas, up to {most}: the price is that of {max(least, 1)}"
    idle = whole(detail.get("inactive_timeout"))
    return Deployment(
        provider="together", account=str(e.get("owner") or ""), id=key, name=str(e.get("name") or key), state=state,
        billing=billing, usd_per_hour=each * max(least or 1, 1) if each is not None else None, price_from=source,
        since=when(e.get("created_at")), hardware=hardware or "", replicas=least,
        sleeps=f"stops after {idle} min unused" if idle else "", note=note, stop=f"together endpoints stop {key}",
    )  # fmt: skip


def halt_together(ask: Ask, d: Deployment) -> None:
    """The documented call: state STOPPED."""
    call(ask, "PATCH", f"/endpoints/{quote(d.id, safe='')}", body={"state": "STOPPED"})


# --- Hugging Face ---------------------------------------------------------------------------------------------------

_HF_STATES: dict[str, tuple[Billing, str]] = {
    "pending": ("soon", "charged from initializing on"),
    "initializing": ("yes", ""),
    "updating": ("yes", "the old replicas run on while it updates"),
    "updateFailed": ("yes", "the replicas from before the update may still run"),
    "running": ("yes", ""),
    "paused": ("no", ""),
    "failed": ("no", "only initializing and running are charged"),
    "scaledToZero": ("no", "the next request wakes it"),
}


def find_huggingface(ask: Ask) -> list[Deployment]:
    """Every dedicated endpoint of one namespace (user or organisation)."""
    if not ask.account:
        raise CouldNotAsk(
            "huggingface needs a namespace: whose endpoints?",
            hint="Set HF_NAMESPACE, or name it in servefit.toml: [[bill.accounts]] provider = 'huggingface', account = 'my-org'.",
        )
    answer = call(ask, "GET", f"/v2/endpoint/{quote(ask.account, safe='')}")
    found = items(ask, answer, "items")
    prices = _huggingface_prices(ask, ask.account) if found else {}
    return [_huggingface(ask, ask.account, e, prices) for e in found]


def _huggingface_prices(ask: Ask, account: str) -> dict[str, float]:
    """US dollars a replica and hour by "vendor region type size", as the API lists its hardware for this namespace.

    Empty where it does not: a price that is missing is "-" in the list, and no reason not to list what bills.
    """
    try:
        answer = call(ask, "GET", f"/v2/provider/{quote(account, safe='')}")
    except CouldNotAsk:
        return {}
    prices = {}
    for vendor in _dicts(answer, "vendors"):
        for region in _dicts(vendor, "regions"):
            for compute in _dicts(region, "computes"):
                price = compute.get("pricePerHour")
                if isinstance(price, int | float) and price > 0:
                    where = (
                        vendor.get("name"),
                        region.get("name"),
                        compute.get("instanceType"),
                        compute.get("instanceSize"),
                    )
                    prices[" ".join(map(str, where))] = float(price)
    return prices


def _dicts(value: Any, name: str) -> list[dict[str, Any]]:
    """The objects in a list called `name`; none where there is no such list."""
    found = value.get(name) if isinstance(value, dict) else None
    return [v for v in found if isinstance(v, dict)] if isinstance(found, list) else []


def _part(value: dict[str, Any], name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _huggingface(ask: Ask, account: str, e: dict[str, Any], prices: dict[str, float]) -> Deployment:
    name, status, compute = text(ask, e, "name"), _part(e, "status"), _part(e, "compute")
    state = text(ask, status, "state")
    billing, note = _HF_STATES.get(state, ("unknown", "a state that is not documented"))
    where, scaling = _part(e, "provider"), _part(compute, "scaling")
    hardware = " ".join(
        str(p) for p in (where.get("vendor"), compute.get("instanceType"), compute.get("instanceSize")) if p
    )
    ready, target = whole(status.get("readyReplica")), whole(status.get("targetReplica"))
    replicas = max((n for n in (ready, target) if n is not None), default=None)
    told = prices.get(" ".join(str(p) for p in (where.get("vendor"), where.get("region"), *hardware.split(" ")[1:])))
    each, source = _price(ask, hardware, {hardware: (told, "the API's own hardware list")} if told else {})
    if each is None:
        source += " (huggingface.co/docs/inference-endpoints/support/pricing)"
    nap = whole(scaling.get("scaleToZeroTimeout"))
    least = whole(scaling.get("minReplica"))
    return Deployment(
        provider="huggingface", account=account, id=name, name=name, state=state, billing=billing,
        usd_per_hour=each * max(replicas or 1, 1) if each is not None else None, price_from=source,
        since=when(status.get("createdAt")), hardware=hardware, replicas=replicas, note=note,
        sleeps=f"to zero after {nap} min" if nap and least == 0 else "never to zero" if least else "",
        stop=f"hf endpoints pause {name} --namespace {account}",
    )  # fmt: skip


def halt_huggingface(ask: Ask, d: Deployment) -> None:
    """Pause, which can be undone and is not charged."""
    call(ask, "POST", f"/v2/endpoint/{quote(d.account, safe='')}/{quote(d.id, safe='')}/pause")


# --- RunPod ---------------------------------------------------------------------------------------------------------

_RUNPOD_STORAGE = "docs.runpod.io/pods/storage: $0.20 per GB and month for a stopped pod's volume"
_RUNPOD_NETWORK = "docs.runpod.io/pods/storage: $0.07 per GB and month"


def find_runpod(ask: Ask) -> list[Deployment]:
    """Pods (a stopped one still pays for its volume), serverless endpoints with workers kept up, network volumes."""
    pods = items(ask, call(ask, "GET", "/v1/pods"), None)
    endpoints = items(ask, call(ask, "GET", "/v1/endpoints"), None)
    volumes = items(ask, call(ask, "GET", "/v1/networkvolumes"), None)
    return [
        *(_pod(ask, p) for p in pods),
        *(_serverless(ask, e) for e in endpoints),
        *(_volume(ask, v) for v in volumes),
    ]


def _pod(ask: Ask, p: dict[str, Any]) -> Deployment:
    key, state = text(ask, p, "id"), text(ask, p, "desiredStatus")
    price, source = number(p.get("adjustedCostPerHr")), "the provider's answer (savings plans included)"
    if price is None:
        price, source = number(p.get("costPerHr")), "the provider's answer"
    volume = whole(p.get("volumeInGb")) or 0
    billing: Billing = "unknown"
    note, stop = "a state that is not documented", f"runpodctl stop pod {key}"
    if state == "RUNNING":
        billing, note = "yes", ""
    elif state == "TERMINATED":
        billing, note = "no", ""
    elif state == "EXITED":
        billing, note, price, source = "no", "", 0.0, "nothing is kept"
        if volume:
            billing, note, stop = (
                "yes",
                f"stopped, but its volume of {volume} GB is still charged",
                f"runpodctl remove pod {key}",
            )
            price, source = volume * 0.20 / HOURS_A_MONTH, _RUNPOD_STORAGE
    gpu = _part(p, "gpu")
    return Deployment(
        provider="runpod", account=ask.account or "", id=f"pods/{key}", name=str(p.get("name") or key), state=state,
        billing=billing, usd_per_hour=price, price_from=source, since=when(p.get("lastStartedAt")), since_what="last started",
        hardware=" x ".join(str(x) for x in (gpu.get("count"), gpu.get("displayName")) if x), replicas=None, note=note, stop=stop,
    )  # fmt: skip


def _serverless(ask: Ask, e: dict[str, Any]) -> Deployment:
    key, least = text(ask, e, "id"), whole(e.get("workersMin"))
    billing: Billing = "unknown" if least is None else "yes" if least > 0 else "no"
    types = e.get("gpuTypeIds") if isinstance(e.get("gpuTypeIds"), list) else []
    hardware = str(types[0]) if types else ""
    each, source = _price(ask, hardware, {})
    return Deployment(
        provider="runpod", account=ask.account or "", id=f"endpoints/{key}", name=str(e.get("name") or key),
        state=f"serverless, {'?' if least is None else least} workers kept up", billing=billing,
        usd_per_hour=each * least if each is not None and least else None, price_from=source, since=when(e.get("createdAt")),
        hardware=hardware, replicas=least, note="" if least else "charged per request only",
        stop=f"PATCH {ask.base_url}/v1/endpoints/{key} with workersMin 0",
    )  # fmt: skip


def _volume(ask: Ask, v: dict[str, Any]) -> Deployment:
    key, size = text(ask, v, "id"), whole(v.get("size"))
    return Deployment(
        provider="runpod", account=ask.account or "", id=f"networkvolumes/{key}", name=str(v.get("name") or key),
        state="network volume", billing="yes", usd_per_hour=size * 0.07 / HOURS_A_MONTH if size is not None else None,
        price_from=_RUNPOD_NETWORK, hardware=f"{size} GB" if size is not None else "",
        note="kept and charged until it is deleted, with its data", stop=f"DELETE {ask.base_url}/v1/networkvolumes/{key}",
    )  # fmt: skip


def halt_runpod(ask: Ask, d: Deployment) -> None:
    """Stop a pod or set a serverless endpoint's kept workers to zero. What deletes data is left to its owner."""
    kind, _, key = d.id.partition("/")
    if kind == "pods" and d.state == "RUNNING":
        call(ask, "POST", f"/v1/pods/{quote(key, safe='')}/stop")
    elif kind == "endpoints":
        call(ask, "PATCH", f"/v1/endpoints/{quote(key, safe='')}", body={"workersMin": 0})
    else:
        raise CouldNotAsk(
            f"Stopping {d.name} means deleting data, which servefit does not do.",
            hint=f"Yourself, if you are sure: {d.stop}",
        )


PROVIDERS = {
    p.name: p
    for p in (
        Provider(
            name="fireworks", title="Fireworks", key_env="FIREWORKS_API_KEY", base_url="https://api.fireworks.ai",
            docs=("https://docs.fireworks.ai/api-reference/list-deployments", "https://docs.fireworks.ai/api-reference/scale-deployment",
                  "https://docs.fireworks.ai/faq/deployment/ondemand/billing-scaling"),
            find=find_fireworks, halt=halt_fireworks,
        ),
        Provider(
            name="together", title="Together", key_env="TOGETHER_API_KEY", base_url="https://api.together.ai/v1",
            docs=("https://docs.together.ai/reference/listendpoints", "https://docs.together.ai/docs/dedicated-endpoints/manage"),
            find=find_together, halt=halt_together,
        ),
        Provider(
            name="huggingface", title="Hugging Face", key_env="HF_TOKEN", base_url="https://api.endpoints.huggingface.cloud",
            docs=("https://huggingface.co/docs/huggingface_hub/package_reference/inference_endpoints",
                  "https://huggingface.co/docs/huggingface_hub/package_reference/hf_api (list_inference_endpoints_hardware)",
                  "https://huggingface.co/docs/inference-endpoints/support/pricing"),
            find=find_huggingface, halt=halt_huggingface,
        ),
        Provider(
            name="runpod", title="RunPod", key_env="RUNPOD_API_KEY", base_url="https://rest.runpod.io",
            docs=("https://docs.runpod.io/api-reference/openapi.json", "https://docs.runpod.io/pods/storage"),
            find=find_runpod, halt=halt_runpod,
        ),
    )
}  # fmt: skip
"""Every adapter by name. Adding a provider is adding one line here and one `find`."""
