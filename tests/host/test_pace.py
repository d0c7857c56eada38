"""The pace of the machine: what is said follows from the times of equal pieces, and other programs' time is not in them."""

import json

from servefit.check import checkup
from servefit.host.pace import PIECE_NS, Pace, watch


class Clock:
    """A processor clock that runs on when work is done: `took_ns` a round, by turns."""

    def __init__(self, *took_ns):
        self.now, self.took, self.pieces = 0, took_ns, []

    def __call__(self):
        return self.now

    def work(self, rounds):
        """Some rounds of work, at the pace that comes next."""
        per_round = self.took[len(self.pieces) % len(self.took)]
        self.pieces.append(rounds * per_round)
        self.now += rounds * per_round


def test_a_steady_machine_keeps_its_pace():
    """Equal times: a factor of one, whatever the machine's speed, and pieces of about the stated size."""
    for per_round in (3, 70, 900):
        clock = Clock(per_round)
        pace = watch(0.2, clock_ns=clock, work=clock.work)
        assert pace.factor == 1.0 and not pace.wanders
        assert all(abs(piece - PIECE_NS) <= PIECE_NS / 100 + per_round for piece in clock.pieces[2:])
        assert abs(sum(clock.pieces[2:]) - 0.2e9) <= 2 * PIECE_NS


def test_a_neighbour_is_seen():
    """Every third piece takes 1.8 times as long: that is the factor; a single stall among hundreds is none."""
    clock = Clock(100, 100, 180)
    pace = watch(0.2, clock_ns=clock, work=clock.work)
    assert pace.wanders and abs(pace.factor - 1.8) < 1e-9
    once = Clock(*[100] * 99, 4000)
    assert not watch(0.2, clock_ns=once, work=once.work).wanders


def test_a_clock_that_shows_nothing_tells_nothing():
    """Without processor time there is no pace."""
    assert watch(0.2, clock_ns=lambda: 5, work=lambda rounds: None) is None


def test_check_says_it(cli, monkeypatch):
    """A note with both times, the figures as JSON, and nothing where the pace is kept."""
    seen = Pace(fast_s=0.0004, slow_s=0.0007, n=400)
    monkeypatch.setattr(checkup, "watch", lambda _seconds: seen)
    code, out, err = cli("check", "--no-sweep", "--no-servers")
    assert code == 0, err
    assert "does not keep its pace: equal pieces of work took 0.40 ms to 0.70 ms" in " ".join(out.split())
    assert json.loads(cli("check", "--no-sweep", "--no-servers", "--json")[1])["pace"] == {
        "fast_s": 0.0004, "slow_s": 0.0007, "n": 400, "factor": 0.0007 / 0.0004, "wanders": True,
    }  # fmt: skip
    monkeypatch.setattr(checkup, "watch", lambda _seconds: Pace(fast_s=0.0004, slow_s=0.00044, n=400))
    assert "pace" not in cli("check", "--no-sweep", "--no-servers")[1]


def test_this_machine_is_watched():
    """The real clock: hundreds of pieces, none of them below the fast ones by much, none negative."""
    pace = watch(0.1)
    assert pace.n > 20
    assert 0 < pace.fast_s <= pace.slow_s
