"""A workload file: read with its faults named, lengths as plain numbers or as tables."""

import pytest

from servefit.errors import ServefitError
from servefit.workload.workload import Lengths, Workload, load_workload, workload_sha256


def test_load_workload(tmp_path):
    """TOML becomes a Workload; `isl = 300` means fixed; a trace's path is taken from the file's folder."""
    path = tmp_path / "w.toml"
    path.write_text(
        '[workload]\nname = "x"\nn = 5\nisl = 300\ntrace = "t.csv"\n[workload.osl]\nkind = "normal"\nsd = 2.0\n'
    )
    workload = load_workload(path)
    assert workload == Workload(
        name="x", n=5, isl=Lengths(mean=300), osl=Lengths(kind="normal", sd=2.0), trace=str(tmp_path / "t.csv")
    )


def test_a_number_is_a_length_of_its_own():
    """500 is always 500 tokens, the same workload as with Lengths; what is no number is told."""
    said = Workload(n=3, isl=500, osl=250)
    assert said == Workload(n=3, isl=Lengths(mean=500), osl=Lengths(mean=250))
    assert workload_sha256(said) == workload_sha256(Workload(n=3, isl=Lengths(mean=500), osl=Lengths(mean=250)))
    for wrong in ("500", 0.5, True, None, (1, 2)):
        with pytest.raises(ServefitError, match="isl is"):
            Workload(isl=wrong)


def test_a_misspelt_key_is_named(tmp_path):
    """A key that is no field is a fault with its name."""
    path = tmp_path / "w.toml"
    path.write_text("rate = 3\n")
    with pytest.raises(ServefitError, match="rate"):
        load_workload(path)


def test_the_name_is_no_part_of_what_is_asked():
    """Two workloads that differ in name alone have the same hash, those that differ in seed do not."""
    assert workload_sha256(Workload(name="a")) == workload_sha256(Workload(name="b"))
    assert workload_sha256(Workload(seed=1)) != workload_sha256(Workload(seed=2))
