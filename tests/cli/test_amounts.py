"""Every number that an option takes has a range, and a slip is one sentence with the option, the value and the range."""

import math

import click
import pytest

from servefit.cli import amounts
from servefit.cli.amounts import Amount
from servefit.cli.main import main
from servefit.errors import ServefitError
from servefit.plan.spec import MAX_SEEDS
from servefit.workload import arrivals


def options(command=main, path=()):
    """Every option of every verb that takes a number: (verb, option)."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from options(command.get_command(click.Context(command), name), (*path, name))
        return
    for param in command.params:
        number = isinstance(param.type, Amount | click.types.IntParamType | click.types.FloatParamType)
        if number and isinstance(param, click.Option):
            yield pytest.param(param, id=" ".join((*path, max(param.opts, key=len))))


@pytest.mark.parametrize("option", list(options()))
@pytest.mark.parametrize("text", ["-1", "0", "nan", "inf", "-inf", "1e-300", "1e300", "9" * 400, "", "x"])
def test_no_number_runs_on_for_ever(option, text):
    """Refused with the option's name, the value and the range, or a number that a service can have."""
    assert isinstance(option.type, Amount), "a number without a range: take one from cli/amounts.py"
    number, refused = read(option, text)
    if refused is None:
        assert math.isfinite(number) and option.type.least <= number <= option.type.most
        assert text in ("-1", "0") or option.type.least <= 0
        return
    assert refused.exit_code == 2
    assert max(option.opts, key=len) in refused.message and text[:40] in refused.message
    assert refused.hint.startswith("Write a ") and " from " in refused.hint


def read(option, text):
    """The number that the option makes of the text, and the error where it refuses."""
    try:
        return option.type.convert(text, option, None), None
    except ServefitError as refused:
        return None, refused


def test_flags_and_files_have_the_same_limits():
    """What -n, --rate and --seeds refuse, a workload file and a plan file refuse too."""
    assert amounts.REQUESTS.most == arrivals.MAX_REQUESTS
    assert amounts.PER_S.least == arrivals.MIN_REQ_PER_S
    assert amounts.SEEDS.most == MAX_SEEDS


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("simulate", "--device", "rtx-4090", "--model", "llama-3.1-8b", "--rate", "1e-300"), "--rate is 1e-300"),
        (("simulate", "--device", "l4", "--model", "llama-3.1-8b", "--rate", "1", "--out", ""), "--out is empty"),
        (("simulate", "--device", "l4", "--model", "llama-3.1-8b", "--rate", "1", "--out="), "--out is empty"),
        (("measure", ""), "What follows 'measure' is empty"),
        (("simulate", "--device", "l4", "--model", "llama-3.1-8b", "--rate", "1", "--accept", "0.5"), "without --draft-tok"),
        (("plan", "--model", "llama-3.1-8b", "--device", "l4", "--rate", "1", "--seeds", "999999999"), "--seeds is 999999999"),
        (("plan", "--model", "llama-3.1-8b", "--device", "l4", "--rate", "1", "--price", "1.10"), "names no device"),
        (("measure", "http://127.0.0.1:1", "--workers", "999999999"), "--workers is 999999999"),
        (("explain", "--ttft", "1s", "--itl", "20ms", "--isl", "9", "--osl", "9", "--cached-ttft", "-1"), "'-1' is a time below zero"),
    ],
)  # fmt: skip
def test_a_slip_is_a_sentence(cli, args, word):
    """Exit code 2 at once, with a hint; nothing is written."""
    code, out, err = cli(*args)
    assert code == 2 and not out
    assert word in err and "hint: " in err
