"""`servefit check`: what is this machine, how big a model fits, how fast can it type at most?"""

from typing import Any, cast

import click

from servefit.cli import amounts, names
from servefit.cli.show import emit_json, table
from servefit.errors import AnswerIsNo, ServefitError
from servefit.units import fmt, fmt_both_bytes, fmt_bytes, fmt_percent, fmt_s, parse_bytes


@click.command()
@click.option(
    "--device",
    shell_complete=names.devices,
    help="A device of the catalogue instead of this machine (`servefit devices`).",
)
@click.option(
    "--memory", help="A machine typed in: its memory (36GB is 36 x 10^9 bytes, 36GiB what a box calls 36 GB)."
)
@click.option("--bandwidth", help="Memory bandwidth, with --memory: 273GB/s.")
@click.option("--kind", type=click.Choice(["unified", "gpu", "cpu"]), default="unified", show_default=True,
              help="What --memory is.")  # fmt: skip
@click.option(
    "--model",
    shell_complete=names.models,
    help="A model of the catalogue or a file: does it fit? Exit code 5 where it does not.",
)
@click.option("--precision", default="q4_k_m", show_default=True, help="Precision of the weights.")
@click.option("--usable", "usable_frac", type=amounts.USABLE,
              help="Share of the memory for a model and its KV cache.  [default: by kind]")  # fmt: skip
@click.option("--no-sweep", is_flag=True, help="Do not measure the bandwidth.")
@click.option("--no-servers", is_flag=True, help="Do not ask which servers answer.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(*, device: str | None, memory: str | None, bandwidth: str | None, kind: str, no_sweep: bool, no_servers: bool,
            as_json: bool, **asked: Any) -> None:  # fmt: skip
    """What is this machine, how big a model fits, how fast can it type at most?

    Needs no server and takes under two seconds. Memory and bandwidth decide both answers: every token of one conversation
    reads the whole model once, and reading is slower than the arithmetic on what was read.
    """
    from servefit.check import checkup
    from servefit.facts.precisions import find_precision
    from servefit.settings import load_settings

    settings = load_settings()
    ask = checkup.Ask(**asked, sweep=not no_sweep, servers=not no_servers)
    if (memory is None) != (bandwidth is None):
        raise ServefitError("--memory and --bandwidth are given together.", hint="--memory 36GB --bandwidth 273GB/s")
    find_precision(ask.precision)  # a misspelt one is said also where no bandwidth is known
    if memory is not None and bandwidth is not None:
        size, speed = parse_bytes(memory, bare="gb"), float(parse_bytes(bandwidth.removesuffix("/s"), bare="gb"))
        if size <= 0 or speed <= 0:
            raise ServefitError(
                f"Memory {memory} and bandwidth {bandwidth} must both be above zero.",
                hint="E.g. --memory 36GB --bandwidth 273GB/s.",
            )
        found = checkup.check_typed(size, speed, cast("Any", kind), ask, settings)
    elif device is not None:
        from servefit.facts.devices import find_devices

        found = checkup.check_devices(find_devices(device), ask, settings)
    else:
        found = checkup.check_here(ask, settings)
    if as_json:
        emit_json(checkup.to_json(found))
    else:
        show(found)
    if not found.asked_fits:
        best = max(found.places, key=lambda p: p.budget_bytes)
        raise AnswerIsNo(
            f"{found.asked_model} does not fit: its weights take {fmt_bytes(best.fits[0].weight_bytes)}, and the budget is "
            f"{fmt_bytes(best.budget_bytes)}.",
            hint="Fewer bits a weight (--precision), a smaller model, or another device (--device).",
        )


def show(found: Any) -> None:
    """The check for people: memory and bandwidth first, since they decide."""
    if found.machine is not None:
        _show_machine(found.machine, found.sweep)
    if len(found.places) == 1:
        click.echo()
        _show_place(found.places[0])
    elif found.places:
        _show_places(found.places)
    if found.places:
        low, high = found.band_frac
        click.echo(f"Real runs reach {fmt_percent(low)} to {fmt_percent(high)} of the ceiling: {found.band_source}.")
    if found.servers:
        click.echo()
        _show_servers(found.servers)
    for finding in found.findings:
        click.echo(f"note: {finding}.")
    click.echo(f"next: {_next(found)}")


def _show_machine(machine: Any, read: Any) -> None:
    free = f", {fmt_bytes(machine.available_bytes)} free now" if machine.available_bytes is not None else ""
    limit = f" (a container's limit; the machine has {fmt_both_bytes(machine.machine_memory_bytes)})" if machine.limited_by else ""  # fmt: skip
    click.echo(f"memory     {fmt_both_bytes(machine.memory_bytes)}{limit}{free}")
    if read is not None:
        cached = f", {fmt(read.points[0].bytes_per_s / 1e9)} GB/s from the cache" if read.resident_bytes else ""
        last = read.points[-1].buffer_bytes
        cache = f", past the reported last cache level of {fmt(read.cache_bytes / 2**20)} MiB" if read.cache_bytes and read.past_cache else ""  # fmt: skip
        click.echo(f"bandwidth  {fmt(read.bytes_per_s / 1e9, 1)} GB/s from memory{cached}")
        click.echo(
            f"           measured: {read.kernel}, {read.threads} threads, buffers up to {fmt(last / 2**20)} MiB{cache}"
        )
    kind = "unified memory" if machine.unified else "virtual machine" if machine.virtual else machine.arch
    click.echo(f"chip       {machine.chip or 'unknown'} ({machine.system}, {kind})")
    for gpu in machine.gpus:
        click.echo(f"GPU        {gpu.name}, {fmt_both_bytes(gpu.memory_bytes)}")
    load = machine.load
    busy, steal = fmt_percent(load.busy_frac), fmt_percent(load.steal_frac, 1)
    click.echo(
        f"load       {busy} of the cores busy, {steal} stolen by the hypervisor, 1-minute load {fmt(load.load_1min, 2)}"
    )


def _show_place(place: Any) -> None:
    big, budget = place.biggest, place.budget_bytes
    click.echo(f"{place.name}: {fmt_both_bytes(place.memory_bytes)} at {fmt(place.bandwidth_bytes_per_s / 1e9)} GB/s")
    click.echo(f"           bandwidth {place.bandwidth_source}")
    click.echo(f"budget     {fmt_both_bytes(budget)} for a model and its KV cache: {fmt_percent(place.usable_frac)} of the "
               f"memory ({place.usable_source}; --usable changes it)")  # fmt: skip
    if place.both_budgets_bytes:
        as_gb, as_gib = (fmt(b / 1e9, 1) for b in place.both_budgets_bytes)
        click.echo(f"           {fmt(place.box_gb)} GB on the box is {fmt(place.box_gb)} GiB: read as 10^9 bytes each the "
                   f"budget is {as_gb} GB, as 2^30 it is {as_gib} GB")  # fmt: skip
    name, ref = _billions(big.params), fmt(big.reference_kv_bytes_per_tok / 1024)
    click.echo(f"biggest    about a {name} dense model at {fmt(big.bytes_per_param * 8, 1)} bits a weight ({fmt(big.bytes_per_param, 2)} GB a billion): "
               f"{fmt(big.weight_bytes / 1e9, 1)} GB, typing at most {fmt(big.ceiling_tok_per_s, 1)} tok/s (rounded down: {fmt(big.exact_params / 1e9, 1)} billion weights fit)")  # fmt: skip
    click.echo(f"           room left {fmt(big.room_bytes / 1e9, 1)} GB = {fmt(big.room_tok)} tokens of {ref} KiB "
               f"(Llama-3.1-8B's; {fmt(big.flop_per_byte, 2)} operations a byte: memory sets the pace)")  # fmt: skip
    rows = [_row(f) for f in place.fits]
    headers = ["model", "bits", "weights", "bits/w", "room", "room tok", "ceiling tok/s", "a token", "60-85% tok/s"]
    table(headers, rows, right=tuple(range(2, len(headers))))
    _show_naive(place.fits)
    for note in place.notes:
        click.echo(f"note: {note}.")


def _show_naive(fits: Any) -> None:
    for f in fits:
        if 1e9 < f.naive_bytes < 0.95 * f.weight_bytes:
            click.echo(f"{f.model} is {fmt(f.weight_bytes / 1e9, 1)} GB, not the {fmt(f.naive_bytes / 1e9, 1)} of plain "
                       f"{fmt(f.naive_bytes * 8 / f.params)}-bit weights: scales and wider tensors count.")  # fmt: skip
            return


def _show_places(places: Any) -> None:
    """Several places, one row each: variants of a chip, told apart by their memory, or GPUs beside the CPU."""
    rows = []
    for p in places:
        last = next((f for f in reversed(p.fits) if f.model == places[0].fits[-1].model), p.fits[0])
        rows.append([p.name, fmt_both_bytes(p.memory_bytes), f"{fmt(p.bandwidth_bytes_per_s / 1e9)} GB/s",
                     fmt_bytes(p.budget_bytes), f"about {_billions(p.biggest.params)}", last.model,
                     fmt(last.ceiling_tok_per_s, 1) if last.fits else "does not fit", fmt_s(last.tpot_floor_s)])  # fmt: skip
    table(
        ["place", "memory", "bandwidth", "budget", "biggest dense", "model", "ceiling tok/s", "a token"],
        rows,
        right=(2, 3, 6, 7),
    )
    _show_naive(places[0].fits)
    for line in dict.fromkeys(f"bandwidth {p.bandwidth_source}" for p in places):
        click.echo(line)
    for line in dict.fromkeys(
        f"{p.kind}: {fmt_percent(p.usable_frac)} of the memory is the budget ({p.usable_source})" for p in places
    ):
        click.echo(line)
    for note in dict.fromkeys(n for p in places for n in p.notes):
        click.echo(f"note: {note}.")


def _row(f: Any) -> list[str]:
    band = "-".join(fmt(x, 1) for x in f.band_tok_per_s) if f.band_tok_per_s else "-"
    room = fmt_bytes(f.room_bytes) if f.fits else f"{fmt_bytes(-f.room_bytes)} over"
    return [f.model, f.precision, fmt_bytes(f.weight_bytes), fmt(f.bits_per_weight, 1), room, fmt(f.room_tok),
            fmt(f.ceiling_tok_per_s, 1), fmt_s(f.tpot_floor_s), band]  # fmt: skip


def _billions(params: int) -> str:
    return f"{fmt(params / 1e9)}B" if params >= 1e9 else f"{fmt(params / 1e6)}M"


def _show_servers(servers: Any) -> None:
    here = [s for s in servers if s.answers or s.state in ("silent", "not a model server")]
    for s in here:
        models = f": {', '.join(s.models[:3])}{' ...' if len(s.models) > 3 else ''}" if s.models else ""
        software = f", {s.software}" if s.software else ""
        click.echo(f"server     {' / '.join(s.names)} at {s.url} {s.state}{software}{models}")
    if not any(s.answers for s in here):
        tried = [name for s in servers if s.state == "nobody" for name in s.names]
        click.echo(f"server     none answers (tried {', '.join(tried)})")
    keyed = [name for s in servers if s.state == "key set" for name in s.names]
    without = [name for s in servers if s.state == "no key" for name in s.names]
    click.echo(
        f"hosted     key set: {', '.join(keyed) or 'none'}; no key: {', '.join(without) or 'none'} (never called unasked)"
    )


def _next(found: Any) -> str:
    if found.machine is None:
        return "servefit plan --help (which device, policy and seats for a workload)"
    answering = next((s for s in found.servers if s.answers), None)
    return (
        f"servefit measure {answering.names[0]}"
        if answering
        else "servefit engine start embedded, then servefit measure embedded"
    )
