"""One answer for all accounts, the exit codes, and stopping that is verified."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bill.fake_provider import KEY, deployment, serve
from servefit.bill.config import Account, BillConfig, accounts_to_ask, load_config, make_ask
from servefit.bill.hosted import CouldNotAsk
from servefit.bill.live import ask_all, halt, pick, verdict
from servefit.cli.bill import command
from servefit.errors import AnswerIsNo, CannotMeasure, ServefitError

LIST = "GET /v1/accounts/acme/deployments"
SLEEPING = deployment(replicaCount=0, minReplicaCount=0)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No keys of this machine, no servefit.toml of it, no proxy for loopback."""
    for name in ("FIREWORKS_API_KEY", "TOGETHER_API_KEY", "HF_TOKEN", "HF_NAMESPACE", "RUNPOD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.chdir(tmp_path)


def configure(url: str, more: str = "") -> None:
    """A servefit.toml that names the fake."""
    Path("servefit.toml").write_text(
        f'[[bill.accounts]]\nprovider = "fireworks"\naccount = "acme"\nbase_url = "{url}"\n{more}', encoding="utf-8"
    )


def call(*args: str) -> tuple[int, str]:
    """The exit code and everything that was printed."""
    done = CliRunner().invoke(command, list(args), standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.return_value, done.output


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ({"deployments": []}, 0, "Nothing is billing at fireworks"),
        ({"deployments": [SLEEPING]}, 0, "Nothing is billing"),
        ({"deployments": [deployment()]}, 5, "$14.00 an hour"),
        ({"deployments": [deployment(state="CREATING", replicaCount=0)]}, 5, "1 still billing"),
        ({"deployments": [deployment(state="NEW_STATE")]}, 3, "not known"),
        ((500, {}), 3, "HTTP 500"),
        ((401, {}), 3, "not accepted"),
        ({"deploys": []}, 3, "documentation does not describe"),
    ],
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, answer: Any, code: int, words: str):
    """B6: 0 nothing, 5 something, 3 could not ask; never nothing on an error or an unknown state."""
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    with serve({LIST: answer}) as fake:
        configure(fake.url)
        got, out = call("live")
    assert got == code
    assert words in out
    assert KEY not in out


def test_a_missing_key_of_a_named_account_is_3():
    """An account in servefit.toml whose key is not set could not be asked."""
    configure("https://example.invalid")
    code, out = call("live")
    assert code == 3
    assert "FIREWORKS_API_KEY is not set" in out


def test_no_key_at_all_is_3():
    """Nobody to ask is no 'nothing'."""
    with pytest.raises(CannotMeasure) as caught:
        call("live")
    assert caught.value.exit_code == 3


def test_something_outweighs_what_could_not_be_asked(monkeypatch: pytest.MonkeyPatch):
    """One account bills and another fails: the answer is 5, and the failure is still printed."""
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    with serve({LIST: {"deployments": [deployment()]}}) as fake:
        configure(fake.url, '[[bill.accounts]]\nprovider = "runpod"\n')
        code, out = call("live")
    assert code == 5
    assert "RUNPOD_API_KEY is not set" in out


def test_nothing_and_an_error_is_3(monkeypatch: pytest.MonkeyPatch):
    """One account answers nothing and another fails: nobody can tell."""
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    with serve({LIST: {"deployments": []}}) as fake:
        configure(fake.url, '[[bill.accounts]]\nprovider = "runpod"\n')
        assert call("live")[0] == 3


def test_json_has_everything(monkeypatch: pytest.MonkeyPatch):
    """One object: verdict, whether it is complete, each deployment with price, age and the call that stops it."""
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    with serve({LIST: {"deployments": [deployment(), SLEEPING]}}) as fake:
        configure(fake.url)
        code, out = call("live", "--json")
    value = json.loads(out)
    assert (code, value["verdict"], value["complete"]) == (5, "something", True)
    assert [d["billing"] for d in value["deployments"]] == ["yes", "no"]
    assert value["deployments"][0]["usd_per_hour"] == 14.0
    assert value["deployments"][0]["age_s"] > 0


def stopping(after: int, deaf: bool = False) -> dict[str, Any]:
    """A fake that scales to zero `after` looks after it was asked to."""
    state = {"asked": False, "looks": 0}

    def listed(_: Any, __: Any) -> Any:
        if state["asked"] and not deaf:
            state["looks"] += 1
        return {"deployments": [SLEEPING if state["looks"] > after else deployment()]}

    def scale(_: Any, body: Any) -> Any:
        assert body == {"replicaCount": 0}
        state["asked"] = True
        return {}

    return {LIST: listed, "PATCH /v1/accounts/acme/deployments/a1b2c3:scale": scale}


def test_stop_is_verified():
    """Stopping looks again until the replicas are gone."""
    naps: list[float] = []
    with serve(stopping(after=2)) as fake:
        config = BillConfig(accounts=(Account(provider="fireworks", account="acme", base_url=fake.url),))
        answers = ask_all(config.accounts, config, {"FIREWORKS_API_KEY": KEY})
        found = pick(answers, "support-bot")
        last = halt(found, make_ask(config.accounts[0], config, {"FIREWORKS_API_KEY": KEY}), sleep=naps.append)
    assert last is not None
    assert last.billing == "no"
    assert len(naps) == 2


def test_asked_to_stop_is_not_stopped():
    """A deployment that goes on is exit code 5 with the provider's own command."""
    with serve(stopping(after=0, deaf=True)) as fake:
        config = BillConfig(accounts=(Account(provider="fireworks", account="acme", base_url=fake.url),))
        env = {"FIREWORKS_API_KEY": KEY}
        found = pick(ask_all(config.accounts, config, env), "a1b2c3")
        with pytest.raises(AnswerIsNo, match="still READY") as caught:
            halt(found, make_ask(config.accounts[0], config, env), sleep=lambda _: None, tries=3)
    assert "firectl" in caught.value.hint


def test_looks_that_fail_after_the_stop():
    """A look that fails is not the end; where the last one fails too, nobody knows whether it stopped, and that is said."""
    routes = stopping(after=0)
    listed, asked = routes[LIST], []

    def shaky(query: Any, body: Any) -> Any:
        asked.append(1)
        return (503, {}) if len(asked) == 2 else listed(query, body)

    env = {"FIREWORKS_API_KEY": KEY}
    with serve({**routes, LIST: shaky}) as fake:
        config = BillConfig(accounts=(Account(provider="fireworks", account="acme", base_url=fake.url),))
        ask = make_ask(config.accounts[0], config, env)
        found = pick(ask_all(config.accounts, config, env), "support-bot")
        last = halt(found, ask, sleep=lambda _: None)
        assert last is not None
        assert last.billing == "no"
        fake.routes[LIST] = (503, {})
        with pytest.raises(CouldNotAsk, match=r"asked to stop, and whether it did is not known.*503"):
            halt(found, ask, sleep=lambda _: None, tries=3)


@pytest.mark.parametrize(("then", "code", "words"), [(None, 5, "still READY"), ((401, {}), 3, "not accepted")])
def test_a_stop_that_never_stops(monkeypatch: pytest.MonkeyPatch, cli: Any, then: Any, code: int, words: str):
    """On the command line: a bounded number of looks, then one sentence and 5 (still charged) or 3 (nobody knows)."""
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    naps: list[float] = []
    monkeypatch.setattr("servefit.cli.bill.time.sleep", naps.append)
    routes = stopping(after=0, deaf=True)
    with serve(routes) as fake:
        configure(fake.url)
        if then is not None:  # the key is withdrawn once it was asked to stop
            scale = "PATCH /v1/accounts/acme/deployments/a1b2c3:scale"
            fake.routes[scale] = lambda _, __: fake.routes.update({LIST: then}) or {}
        got, _, err = cli("bill", "live", "--stop", "support-bot", "--yes")
    assert got == code
    assert words in err
    assert "support-bot was asked to stop" in err
    assert "hint:" in err
    assert len(naps) == 29
    assert sum(naps) <= 120
    assert KEY not in err


def test_two_pages_and_a_wrong_key_on_the_command_line(monkeypatch: pytest.MonkeyPatch, cli: Any):
    """What bills stands on the second page: 5. A key that the provider does not take (a real 401): 3, never "nothing"."""

    def page(query: Any, _: Any) -> Any:
        second = query.get("pageToken") == ["two"]
        return {"deployments": [deployment() if second else SLEEPING], "nextPageToken": "" if second else "two"}

    with serve({LIST: page}) as fake:
        configure(fake.url)
        monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
        code, out, _ = cli("bill", "live")
        assert (code, "1 still billing: $14.00 an hour" in out) == (5, True)
        monkeypatch.setenv("FIREWORKS_API_KEY", "sk-test-of-somebody-else")
        code, out, err = cli("bill", "live")
    assert code == 3
    assert "the key is not accepted (401)" in err
    assert "Nothing is billing" not in out
    assert "somebody-else" not in out + err


def test_stop_asks_first(monkeypatch: pytest.MonkeyPatch):
    """Without a terminal and without --yes nothing is stopped; with --yes it is, and says what it saw."""
    monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
    with serve(stopping(after=0)) as fake:
        configure(fake.url)
        with pytest.raises(ServefitError, match="needs a yes"):
            call("live", "--stop", "support-bot")
        assert not any(route.startswith("PATCH") for route, _, _ in fake.asked)
        code, out = call("live", "--stop", "support-bot", "--yes")
    assert code == 0
    assert "seen, not assumed" in out


def test_a_wrong_name_lists_what_there_is():
    """A name that fits nothing says what would; a name that fits two wants the id."""
    two = [deployment(), deployment(name="accounts/acme/deployments/zzz")]
    with serve({LIST: {"deployments": two}}) as fake:
        config = BillConfig(accounts=(Account(provider="fireworks", account="acme", base_url=fake.url),))
        answers = ask_all(config.accounts, config, {"FIREWORKS_API_KEY": KEY})
    with pytest.raises(ServefitError, match="names 2"):
        pick(answers, "support-bot")
    with pytest.raises(ServefitError) as caught:
        pick(answers, "nope")
    assert "support-bot" in caught.value.hint
    assert pick(answers, "zzz").id.endswith("zzz")


def test_a_missing_deployment_with_an_error_is_3():
    """Not found while somebody could not be asked: it may be there."""
    config = BillConfig(accounts=(Account(provider="runpod"),))
    with pytest.raises(CouldNotAsk):
        pick(ask_all(config.accounts, config, {}), "x")


def test_who_is_asked():
    """Keys that are set are asked; named ones always; the rest is listed as not asked."""
    accounts, left = accounts_to_ask(BillConfig(), (), {"TOGETHER_API_KEY": "k"})
    assert [a.provider for a in accounts] == ["together"]
    assert set(left) == {"fireworks", "huggingface", "runpod"}
    accounts, left = accounts_to_ask(BillConfig(), ("runpod",), {})
    assert [a.provider for a in accounts] == ["runpod"]
    assert left == ()
    with pytest.raises(ServefitError, match="no provider"):
        accounts_to_ask(BillConfig(), ("aws",), {})


def test_a_key_is_never_sent_in_the_clear():
    """Plain http to another machine is refused before anything is sent."""
    account = Account(provider="fireworks", base_url="http://api.example.com")
    with pytest.raises(ServefitError, match="in the clear"):
        make_ask(account, BillConfig(), {"FIREWORKS_API_KEY": KEY})


@pytest.mark.parametrize(
    "bad",
    [
        "[bill.usd_per_hour]\nX = -1",
        "[bill]\ncap = 3",
        '[[bill.accounts]]\nprovider = "aws"',
        "[bill.usd_per_hour]\nX = nan",
    ],
)
def test_a_faulty_file_is_named(bad: str):
    """A misspelt key, a negative cap and an unknown provider are one sentence each."""
    Path("servefit.toml").write_text(bad, encoding="utf-8")
    with pytest.raises(ServefitError, match=r"servefit\.toml"):
        load_config()


def test_no_accounts_is_not_nothing():
    """Asking nobody never gives 'nothing'."""
    assert verdict([]) == "could not ask"
