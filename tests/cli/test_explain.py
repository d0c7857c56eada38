"""servefit explain as people and programs call it."""

import json

import pytest
from click.testing import CliRunner

from servefit.cli.explain import command
from servefit.errors import ServefitError


def call(*args: str) -> str:
    """What the command prints; errors are raised as they are."""
    done = CliRunner().invoke(command, list(args), catch_exceptions=False, standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.output


def test_typed_numbers_as_json():
    """One object with the exact times: 6.578 s of writing, 7.353 s in all, 89%."""
    value = json.loads(call("--prefill-rate", "8,000", "--itl", "22ms", "--isl", "6,200", "--osl", "300", "--json"))
    wait = value["waits"][0]
    assert value["kind"] == "slow to type"
    assert wait["ttft_s"] == 0.775
    assert wait["writing_s"] == pytest.approx(6.578)
    assert wait["total_s"] == pytest.approx(7.353)
    assert [p["name"] for p in wait["parts"]] == ["prefill", "decode"]


def test_show_work_has_the_readers_numbers():
    """Every formula is printed with the numbers that were typed."""
    out = call("--ttft", "780ms", "--itl", "22ms", "--isl", "6200", "--osl", "300", "--show-work")
    assert "299 x 22.0 ms = 6.578 s" in out
    assert "6,200 tok / 780 ms = 7,949 tok/s" in out
    assert "next:" in out


def test_bare_numbers_are_milliseconds():
    """M18: 4,210 is 4.21 s."""
    value = json.loads(call("--ttft", "4,210", "--itl", "24.1", "--isl", "8000", "--osl", "2", "--json"))
    assert value["waits"][0]["ttft_s"] == 4.21


@pytest.mark.parametrize("one", [["--ttft", "780ms"], ["--e2e", "7.4s"], ["--itl", "22ms"]])
def test_one_number_is_refused(one: list[str]):
    """E9, at the command line."""
    with pytest.raises(ServefitError, match="which half"):
        call(*one, "--osl", "300")


@pytest.mark.parametrize(
    "bad", [["--isl", "ten"], ["--isl", "-5"], ["--isl", "1.5"], ["--ttft", "5 GB"], ["--prefill-rate", "0"]]
)
def test_bad_numbers_are_one_sentence(bad: list[str]):
    """What cannot be read is said with the value, never a traceback."""
    good = {"--ttft": "780ms", "--itl": "22ms", "--isl": "6200", "--osl": "300"}
    good[bad[0]] = bad[1]
    with pytest.raises(ServefitError) as caught:
        call(*[word for pair in good.items() for word in pair])
    assert bad[1].split()[0] in caught.value.message
