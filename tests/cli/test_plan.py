"""What `servefit plan` shows: no more than a screen and a half, every line true, everything with --all."""

import json
from dataclasses import replace

import pytest

from servefit.cli.main import run
from servefit.cli.plan_show import edge_in_words, short, show_plan
from servefit.plan.files import load_plan
from servefit.plan.pick import SEATS
from servefit.plan.plan import Edge, SeatTrade

pytestmark = pytest.mark.slow

ASKED = (
    "plan", "--model", "smollm2-135m", "--device", "rtx-4090", "--device", "l4", "--device", "raspberry-pi-4", "--concurrency",
    "4", "-n", "24", "--isl", "64", "--osl", "16", "--ttft-p99", "300ms", "--tpot-p99", "20ms", "--goodput", "95%", "--quiet",
)  # fmt: skip


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The plan, made once through the command line."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    with pytest.raises(SystemExit) as done:
        run([*ASKED, "--out", str(path)])
    assert not done.value.code
    return path


@pytest.fixture
def shown(planned, capsys):
    """The plan's output, short and whole, and the plan."""
    plan = load_plan(planned)
    capsys.readouterr()
    show_plan(plan, planned)
    out = capsys.readouterr().out
    show_plan(plan, planned, everything=True)
    return out, capsys.readouterr().out, plan


def test_the_screen(shown):
    """One row a device and policy with the pick first, at most five assumptions and what-ifs; --all has all of them."""
    out, everything, plan = shown
    lines = out.splitlines()
    assert sum(1 + len(line.rstrip()) // 111 for line in lines) < 45
    start = next(i for i, line in enumerate(lines) if line.startswith("device "))
    rows = []
    for line in lines[start + 2 :]:
        if not line.strip():
            break
        rows.append(line.split()[:3])
    best = plan.candidate(plan.recommended.id)
    assert rows[0] == [best.device, best.policy, str(best.seats)]
    assert len({(device, policy) for device, policy, _ in rows}) == len(rows) <= 5
    ids = [a.id for a in plan.assumptions]
    assert sum(line.split()[:1] in [[i] for i in ids] for line in lines) == 5
    assert all(i in everything for i in ids) and all(w.factor.split(",")[0] in everything for w in plan.what_ifs)
    assert all(note in everything for note in plan.notes)
    assert "buy -" not in everything + out and "next: servefit decide" in out


def test_ranges_that_say_the_same_are_one_row(shown):
    """Merged rows name each policy whose range it is, and no range is left out."""
    out, _, plan = shown
    row = out[out.index("passes with") : out.index("rests on")]
    for r in plan.ranges:
        if r.passing and r.policy != "none":
            assert (
                r.device in row
                and (r.policy in row or "any batching" in row)
                and f"{min(r.passing)} to {max(r.passing)}" in row
            )


def test_provenance_stays_in_the_plan(shown, planned):
    """The price's source is in plan.json, not in the short table."""
    out, _, _ = shown
    assert "silybench" in planned.read_text(encoding="utf-8")
    assert "silybench" not in out


def test_short():
    """Brackets within brackets go, and what follows a semicolon or a colon; a sentence without either stays."""
    assert short("a costs $1.0 an hour (x (y) z, 2026); next.") == "a costs $1.0 an hour"
    assert short("Nothing lies between: no network.") == "Nothing lies between"
    assert short("Half (or so) of it.") == "Half of it"


def test_an_interval_that_reaches_down_to_nothing_is_said_as_its_upper_end():
    """A mean over three schedules may be anything from zero up: "0.00 ms to 3.33 s" reads as a prediction of no wait."""
    edge = Edge(seats=40, reached=True, check="ttft", outside_seats=32, verdict="too close to call", value=1.1,
                target=1.0, interval=(0.0, 3.33))  # fmt: skip
    assert edge_in_words([edge]) == "32: TTFT up to 3.33 s too close"
    assert edge_in_words([replace(edge, interval=(0.5, 3.33))]) == "32: TTFT 500 ms to 3.33 s too close"


def test_the_chosen_range_comes_first_and_the_trade_says_whose_it_is(shown, planned, capsys):
    """Among more ranges than rows the chosen one's is the first; what more seats cost is told of a device and policy."""
    _, _, plan = shown
    best = plan.candidate(plan.recommended.id)
    (own,) = [r for r in plan.ranges if (r.device, r.policy) == (best.device, best.policy)]
    others = tuple(replace(own, tp=tp, passing=(*own.passing, 1000 + tp)) for tp in range(2, 9))
    trade = SeatTrade(from_id=best.id, to_id=best.id, extra_seats=0, memory_bytes=0, capacity_req_per_s=None,
                      goodput_req_per_s=None, p=99, ttft_s=None, tpot_s=None)  # fmt: skip
    show_plan(replace(plan, ranges=(*others, own), seat_trades=(trade,)), planned)
    lines = capsys.readouterr().out.splitlines()
    first = lines[next(i for i, line in enumerate(lines) if line.startswith("passes with")) + 2]
    assert first.startswith(best.device) and best.policy in first and "tp1" in first
    assert any(line.startswith(f"{best.device} {best.policy} tp1, {best.seats} to") for line in lines)


def test_a_finished_plan_is_shown_again(planned, shown, cli):
    """The same screen, whole with --all and the same object with --json; a flag that would change it is one sentence."""
    out, everything, _ = shown
    assert cli("plan", str(planned))[:2] == (0, out)
    assert cli("plan", str(planned), "--all")[:2] == (0, everything)
    assert json.loads(cli("plan", str(planned), "--json")[1]) == json.loads(planned.read_text(encoding="utf-8"))
    code, said, err = cli("plan", str(planned), "--rate", "4", "--device", "l4")
    assert code and not said and "which --device and --rate cannot change" in err


def test_a_device_that_is_only_too_close_says_so(planned, capsys):
    """Every candidate of one device in doubt: its row names the check, a line says what it may be, and no other device's does."""
    plan = load_plan(planned)
    best = plan.candidate(plan.recommended.id)
    other = next(c.device for c in plan.candidates if c.device != best.device and c.verdict == "pass")

    def doubt(c):
        if c.device != other or c.verdict != "pass":
            return c
        changed = (
            replace(k, verdict="too close to call", interval=(0.001, 0.5)) if k.name == "tpot" else k for k in c.checks
        )
        return replace(c, checks=tuple(changed), verdict="too close to call")

    show_plan(replace(plan, candidates=tuple(doubt(c) for c in plan.candidates)), planned)
    out = capsys.readouterr().out
    assert f"{other} is too close to call at its nearest (" in out and "but may be 1.00 ms to 500 ms." in out
    assert out.count("at its nearest") == 1 and "too close: TPOT" in out


def test_each_precision_that_was_asked_has_a_row(planned, capsys):
    """Asked about bf16 and int8, the screen shows both without --all; two replicas have their number of devices in a column."""
    plan = load_plan(planned)
    best = plan.candidate(plan.recommended.id)
    twin = replace(best, id=f"{best.id}-int8", precision="int8", replicas=2)
    both = replace(plan, spec=replace(plan.spec, precisions=("bf16", "int8")), candidates=(*plan.candidates, twin))
    show_plan(both, planned)
    out = capsys.readouterr().out.split("\n\n")[2].splitlines()
    assert out[0].split()[:5] == ["device", "how", "policy", "seats", "devices"]
    rows = [line.split() for line in out[2:] if line.startswith(best.device)]
    assert [row[1] for row in rows] == [best.precision, "int8"]
    assert [row[row.index(best.policy) + 2] for row in rows] == ["1", "2"]


@pytest.mark.parametrize(
    ("flags", "said", "defaults"),
    [
        ((), "No target is given; by default TTFT is at most 100 ms, TPOT at most 10 ms, goodput at least 99%", 3),
        (("--ttft", "1s"), "By default goodput is at least 99%", 1),
        (("--ttft", "1s", "--p", "95"), "By default goodput is at least 95%", 1),
        (("--p", "90"), "goodput at least 90%", 3),
        (("--ttft", "1s", "--goodput", "95%"), "", 0),
    ],
)
def test_a_target_that_nobody_set_is_said_to_be_a_default(cli, tmp_path, flags, said, defaults):
    """On stderr, and beside the promise; with targets of one's own nothing is said."""
    asked = ("--model", "smollm2-135m", "--device", "l4", "--policy", "none", "--rate", "1", "-n", "5", "--seeds", "1")
    _, out, err = cli("plan", *asked, "--quiet", "--out", str(tmp_path / "plan.json"), *flags)
    assert (said in err) if said else not err, err
    promised = next(line for line in out.splitlines() if line.startswith("promised: "))
    assert promised.count("(by default)") == defaults


def test_a_range_without_a_high_end_is_said_to_have_none(planned, capsys):
    """Where more seats change nothing, the rule's "both ends" would contradict the range on the same screen."""
    plan = load_plan(planned)
    best = plan.candidate(plan.recommended.id)

    def shown_with(why):
        edge = Edge(
            seats=best.seats, reached=False, why_not=why, check=None, outside_seats=None, value=None, target=None
        )
        ours = (best.device, best.policy)
        ranges = tuple(replace(r, high=edge) if (r.device, r.policy) == ours else r for r in plan.ranges)
        show_plan(replace(plan, ranges=ranges, recommended=replace(plan.recommended, rule=SEATS)), planned)
        return capsys.readouterr().out

    assert "farthest from the low end of the passing range" in shown_with(
        "more change nothing: never more than 27 at once"
    )
    assert "farthest from both ends of the passing range" in shown_with("more were not tried")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--p", "97"), "--p is 97."),
        (("--quality-at-least", "0.5"), "--quality-at-least is 0.5, and no scores are given"),
    ],
)
def test_what_is_wrong_is_named_as_it_was_given(cli, tmp_path, flags, said):
    """A flag by its flag, a line of a file by the file and its key."""
    asked = ("--model", "smollm2-135m", "--device", "l4", "--rate", "1", "--ttft", "1s", "--goodput", "0.9", "--quiet")
    code, _, err = cli("plan", *asked, "--out", str(tmp_path / "plan.json"), *flags)
    assert (code, said in err, "flags:" in err) == (2, True, False), err
    file = tmp_path / "question.toml"
    file.write_text(
        'models = "smollm2-135m"\ndevices = "l4"\nquality_at_least = 0.5\n[workload]\nrate_req_per_s = 1\n[targets]\nttft = "1 s"\np = 97\n'
    )
    code, _, err = cli("plan", str(file), "--quiet", "--out", str(tmp_path / "plan.json"))
    assert (code, "question.toml: p is 97." in err) == (2, True), err
