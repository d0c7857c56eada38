"""Each adapter against a fake built from its public documentation: what bills, what does not, what nobody can tell."""

from datetime import UTC, datetime
from typing import Any

import pytest

from bill.fake_provider import KEY, deployment, serve
from servefit.bill.hosted import Ask, CouldNotAsk, Deployment
from servefit.bill.providers import PROVIDERS, fireworks_limit

NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
FIREWORKS = "GET /v1/accounts/acme/deployments"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch):
    """Loopback is asked directly, whatever proxy this machine uses."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def find(provider: str, routes: dict[str, Any], account: str | None = "acme", **more: Any) -> list[Deployment]:
    """What the adapter finds on a fake with these routes."""
    with serve(routes) as fake:
        ask = Ask(provider=provider, base_url=fake.url, key=KEY, account=account, **more)
        return PROVIDERS[provider].find(ask)


# --- Fireworks


def test_fireworks_bills_replicas_times_accelerators():
    """One replica of two H100s since two hours at $7 each: $14 an hour, $28 so far."""
    (d,) = find("fireworks", {FIREWORKS: {"deployments": [deployment()], "nextPageToken": "", "totalSize": 1}})
    assert (d.billing, d.usd_per_hour, d.name) == ("yes", 14.0, "support-bot")
    assert d.age_s(NOW) == 7200
    assert d.spent_usd(NOW) == 28.0
    assert "firectl deployment scale a1b2c3 --replica-count=0" in d.stop
    assert d.sleeps == "never to zero"


@pytest.mark.parametrize(
    ("over", "billing"),
    [
        ({"replicaCount": 0, "minReplicaCount": 0}, "no"),
        ({"replicaCount": 0, "minReplicaCount": 1}, "soon"),
        ({"state": "CREATING", "replicaCount": 0, "minReplicaCount": 0}, "soon"),
        ({"state": "DELETED", "replicaCount": 0}, "no"),
        ({"state": "DELETING"}, "yes"),
        ({"state": "FAILED"}, "yes"),
        ({"state": "HIBERNATING"}, "unknown"),
        ({"state": "STATE_UNSPECIFIED"}, "unknown"),
        ({"replicaCount": None}, "unknown"),
        ({"replicaCount": "1"}, "unknown"),
    ],
)
def test_fireworks_states(over: dict[str, Any], billing: str):
    """Every documented state is judged; one that is not documented, or a missing count, is never 'no'."""
    (d,) = find("fireworks", {FIREWORKS: {"deployments": [deployment(**over)]}})
    assert d.billing == billing


def test_fireworks_pages_are_all_read():
    """Three pages, the last one billing: it is found."""

    def page(query: dict[str, list[str]], _: Any) -> Any:
        token = query.get("pageToken", [""])[0]
        following = {"": "two", "two": "three", "three": ""}[token]
        sleeping = deployment(name=f"accounts/acme/deployments/p{token}", replicaCount=0, minReplicaCount=0)
        return {"deployments": [deployment() if token == "three" else sleeping], "nextPageToken": following}

    found = find("fireworks", {FIREWORKS: page})
    assert [d.billing for d in found] == ["no", "no", "yes"]


def test_a_page_that_repeats_is_an_error():
    """A server that always answers with the same token is not read for ever."""
    with pytest.raises(CouldNotAsk, match="same page"):
        find("fireworks", {FIREWORKS: {"deployments": [], "nextPageToken": "again"}})


def test_fireworks_asks_every_account_of_the_key():
    """With no account named, all that the key sees are asked."""
    routes = {
        "GET /v1/accounts": {"accounts": [{"name": "accounts/acme"}, {"name": "accounts/beta"}]},
        FIREWORKS: {"deployments": []},
        "GET /v1/accounts/beta/deployments": {"deployments": [deployment(name="accounts/beta/deployments/x")]},
    }
    (d,) = find("fireworks", routes, account=None)
    assert d.account == "beta"


def test_fireworks_unknown_hardware_has_no_price():
    """A new accelerator bills, at a price that is not known and is not made up."""
    (d,) = find("fireworks", {FIREWORKS: {"deployments": [deployment(acceleratorType="NVIDIA_X9")]}})
    assert (d.billing, d.usd_per_hour) == ("yes", None)
    assert "servefit.toml" in d.price_from
    assert d.spent_usd(NOW) is None


def test_prices_from_the_file_go_first():
    """What servefit.toml says about an accelerator replaces the published price."""
    (d,) = find("fireworks", {FIREWORKS: {"deployments": [deployment()]}}, usd_per_hour={"NVIDIA_H100_80GB": 4.0})
    assert (d.usd_per_hour, d.price_from) == (8.0, "servefit.toml")


def test_fireworks_own_limit():
    """The account's monthly limit and use come from its quotas; 64-bit numbers come as text."""
    quotas = {"quotas": [{"name": "accounts/acme/quotas/monthly-spend-usd", "value": "50", "maxValue": "50", "usage": 12.5},
                         {"name": "accounts/acme/quotas/other", "value": "1"}]}  # fmt: skip
    with serve({"GET /v1/accounts/acme/quotas": quotas}) as fake:
        (limit,) = fireworks_limit(Ask(provider="fireworks", base_url=fake.url, key=KEY, account="acme"))
    assert (limit["limit_usd"], limit["used_usd"]) == (50.0, 12.5)


# --- Together


def together(state: str) -> dict[str, Any]:
    """The routes of one dedicated endpoint in this state."""
    endpoint = {"object": "endpoint", "id": "endpoint-1", "name": "me/bot", "model": "m", "type": "dedicated", "owner": "me",
                "state": state, "created_at": "2026-11-30T09:00:00.000Z"}  # fmt: skip
    detail = endpoint | {
        "hardware": "1x_nvidia_h100_80gb_sxm",
        "autoscaling": {"min_replicas": 2, "max_replicas": 5},
        "inactive_timeout": 60,
    }
    hardware = {
        "object": "hardware",
        "id": "1x_nvidia_h100_80gb_sxm",
        "pricing": {"cents_per_minute": 5.5},
        "specs": {},
    }
    return {
        "GET /endpoints": {"object": "list", "data": [endpoint]},
        "GET /endpoints/endpoint-1": detail,
        "GET /hardware": {"object": "list", "data": [hardware]},
    }


@pytest.mark.parametrize(
    ("state", "billing"),
    [("STARTED", "yes"), ("STARTING", "soon"), ("PENDING", "soon"), ("STOPPING", "yes"), ("STOPPED", "no"),
     ("ERROR", "unknown"), ("MELTED", "unknown")],
)  # fmt: skip
def test_together_states(state: str, billing: str):
    """Together's documented states, and one it does not have."""
    (d,) = find("together", together(state))
    assert d.billing == billing


def test_together_price_is_its_own_list():
    """5.5 cents a minute x 60 x at least 2 replicas = $6.60 an hour, and the note says at least."""
    (d,) = find("together", together("STARTED"))
    assert d.usd_per_hour == pytest.approx(6.6)
    assert "at least 2 replicas" in d.note
    assert d.sleeps == "stops after 60 min unused"


def test_together_nothing_is_one_call():
    """No dedicated endpoint: nothing, and no price list is asked for."""
    assert find("together", {"GET /endpoints": {"object": "list", "data": []}}) == []


# --- Hugging Face


def huggingface(state: str) -> dict[str, Any]:
    """The routes of one endpoint in this state."""
    endpoint = {
        "name": "bot", "type": "protected", "provider": {"vendor": "aws", "region": "us-east-1"},
        "compute": {"accelerator": "gpu", "instanceType": "nvidia-l4", "instanceSize": "x1",
                    "scaling": {"minReplica": 0, "maxReplica": 2, "scaleToZeroTimeout": 15}},
        "status": {"state": state, "createdAt": "2026-11-29T10:00:00Z", "readyReplica": 2, "targetReplica": 2},
    }  # fmt: skip
    return {"GET /v2/endpoint/acme": {"items": [endpoint]}}


@pytest.mark.parametrize(
    ("state", "billing"),
    [("running", "yes"), ("initializing", "yes"), ("updating", "yes"), ("updateFailed", "yes"), ("pending", "soon"),
     ("paused", "no"), ("scaledToZero", "no"), ("failed", "no"), ("dreaming", "unknown")],
)  # fmt: skip
def test_huggingface_states(state: str, billing: str):
    """Hugging Face charges initializing and running; its other documented states, and one it does not have."""
    (d,) = find("huggingface", huggingface(state))
    assert d.billing == billing


def test_huggingface_price_comes_from_the_file():
    """Two replicas at the price that servefit.toml gives; without one the page to look at is named."""
    (d,) = find("huggingface", huggingface("running"), usd_per_hour={"aws nvidia-l4 x1": 0.8})
    assert d.usd_per_hour == pytest.approx(1.6)
    assert d.sleeps == "to zero after 15 min"
    (d,) = find("huggingface", huggingface("running"))
    assert d.usd_per_hour is None
    assert "pricing" in d.price_from


def test_huggingface_price_comes_from_its_own_list():
    """The API lists $0.80 for aws us-east-1 nvidia-l4 x1; another region's price is not ours, and the file goes first."""

    def listed(region: str) -> dict[str, Any]:
        compute = {"id": "x", "instanceType": "nvidia-l4", "instanceSize": "x1", "pricePerHour": 0.8}
        return {"vendors": [{"name": "aws", "regions": [{"name": region, "computes": [compute, "odd"]}]}, None]}

    routes = huggingface("running")
    (d,) = find("huggingface", routes | {"GET /v2/provider/acme": listed("us-east-1")})
    assert (d.usd_per_hour, d.price_from) == (1.6, "the API's own hardware list")
    (d,) = find("huggingface", routes | {"GET /v2/provider/acme": listed("eu-west-1")})
    assert d.usd_per_hour is None
    (d,) = find(
        "huggingface", routes | {"GET /v2/provider/acme": listed("us-east-1")}, usd_per_hour={"aws nvidia-l4 x1": 1.0}
    )
    assert d.usd_per_hour == 2.0


def test_huggingface_needs_a_namespace():
    """Without a namespace nobody can be asked."""
    with pytest.raises(CouldNotAsk, match="namespace"):
        find("huggingface", {}, account=None)


# --- RunPod


def runpod(pods: list[Any], endpoints: list[Any] = (), volumes: list[Any] = ()) -> dict[str, Any]:
    """The routes of an account."""
    return {"GET /v1/pods": pods, "GET /v1/endpoints": list(endpoints), "GET /v1/networkvolumes": list(volumes)}


def pod(**over: Any) -> dict[str, Any]:
    """A pod with the documented fields that matter here."""
    return {"id": "xyz", "name": "trainer", "desiredStatus": "RUNNING", "costPerHr": 0.74, "adjustedCostPerHr": 0.69,
            "lastStartedAt": "2026-11-30 09:00:00.000 +0000 UTC", "gpu": {"count": 1, "displayName": "RTX 4090"}, "volumeInGb": 20} | over  # fmt: skip


def test_runpod_running_pod():
    """A running pod costs what the provider says, savings plans included, since it was last started."""
    (d,) = find("runpod", runpod([pod()]))
    assert (d.billing, d.usd_per_hour, d.since_what) == ("yes", 0.69, "last started")
    assert d.spent_usd(NOW) == pytest.approx(0.69)


def test_runpod_a_stopped_pod_still_pays_for_its_volume():
    """20 GB at $0.20 a month are $0.0055 an hour; without a volume there is nothing to pay."""
    (d,) = find("runpod", runpod([pod(desiredStatus="EXITED")]))
    assert d.billing == "yes"
    assert d.usd_per_hour == pytest.approx(20 * 0.20 / 730)
    (d,) = find("runpod", runpod([pod(desiredStatus="EXITED", volumeInGb=0)]))
    assert d.billing == "no"


def test_runpod_kept_workers_and_network_volumes():
    """Serverless workers that are kept up bill, those at zero do not; a network volume always does."""
    found = find("runpod", runpod([], [{"id": "e1", "workersMin": 1, "gpuTypeIds": ["NVIDIA L4"]}, {"id": "e2", "workersMin": 0}, {"id": "e3"}],
                                  [{"id": "v1", "name": "data", "size": 100}]))  # fmt: skip
    assert [d.billing for d in found] == ["yes", "no", "unknown", "yes"]
    assert found[3].usd_per_hour == pytest.approx(100 * 0.07 / 730)


# --- every adapter

ROUTES = {
    "fireworks": FIREWORKS,
    "together": "GET /endpoints",
    "huggingface": "GET /v2/endpoint/acme",
    "runpod": "GET /v1/pods",
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "answer",
    [(401, {}), (403, {}), (404, {}), (429, {}), (500, {}), (502, b"<html>"), (302, b""), b"<html>hello</html>", b"", {}, [1], "x",
     {"deployments": None, "data": None, "items": None}, {"deployments": [1], "data": [1], "items": [1]},
     {"deployments": [{}], "data": [{}], "items": [{}]}, b"[" * 100000],
    ids=str,
)  # fmt: skip
def test_never_nothing_on_an_error(provider: str, answer: Any):
    """An error, a redirect, HTML, an empty or a changed answer is 'could not ask', at every provider."""
    with pytest.raises(CouldNotAsk) as caught:
        find(provider, {ROUTES[provider]: answer})
    assert KEY not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("provider", PROVIDERS)
def test_nobody_there(provider: str):
    """A closed port is 'could not ask', and the key is in no message and no repr."""
    ask = Ask(provider=provider, base_url="http://127.0.0.1:9", key=KEY, account="acme", timeout_s=2)
    with pytest.raises(CouldNotAsk) as caught:
        PROVIDERS[provider].find(ask)
    assert KEY not in str(caught.value) + repr(ask)


def test_a_wrong_key_is_said():
    """401 says so."""
    with serve({}) as fake, pytest.raises(CouldNotAsk, match="not accepted"):
        PROVIDERS["fireworks"].find(Ask(provider="fireworks", base_url=fake.url, key="wrong", account="acme"))


def test_a_silent_server_times_out():
    """A server that accepts and never answers is given up after the timeout."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(CouldNotAsk, match="timed out"):
            PROVIDERS["runpod"].find(Ask(provider="runpod", base_url=url, key=KEY, timeout_s=0.1))


def test_every_adapter_names_its_documentation():
    """No adapter without the public pages that it was built from."""
    for provider in PROVIDERS.values():
        assert all(page.startswith("https://") for page in provider.docs)
        assert provider.docs
