"""A paid target under a cap, measured for real over loopback: the estimate, the stop, the ledger."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from servefit.cli.measure import command
from servefit.errors import AnswerIsNo, ServefitError
from servefit.records import load_run
from servefit.traps.server import in_thread


@pytest.fixture(scope="module")
def url():
    """A server that answers 20 tokens quickly."""
    with in_thread(speed=50.0) as server:
        yield f"{server.url}/plain/v1"


def configure(folder: Path, url: str, cap: float, *, priced: bool = True) -> None:
    """A servefit.toml with a paid target, a cap a run and its prices."""
    price = "[bill.token_prices.shop]\ninput_usd_per_mtok = 1000.0\noutput_usd_per_mtok = 1000.0\n" if priced else ""
    (folder / "servefit.toml").write_text(
        f'[targets.shop]\nurl = "{url}"\nmodel = "m"\npaid = true\n[caps]\nusd_per_run = {cap}\n{price}',
        encoding="utf-8",
    )


def measure(*args: str) -> str:
    """What measure prints; errors are raised."""
    done = CliRunner().invoke(command, ["shop", "--osl", "20", "--isl", "30", "--quiet", *args], standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.output


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a ledger of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERVEFIT_LEDGER", str(tmp_path / "ledger.jsonl"))
    return tmp_path


def test_over_the_cap_nothing_is_sent(here: Path, url: str):
    """100 requests at $0.05 pass a cap of $1: refused before anything is sent, with both figures."""
    configure(here, url, 1.0)
    with pytest.raises(AnswerIsNo, match="Over the cap"):
        measure("-n", "100", "--out", "run")
    assert not (here / "run").exists()


@pytest.mark.slow
def test_what_was_used_is_counted(here: Path, url: str):
    """A run that fits is measured, and the ledger holds what the server counted, warm-up included."""
    configure(here, url, 10.0)
    out = measure("-n", "5", "--out", "run")
    run = load_run(here / "run")
    used = sum((r.isl or 0) + (r.osl or 0) for r in run.rows) * 0.001
    assert len(run.load_rows) == 5
    assert f"used: ${used:.4f} by this run" in out
    assert used > 0


@pytest.mark.slow
def test_a_price_that_is_not_known_is_refused_under_a_cap(here: Path, url: str):
    """A cap without a price cannot be kept, so nothing is sent."""
    configure(here, url, 1.0, priced=False)
    with pytest.raises(ServefitError, match="price"):
        measure("-n", "2", "--out", "run")


@pytest.mark.slow
def test_stops_before_the_cap_is_passed(here: Path, url: str):
    """Another run's spending leaves room for a few: the load ends there, the rows are kept, a finding says why."""
    from servefit.bill.caps import Guard, Limits
    from servefit.bill.cost import TokenPrice
    from servefit.measure.probe import find_endpoint
    from servefit.measure.run import Options
    from servefit.measure.run import measure as run_it
    from servefit.workload.workload import Lengths, Workload

    price = TokenPrice(input_usd_per_mtok=1000.0, output_usd_per_mtok=1000.0)
    workload = Workload(n=40, isl=Lengths(mean=30), osl=Lengths(mean=20), concurrency=4)
    with Guard(here / "ledger.jsonl", price, Limits(usd_per_run=0.6)) as guard:
        options = Options(
            out=here / "run",
            may_send=lambda key, isl, osl: guard.may_send(key, isl=isl, osl=osl),
            settled=lambda row: guard.settle(row.id, row) and None,
        )
        run = run_it(find_endpoint(url, model="m"), workload, options)
        assert guard.spent_usd() <= 0.6
        assert guard.spent_usd() > 0.4
    assert 0 < len(run.load_rows) < 40
    assert "capped" in [f.code for f in run.header.findings]


@pytest.mark.parametrize("cap", ["nan", "inf"])
def test_a_cap_that_is_no_number_is_a_sentence(here: Path, url: str, cap):
    """Not "of the cap of $nan": nothing is sent."""
    configure(here, url, 100.0)
    with pytest.raises(ServefitError, match=f"--max-usd is {cap}"):
        measure("-n", "1", "--out", "run", "--max-usd", cap)
    assert not (here / "run").exists()


def test_max_usd_caps_this_run(here: Path, url: str):
    """--max-usd counts instead of the settings' cap: less than the load costs is refused, nothing is sent."""
    configure(here, url, 100.0)
    with pytest.raises(AnswerIsNo, match="Over the cap"):
        measure("-n", "100", "--out", "run", "--max-usd", "1")
    assert not (here / "run").exists()
