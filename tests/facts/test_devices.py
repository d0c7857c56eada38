"""Devices: found by any spelling, every figure cited, ambiguity asked about."""

from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.facts.devices import all_devices, describe_range, find_device, find_devices, load_device
from servefit.units import GB, GIB


def test_at_least_forty_devices_of_every_kind():
    """The catalogue holds discrete, unified and CPU devices, forty or more."""
    devices = all_devices()
    assert len(devices) >= 40
    assert {d.kind for d in devices} == {"gpu", "unified", "cpu"}


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.name)
def test_every_figure_has_source_date_and_status(device):
    """No figure stands without where it comes from; the cited value is the field's."""
    for name, figure in device.cited.items():
        assert figure.source and (figure.date or name == "usable_memory_frac"), name
        assert figure.value == pytest.approx(getattr(device, name))
    assert {"memory_bytes", "bandwidth_bytes_per_s"} <= set(device.cited)


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.name)
def test_figures_are_plausible_and_dense(device):
    """Units did not slip: memory, bandwidth and peaks lie where such devices lie; a sparse peak would fail."""
    assert 8 * GIB <= device.memory_bytes <= 1024 * GIB
    assert 10 * GB <= device.bandwidth_bytes_per_s <= 9e12
    if device.flop_per_s:
        assert 0.04e12 <= device.flop_per_s <= 2.6e15
        assert device.flop_per_s / device.bandwidth_bytes_per_s < 500
    if device.flop_fp8_per_s and device.flop_per_s:
        assert device.flop_fp8_per_s <= 2.05 * device.flop_per_s


@pytest.mark.parametrize(
    ("spelling", "slug"),
    [("RTX 4090", "rtx-4090"), ("NVIDIA GeForce RTX 4090 24GB", "rtx-4090"), ("a100_80gb", "a100-80gb"), ("H200", "h200-sxm"),
     ("m4-max-36gb", "m4-max-36gb"), ("Apple M4 Max, 32-core GPU, 36 GB", "m4-max-36gb"), ("MI300X", "mi300x"), ("cpu", "cpu-small")],
)  # fmt: skip
def test_any_spelling_finds_it(spelling, slug):
    """Case, spaces, dashes and the maker's name do not matter."""
    assert find_device(spelling).name == slug


def test_a_near_miss_is_suggested():
    """A misspelt name names its neighbours."""
    with pytest.raises(ServefitError) as caught:
        find_device("rtx-4909")
    assert "rtx-4090" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "low", "high"), [("m4-max", "410", "546"), ("m3-max", "300", "400"), ("h100", "2,000", "3,938")]
)
def test_both_versions_are_asked_about(name, low, high):
    """C12: a name that is two bandwidths is asked about, and its range can be shown."""
    with pytest.raises(ServefitError, match="more than one device"):
        find_device(name)
    assert describe_range(find_devices(name)) == f"{low} to {high} GB/s"


def test_a_36_gb_m4_max_is_the_slower_part():
    """The 36 GB M4 Max is the 410 GB/s one; 273 is the M4 Pro."""
    assert find_device("m4-max-36gb").bandwidth_bytes_per_s == 410e9
    assert find_device("m4-pro-24gb").bandwidth_bytes_per_s == 273e9


def test_unified_memory_is_not_all_a_models():
    """C17: 70 % of unified memory, an assumption that says so; an engine's 90 % on a discrete GPU."""
    mac, gpu = find_device("m4-max-36gb"), find_device("rtx-4090")
    assert mac.usable_memory_frac == 0.7 and mac.cite("usable_memory_frac").status == "assumed"
    assert gpu.usable_memory_frac == 0.9
    assert mac.memory_bytes == 36 * GIB


def test_a_device_of_six_numbers(tmp_path: Path):
    """A TOML file of six numbers is a device; what is not cited is "given"."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "Mine"\nkind = "gpu"\nmemory = "24 GiB"\nbandwidth_gb_per_s = 1000\nbf16_tflop_per_s = [100, "datasheet", "seen"]\n'
        "fp8_tflop_per_s = 200\nlink_gb_per_s = 32\nlink_latency_us = 5\n",
        encoding="utf-8",
    )
    device = load_device(path)
    assert (device.name, device.memory_bytes, device.bandwidth_bytes_per_s) == ("mine", 24 * GIB, 1e12)
    assert device.link_latency_s == pytest.approx(5e-6)
    assert device.cite("flop_per_s").source == "datasheet" and device.cite("link_bytes_per_s").status == "given"
    assert find_device(str(path)) == device


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "memory_bytes is missing"), ("memory_gib = 24", "bandwidth_bytes_per_s is missing"),
     ("memory_gib = 24\nbandwidth_gb_per_s = -1", "not a positive number"), ("memory_gib = true", "not a positive number"),
     ("memory_gib = 24\nbandwith = 5", "'bandwith' is not a figure"), ('kind = "npu"', "no kind of device"),
     ("memory_gib = 24\nbandwidth_gb_per_s = 9\nusable_memory_frac = 1.5", "more than all of it"),
     ('memory_gib = [24, "me", "sure"]', "has the status 'sure'"), ("memory_gib = nan\nbandwidth_gb_per_s = 1", "not a positive")],
)  # fmt: skip
def test_a_bad_device_file_is_said_in_a_sentence(tmp_path: Path, text, said):
    """Missing, misspelt and impossible figures are named."""
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ServefitError) as caught:
        load_device(path)
    assert said in caught.value.message and caught.value.hint
