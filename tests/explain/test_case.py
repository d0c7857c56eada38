"""The walls from the catalogue: acceptance rows E1 to E5 and C9 by exact value."""

import pytest

from servefit.errors import ServefitError
from servefit.explain.case import Wall, wall_of
from servefit.explain.decompose import Observed
from servefit.explain.rules import diagnose_typed
from servefit.units import fmt, fmt_bytes


def test_kv_of_llama():
    """E1 to E3: 131,072 bytes a token from the model's own shape: 1.57 MB for 12, 1.05 GB for 8,000."""
    kv = wall_of("llama-3.1-8b", None).kv_bytes_per_tok
    assert kv == 131_072
    assert fmt_bytes(12 * kv) == "1.57 MB"
    assert fmt(8000 * kv / 1e9, 3) == "1.049"


def test_the_ceiling_is_bandwidth_over_bytes():
    """C9 and M7: 4.9 GB at 273 GB/s is 55.71 tokens a second; 22.4 ms a token is 80% of it."""
    wall = Wall(weight_bytes=4.9e9, bandwidth_bytes_per_s=273e9)
    assert fmt(1 / wall.floor_itl_s(0), 2) == "55.71"
    found = diagnose_typed(Observed(ttft_s=0.145, itl_s=0.0224, isl=12, osl=100), wall=wall)
    assert fmt(found.ceiling_frac * 100) == "80"


def test_a_near_miss_is_suggested():
    """A misspelt model or device names the nearest."""
    with pytest.raises(ServefitError) as caught:
        wall_of("lama-3.1-8b", None)
    assert "llama-3.1-8b" in caught.value.hint + caught.value.message


def test_nothing_known_is_none():
    """Without model and device no wall is made up."""
    assert wall_of(None, None) == Wall()
