"""servefit explain as people and programs call it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from explain.runs import by_hand, stream
from servefit.cli.explain import command
from servefit.errors import ServefitError
from servefit.records import save_run


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


def test_the_seeds_sample_from_end_to_end():
    """8,000 tokens in 4.21 s at 24.1 ms, 12 tokens at 22.4 ms: the prompt was cut to about 2,850 tokens, in words and as a number."""
    sample = (
        "--ttft", "4,210", "--itl", "24.1", "--isl", "8,000", "--osl", "100", "--short-ttft", "145", "--short-itl", "22.4",
        "--short-isl", "12", "--weights", "4.9GB", "--kv-per-tok", "131072", "--bandwidth", "273GB/s",
    )  # fmt: skip
    out = call(*sample, "--show-work")
    assert "grew 7.6% where the bytes of 8,000 tokens say 21.4%" in out
    assert "about 2,850 tokens" in out
    assert "= 2,850 tok" in out
    assert "8,000 tok / 4.21 s = 1,900 tok/s" in out
    value = json.loads(call(*sample, "--json"))
    assert next(c["value"] for c in value["causes"] if c["code"] == "prompt_cut") == 2850


def test_the_working_of_a_run_adds_up(tmp_path: Path):
    """The median gap is not the mean one: the line for writing gives the writing that the whole wait is made of."""
    rows = [stream(i, i * 9.0, 0.1, [0.01] * 19 + [0.41]) for i in range(5)]
    save_run(by_hand(rows), tmp_path / "run")
    out = call(str(tmp_path / "run"), "--show-work")
    assert "20 x 30.0 ms = 600 ms" in out
    assert "100 ms + 600 ms = 700 ms" in out
    assert "again, after one change" in out
    assert "from here on" not in out


def test_the_working_says_which_request_it_is_about(tmp_path: Path):
    """The median wait and the median TTFT may be two requests: then the working says where it changes from one to the other."""
    waits = [(0.1, 0.09), (0.2, 0.01), (0.3, 0.02)]  # whole waits of 1.9, 0.4 and 0.7 s: the third is in the middle
    save_run(by_hand([stream(i, i * 9.0, t, [g] * 20) for i, (t, g) in enumerate(waits)]), tmp_path / "run")
    out = call(str(tmp_path / "run"), "--show-work")
    assert "300 ms + 400 ms = 700 ms" in out
    assert "from here on: the request with the median TTFT (200 ms, gap 10.00 ms)" in out


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


def test_a_run_and_typed_numbers_are_one_too_many(cli, tmp_path):
    """A number typed beside a run would be passed over without a word."""
    code, _, err = cli("explain", str(tmp_path), "--ttft", "780ms")
    assert code == 2 and "a run has its own numbers" in err


def test_the_fixes_say_whose_figures_they_are_computed_from(tmp_path: Path):
    """The request in the middle by TTFT is not the one in the middle by the whole wait: the fixes name theirs."""
    rows = [stream(i, i * 9.0, 0.1 + i / 100, [0.01 * (6 - i)] * 40) for i in range(5)]
    rows[2] = stream(2, 18.0, 0.12, [0.001] * 40)  # the median TTFT, and the shortest wait
    save_run(by_hand(rows), tmp_path / "run")
    out = call(str(tmp_path / "run"))
    assert "by how much here (for the request with the median TTFT (120 ms, gap 1.00 ms); above" in out
    same = [stream(i, i * 9.0, 0.1, [0.01] * 40) for i in range(5)]
    save_run(by_hand(same), tmp_path / "same")
    assert "by how much here:" in call(str(tmp_path / "same"))


@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        ((), "give --model and --device"),
        (("--model", "llama-3.1-8b"), "give --device for"),
        (("--device", "rtx-4090"), "give --model for"),
    ],
)
def test_only_the_flags_that_are_missing_are_asked_for(given: tuple[str, ...], lacking: str):
    """What was given is not asked for again."""
    assert lacking in call("--ttft", "780ms", "--itl", "22ms", "--isl", "6200", "--osl", "300", *given)
