"""The spend cap: estimate, reserve, settle, and a ledger that counts across restarts."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from servefit.bill.caps import Guard, Limits, ledger_path, spent_usd
from servefit.bill.cost import TokenPrice
from servefit.cli.bill import command
from servefit.errors import AnswerIsNo, ServefitError
from servefit.records import RequestRecord

PRICE = TokenPrice(input_usd_per_mtok=1.0, output_usd_per_mtok=2.0, cached_input_usd_per_mtok=0.1)
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def guard(path: Path, cap: float | None = 1.0, now: datetime = NOW) -> Guard:
    """A guard on this ledger."""
    return Guard(path, PRICE, Limits(usd_per_month=cap), now=lambda: now)


def row(**over: object) -> RequestRecord:
    """A request that completed with 1,000 tokens in and 500 out."""
    return RequestRecord(
        **(
            {
                "id": "1",
                "status": "ok",
                "due_s": 0.0,
                "isl": 1000,
                "osl": 500,
                "chunk_s": (0.1, 0.2),
                "http_status": 200,
            }
            | over
        )
    )


def test_estimate_before(tmp_path: Path):
    """B7: 100 requests of 1,000 in and 500 out cost $0.20 at most; over the cap they are refused."""
    with guard(tmp_path / "l") as g:
        assert g.require([(1000, 500)] * 100).usd == pytest.approx(0.2)
        with pytest.raises(AnswerIsNo, match="Over the cap"):
            g.require([(1000, 500)] * 501)


def test_stops_before_the_cap(tmp_path: Path):
    """The request that could pass the cap is not sent, and what was used stays below it."""
    sent = 0
    with guard(tmp_path / "l", cap=0.0105) as g:
        while sent < 50 and g.may_send(str(sent), isl=1000, osl=500):
            g.settle(str(sent), row())
            sent += 1
        assert sent == 5
        assert g.spent_usd("month") == pytest.approx(0.010)


def test_in_flight_counts_at_its_worst(tmp_path: Path):
    """Five requests in flight hold their worst case, so a sixth waits; once settled cheaper there is room again."""
    with guard(tmp_path / "l", cap=0.0105) as g:
        assert [g.may_send(str(i), isl=1000, osl=500) for i in range(6)] == [True] * 5 + [False]
        g.settle("0", row(osl=1))
        assert not g.may_send("6", isl=1000, osl=1000)
        assert g.may_send("7", isl=500, osl=200)


def test_only_requests_under_way_are_held(tmp_path: Path):
    """A settled request is counted and forgotten, whether its use is known or its worst case stays."""
    with guard(tmp_path / "l") as g:
        for number in range(6):
            assert g.may_send(str(number), isl=1000, osl=1000)
        before = g.spent_usd()
        for number in range(4):
            g.settle(str(number), row(osl=1))
        assert set(g._open) == set(g._asked) == {"4", "5"}
        used = g.spent_usd()
        assert used < before
        g.settle("4", row(isl=None))
        assert set(g._open) == {"5"} and g.spent_usd() == used


def test_a_server_that_counts_more_is_learnt_from(tmp_path: Path):
    """A chat template that adds half as much again makes the next reservations larger, so the cap still holds."""
    with guard(tmp_path / "l", cap=0.0105) as g:
        assert g.may_send("0", isl=1000, osl=500)
        g.settle("0", row(isl=2000, osl=500))
        g.may_send("1", isl=1000, osl=500)
        assert g.spent_usd("month") == pytest.approx(0.003 + 0.003)


def test_requests_under_way_together_teach_once(tmp_path: Path):
    """Four that were reserved together and each cost twice as much make the next twice as large, not sixteen times."""
    with guard(tmp_path / "l", cap=1.0) as g:
        for key in "abcd":
            assert g.may_send(key, isl=1000, osl=500)
        for key in "abcd":
            g.settle(key, row(isl=1000, osl=1500))
        g.may_send("next", isl=1000, osl=500)
        assert g.spent_usd("month") == pytest.approx(4 * 0.004 + 0.004)


def test_what_was_really_used(tmp_path: Path):
    """Settled at the server's counts: cached tokens at their price, refused requests free, broken ones as far as they came."""
    with guard(tmp_path / "l") as g:
        for key, done, usd in (
            ("cached", row(cached_tok=900), 0.0001 + 0.00009 + 0.001),
            ("429", row(status="rate_limited", http_status=429, chunk_s=(), isl=None, osl=None), 0.0),
            ("refused", row(status="refused", http_status=None, chunk_s=(), isl=None, osl=None), 0.0),
            (
                "broken",
                row(status="reset", osl=None, isl=None, isl_asked=1000, chunk_s=(0.1, 0.2, 0.3)),
                0.001 + 3 * 2e-6,
            ),
            (
                "silent",
                row(status="timeout", http_status=200, osl=None, isl=None, isl_asked=1000, osl_asked=500, chunk_s=()),
                0.002,
            ),
        ):
            assert g.may_send(key, isl=1000, osl=500)
            assert g.settle(key, done) == pytest.approx(usd), key


def test_counts_across_restarts(tmp_path: Path):
    """A second run starts where the first ended; a request that was in flight at a kill counts in full."""
    with guard(tmp_path / "l") as g:
        g.may_send("a", isl=1000, osl=500)
        g.settle("a", row(osl=250))
        g.may_send("b", isl=1000, osl=500)
    with guard(tmp_path / "l") as g:
        assert g.spent_usd("month") == pytest.approx(0.0015 + 0.002)
        g.may_send("a", isl=1000, osl=500)  # the same row id in another run is another request
        assert g.spent_usd("month") == pytest.approx(0.0015 + 0.004)
    assert spent_usd(tmp_path / "l", NOW, "month") == pytest.approx(0.0055)


def test_a_new_month_starts_at_nothing(tmp_path: Path):
    """A monthly cap counts this month only, a daily one today, a cap a run nothing of other runs."""
    with guard(tmp_path / "l", now=datetime(2026, 10, 31, 23, tzinfo=UTC)) as g:
        g.may_send("old", isl=1000, osl=500)
    assert spent_usd(tmp_path / "l", NOW, "month") == 0
    with guard(tmp_path / "l", now=datetime(2026, 11, 29, 23, tzinfo=UTC)) as g:
        g.may_send("yesterday", isl=1000, osl=500)
    with guard(tmp_path / "l") as g:
        assert [g.spent_usd(p) for p in ("run", "day", "month")] == [0, 0, pytest.approx(0.002)]


def test_the_tightest_cap_binds(tmp_path: Path):
    """Of three caps the one that leaves least stops the run, and is the one that is named."""
    limits = Limits(usd_per_run=0.003, usd_per_day=1.0, usd_per_month=10.0)
    with Guard(tmp_path / "l", PRICE, limits, now=lambda: NOW) as g:
        assert g.estimate([(1000, 500)] * 2).period == "run"
        assert [g.may_send(str(i), isl=1000, osl=500) for i in range(2)] == [True, False]


def test_a_torn_line_is_mended_and_damage_is_not_ignored(tmp_path: Path):
    """A line torn by a kill is cut; damage elsewhere stops everything, because the cap cannot count."""
    with guard(tmp_path / "l") as g:
        g.may_send("a", isl=1000, osl=500)
    with (tmp_path / "l").open("ab") as file:
        file.write(b'{"at": "2026-')
    with guard(tmp_path / "l") as g:
        assert g.spent_usd("month") == pytest.approx(0.002)
        g.may_send("b", isl=1000, osl=500)
    assert spent_usd(tmp_path / "l", NOW, "month") == pytest.approx(0.004)
    (tmp_path / "l").write_text('garbage\n{"at":"2026-11-30T00:00:00+00:00","id":"x","usd":1}\n', encoding="utf-8")
    with pytest.raises(ServefitError, match="line 1"):
        guard(tmp_path / "l")


@pytest.mark.parametrize("usd", ["-5", "NaN", "Infinity", '"x"'])
def test_an_impossible_amount_is_damage(tmp_path: Path, usd: str):
    """A negative or missing amount would lift the cap, so it is refused."""
    (tmp_path / "l").write_text(f'{{"at":"2026-11-30T00:00:00+00:00","id":"x","usd":{usd}}}\n\n', encoding="utf-8")
    with pytest.raises(ServefitError, match="damaged"):
        spent_usd(tmp_path / "l", NOW, "month")


def test_a_line_without_id_is_damage(tmp_path: Path):
    """A line that names no request cannot be settled, so the cap cannot count it."""
    (tmp_path / "l").write_text('{"at":"2026-11-30T00:00:00+00:00","usd":1}\n\n', encoding="utf-8")
    with pytest.raises(ServefitError, match="damaged"):
        spent_usd(tmp_path / "l", NOW, "month")


def test_one_capped_run_at_a_time(tmp_path: Path):
    """Two runs cannot spend the same dollar."""
    with guard(tmp_path / "l"), pytest.raises(ServefitError, match="Another run"):
        guard(tmp_path / "l")


def test_no_output_price_no_cap(tmp_path: Path):
    """Without an output price the worst case is not known, so nothing is sent."""
    with (
        Guard(tmp_path / "l", TokenPrice(input_usd_per_mtok=1.0), Limits(usd_per_run=1.0)) as g,
        pytest.raises(ServefitError, match="output price"),
    ):
        g.may_send("a", isl=1, osl=1)


def test_where_the_ledger_lies():
    """SERVEFIT_LEDGER first, then the state folder."""
    assert ledger_path({"SERVEFIT_LEDGER": "/x/y"}) == Path("/x/y")
    assert ledger_path({"XDG_STATE_HOME": "/s"}) == Path("/s/servefit/spend.jsonl")


def test_bill_cap_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run that does not fit is exit code 5 with both figures."""
    monkeypatch.setenv("SERVEFIT_LEDGER", str(tmp_path / "l"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FIREWORKS_API_KEY", raising=False)
    args = [
        "cap",
        "-n",
        "100",
        "--isl",
        "6200",
        "--osl",
        "300",
        "--price-in",
        "0.15",
        "--price-out",
        "0.60",
        "--cap",
        "0.10",
    ]
    done = CliRunner().invoke(command, args, standalone_mode=False)
    assert isinstance(done.exception, AnswerIsNo)
    assert "$0.1110 at most" in done.exception.message
