"""Text figures: widths, shades and roofs that can be checked by eye."""

from explain.runs import by_hand, simulate, stream
from servefit.explain.case import Case, Wall
from servefit.explain.decompose import Observed, divide, divide_run
from servefit.explain.pictures import draw_roofline, draw_strip, itl_strip, roofline_dots, waterfall

SUPPORT = Observed(ttft_s=0.775, itl_s=0.022, isl=6200, osl=300, prefill_tok_per_s=8000)
WALL = Wall(
    weight_bytes=4.9e9, kv_bytes_per_tok=131072, bandwidth_bytes_per_s=273e9, active_params=8.03e9, flop_per_s=17e12
)


def test_a_bar_is_as_long_as_its_time():
    """Ten percent of the wait is ten percent of the bar; a shorter wait has a shorter bar."""
    short = divide(Observed(ttft_s=0.3, itl_s=0.01, isl=10, osl=37), label="b")
    lines = waterfall((divide(SUPPORT, label="a"), short), width=100)
    assert lines[0].count("P") == 11
    assert lines[0].count("D") == 89
    assert lines[1].count("S") == 4
    assert lines[1].count("D") == 5


def test_a_queue_has_its_own_letter():
    """A run that waits for seats shows Q before P."""
    lines = waterfall(divide_run(simulate(users=8, seats=2)))
    assert "Q queue" in lines[-1]
    assert "Q" in lines[1]


def test_the_strip_shows_where_it_stalled():
    """One gap of 50 times the usual in the middle is the only @."""
    run = by_hand([stream(0, 0.0, 0.1, [0.01] * 300 + [0.5] + [0.01] * 300)])
    strip = itl_strip(run)
    cells = draw_strip(strip)[0]
    assert cells.count("@") == 1
    assert 20 < cells.index("@") < 40


def test_no_gaps_no_strip():
    """A run without gaps has no strip."""
    assert itl_strip(by_hand([stream(0, 0.0, 0.1, [])])) is None


def test_decode_and_prefill_under_their_roofs():
    """Decode at 80% of its bandwidth roof, prefill of 8,000 tokens in 4.21 s far above a 17 TFLOP/s peak: said."""
    dots = roofline_dots(Case(seen=Observed(ttft_s=4.21, itl_s=0.0224, isl=8000, osl=2), wall=WALL))
    decode, prefill = dots
    assert round(decode.roof_frac, 2) == round((4.9e9 + 8001 * 131072) / 273e9 / 0.0224, 2)
    assert round(prefill.flop_per_s / 1e12, 1) == 30.5
    assert any("ABOVE THE ROOF" in line for line in draw_roofline(dots, ""))


def test_no_walls_no_roof():
    """Without a model and a device nothing is drawn."""
    assert roofline_dots(Case(seen=SUPPORT)) == ()
    assert draw_roofline((), "") == []
