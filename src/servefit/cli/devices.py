"""`servefit devices [NAME...]`: the devices in the catalogue, every figure with its source, date and status."""

from typing import Any

import click

from servefit.cli import names as complete
from servefit.cli.show import emit_json, table
from servefit.facts.cited import Cited
from servefit.facts.devices import Device, all_devices, describe_range, find_devices
from servefit.facts.prices import HourlyPrice, hourly
from servefit.units import GB, GIB, fmt, fmt_both_bytes, fmt_percent, fmt_s

_LABELS = {
    "memory_bytes": "memory", "bandwidth_bytes_per_s": "bandwidth", "flop_per_s": "16-bit dense peak",
    "flop_fp8_per_s": "FP8 dense peak", "flop_int8_per_s": "INT8 dense peak", "flop_fp4_per_s": "FP4 dense peak",
    "link_bytes_per_s": "link, one way", "link_latency_s": "link latency", "usable_memory_frac": "usable memory",
}  # fmt: skip


@click.command()
@click.argument("names", nargs=-1, shell_complete=complete.devices, metavar="[NAME | FILE.toml]...")
@click.option("--kind", type=click.Choice(["gpu", "unified", "cpu"]), help="Only devices of this kind.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(names: tuple[str, ...], kind: str | None, as_json: bool) -> None:
    """The devices in the catalogue: memory, bandwidth, dense peaks; with NAME, each figure's source, date and status.

    A name that is several devices (m4-max) shows all of them and their range. A device of your own is a TOML file of six
    numbers: see docs/physics.md.
    """
    found = [d for name in names for d in find_devices(name)] if names else list(all_devices())
    found = [d for d in found if kind is None or d.kind == kind]
    if as_json:
        emit_json({"devices": [_json(d) for d in found]})
        return
    if names:
        for name in names:
            several = find_devices(name)
            if len(several) > 1:
                click.echo(f"{name} is {len(several)} devices, {describe_range(several)}: say which.\n")
            for device in several:
                _details(device)
        click.echo("next: servefit plan (which device passes your targets?), or servefit models --on " + found[0].name)
        return
    _listing(found)


def _json(device: Device) -> dict[str, Any]:
    figures = {
        name: {"value": c.value, "source": c.source, "date": c.date, "status": c.status}
        for name, c in device.cited.items()
    }
    prices = [
        {"provider": p.provider, "usd_per_hour": p.usd_per_hour, "provisioning": p.provisioning, "product": p.product,
         "least_devices": p.least_devices, "date": p.date, "source": p.source, "status": p.status}
        for p in _prices(device)
    ]  # fmt: skip
    return {
        "name": device.name, "title": device.title, "kind": device.kind, "note": device.note, "figures": figures,
        "usd_per_hour": prices,
    }  # fmt: skip


def _prices(device: Device) -> tuple[HourlyPrice, ...]:
    known = {d.name for d in all_devices()}
    return hourly(device.name, kinds=("on-demand", "spot", "dedicated")) if device.name in known else ()


def _listing(devices: list[Device]) -> None:
    rows = []
    for d in devices:
        prices = hourly(d.name)
        rows.append([
            d.name, d.title, f"{fmt(d.memory_bytes / GIB, 1)} GiB", f"{fmt(d.bandwidth_bytes_per_s / GB)} GB/s", _tera(d, "flop_per_s"),
            _tera(d, "flop_fp8_per_s"), f"${fmt(prices[0].usd_per_hour, 2)}" if prices else "-", "*" if _doubt(d) else "",
        ])  # fmt: skip
    headers = ["name", "device", "memory", "bandwidth", "16 bit", "FP8", "from /h", ""]
    table(headers, rows, title=f"{len(devices)} devices (peaks in TFLOP/s, dense)", right=(2, 3, 4, 5, 6))
    click.echo(
        "* has a figure that is disputed, unverified or assumed: servefit devices NAME says which, and every source."
    )
    click.echo("next: servefit devices NAME, or servefit models")


def _doubt(device: Device) -> list[str]:
    return [n for n in device.doubtful if n in {"bandwidth_bytes_per_s", "flop_per_s", "flop_fp8_per_s"}]


def _tera(device: Device, figure: str) -> str:
    value: float | None = getattr(device, figure)
    return fmt(value / 1e12, 0 if value >= 1e13 else 1) if value else "-"


def _details(device: Device) -> None:
    rows = [
        [_LABELS[name], _value(name, cited), cited.status, cited.date or "-", cited.source]
        for name, cited in device.cited.items()
    ]
    table(
        ["figure", "value", "status", "date", "source"],
        rows,
        title=f"{device.name}: {device.title} ({device.kind})",
        right=(1,),
    )
    if device.note:
        click.echo(f"note: {device.note}")
    if missing := [label for name, label in _LABELS.items() if getattr(device, name) is None]:
        click.echo(f"not known, so not used: {', '.join(missing)}")
    if prices := _prices(device):
        rows = [
            [p.provider, p.product, p.provisioning, f"${fmt(p.usd_per_hour, 2)}", str(p.least_devices), p.date, p.status, p.source]
            for p in prices
        ]  # fmt: skip
        table(["provider", "product", "how", "per hour", "least", "date", "status", "source"], rows, right=(3, 4))
    click.echo()


def _value(name: str, cited: Cited) -> str:
    if name == "memory_bytes":
        return fmt_both_bytes(cited.value)
    if name == "usable_memory_frac":
        return fmt_percent(cited.value)
    if name == "link_latency_s":
        return fmt_s(cited.value)
    if name.endswith("bytes_per_s"):
        return f"{fmt(cited.value / GB, 0 if cited.value >= 1e11 else 1)} GB/s"
    return f"{fmt(cited.value / 1e12, 1)} TFLOP/s"
