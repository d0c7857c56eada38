"""`servefit plan`: which device, policy and batch limit meets every target, and by how much?"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import amounts, names, show
from servefit.cli.keep import check_not_decided_on, check_not_read
from servefit.cli.promises import goodput, goodput_option, latencies, latency_options
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from servefit.plan.spec import GivenPrice, PlanSpec


@click.command(name="plan")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--model",
    "models",
    shell_complete=names.models,
    multiple=True,
    help="Catalogue name, config.json or .gguf; may be repeated.",
)
@click.option(
    "--device",
    "devices",
    shell_complete=names.devices,
    multiple=True,
    help="Catalogue name or device TOML; may be repeated. See servefit devices.",
)
@click.option("--precision", "precisions", multiple=True, help="bf16, fp8, awq, q4_k_m ...  [default: the model's own]")
@click.option("--kv-bits", type=amounts.BITS, multiple=True, help="Bits of a KV cache value.  [default: 16]")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help="none, static, dynamic, continuous, chunked.  [default: all but dynamic]",
)
@click.option("--seats", multiple=True, help="Batch limits to try: 8 or 4,8,16.  [default: until both edges are found]")
@click.option(
    "--budget-tok", "budgets_tok", type=amounts.TOK, multiple=True, help="Tokens of one step.  [default: 2048]"
)
@click.option("--replicas", type=amounts.COPIES, multiple=True, help="Copies behind a router.  [default: 1]")
@click.option("--tp", type=amounts.SPREAD, multiple=True, help="GPUs that one copy is spread over.  [default: 1]")
@click.option("--rate", type=amounts.PER_S, metavar="R", help="Requests per second, whatever becomes of them.")
@click.option("--concurrency", type=amounts.USERS, metavar="C", help="C users, each asking again when answered.")
@click.option("--trace", type=click.Path(), help="Azure CSV, Mooncake JSONL, or a run: replayed as it was.")
@click.option("--arrivals", type=click.Choice(["poisson", "constant", "gamma", "burst"]), help="How they arrive.")
@click.option("--burstiness", type=amounts.SHAPE, help="Gamma shape: below 1 burstier than Poisson.")
@click.option("-n", "n", type=amounts.REQUESTS, help="Requests of one schedule.  [default: 1000]")
@click.option("--isl", type=amounts.TOK, help="Prompt tokens.  [default: 512]")
@click.option("--osl", type=amounts.TOK, help="Answer tokens.  [default: 256]")
@click.option(
    "--shared-prefix", "shared_prefix_tok", type=amounts.ANY_TOK, help="Tokens at the start that all prompts share."
)
@click.option("--prefix-cache", is_flag=True, help="The engine keeps shared prefixes.")
@click.option("--seed", type=amounts.SEED, help="Seed of the first schedule.  [default: 0]")
@click.option("--seeds", type=amounts.SEEDS, help="Schedules per candidate.  [default: 3]")
@latency_options(99)
@goodput_option(rate=True)
@click.option("--usd-per-hour", type=amounts.USD, help="At most so many dollars an hour, all replicas together.")
@click.option("--usd-per-mtok", type=amounts.USD, help="At most so many dollars per million output tokens.")
@click.option(
    "--price", "prices", multiple=True, metavar="DEVICE=USD", help="What you pay for one an hour; may be repeated."
)
@click.option("--quality", type=click.Path(), help="Scores by precision (see the guide), from lm-evaluation-harness.")
@click.option("--quality-at-least", type=amounts.SCORE, help="A precision that scores below it does not pass.")
@click.option(
    "--calibration", "calibrations", type=click.Path(), multiple=True, help="A calibration: its device is measured."
)
@click.option("--engine", help="Published engine constants, or 'datasheet' for none.")
@click.option("--kv-blocks", type=amounts.BLOCKS, help="The engine's own logged block count: it wins over the formula.")
@click.option("--peak", "peak_req_per_s", type=amounts.USD, help="Peak rate that the replicas must carry.")
@click.option("--headroom", help="The peak may turn out so much higher.  [default: 20%]")
@click.option(
    "--pick", type=click.Choice(["measured", "cheapest", "margin", "capacity"]), help="Which of those that pass."
)
@click.option("--jobs", type=amounts.PROCESSES, help="Processes.  [default: all cores for a large search]")
@click.option("--ray", "ray_address", metavar="ADDRESS", help="A Ray cluster instead of processes.")
@click.option("--out", type=click.Path(path_type=Path), help="Where plan.json goes.  [default: plan.json]")
@click.option("--force", is_flag=True, help="Write over a plan that a decision beside it rests on.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--all", "everything", is_flag=True, help="Every candidate, assumption and what-if on the screen.")
@click.option("--json", "as_json", is_flag=True, help="The whole plan as one JSON object on stdout.")
def command(
    file: Path | None, *, jobs: int | None, out: Path | None, as_json: bool, everything: bool, **given: Any
) -> int:
    """Which device, policy and batch limit meets every target under this traffic, by how much, and what does it rest on?

    FILE: a question in TOML; flags win over it. A finished plan.json is shown again, nothing is simulated. For example

    servefit plan --model llama-3.1-8b --device a100-80gb --device rtx-4090 --rate 4 --ttft-p99 500ms --tpot-p99 30ms

    Without any target: TTFT at most 100 ms, TPOT at most 10 ms (or servefit.toml's); goodput at least 99% (95% with --p 95) unless said.

    Exit code 0: something passes; 5: nothing does, and the nearest thing that works is named.
    """
    from servefit.cli.plan_show import show_plan
    from servefit.cli.progress import progress
    from servefit.cli.show import emit_json
    from servefit.files import check_writable
    from servefit.plan.files import plan_to_json, save_plan
    from servefit.plan.search import make_plan

    if file and file.suffix == ".json":
        return _show_again(file, as_json=as_json, everything=everything)
    spec = read_spec(file, given)
    if jobs is not None and jobs < 1:
        raise ServefitError(f"--jobs is {jobs}.", hint="One process or more.")
    path = out or Path("plan.json")
    if out is not None or not as_json:
        check_not_read(path, [file, *spec.calibrations])
        check_writable(path)
        if not given["force"]:
            check_not_decided_on(path, what="this plan", force=True)
    with progress(quiet=given["quiet"] or as_json) as on_done, _cluster(given["ray_address"]):
        plan = make_plan(spec, jobs=jobs or _jobs(spec), ray_address=given["ray_address"], on_done=on_done)
    if out is not None or not as_json:
        save_plan(plan, path)
    if as_json:
        emit_json(plan_to_json(plan))
    else:
        show_plan(plan, path, everything=everything)
    return 0 if plan.recommended else 5


def _show_again(file: Path, *, as_json: bool, everything: bool) -> int:
    """A finished plan on the screen. Raises ServefitError where it is none, or where a flag would change it."""
    from click.core import ParameterSource

    from servefit.cli.plan_show import show_plan
    from servefit.plan.files import load_plan, plan_to_json

    context = click.get_current_context()
    shows = ("file", "as_json", "everything", "quiet")
    changes = [
        p.opts[0]
        for p in context.command.params
        if p.name and p.name not in shows and context.get_parameter_source(p.name) == ParameterSource.COMMANDLINE
    ]
    if changes:
        raise ServefitError(
            f"{file} is a finished plan, which {' and '.join(changes)} cannot change.",
            hint="Leave it out to see the plan again (--all and --json work), or ask anew with a TOML file or flags alone.",
        )
    plan = load_plan(file)
    if as_json:
        show.emit_json(plan_to_json(plan))
    else:
        show_plan(plan, file, everything=everything)
    return 0 if plan.recommended else 5


def _cluster(ray_address: str | None) -> "AbstractContextManager[Any]":
    """One connection for the whole search, whose steps would else connect one by one."""
    from contextlib import nullcontext

    if ray_address is None:
        return nullcontext()
    from servefit.host.ray_cluster import connected

    return connected(ray_address, purpose="plan --ray")


def _jobs(spec: "PlanSpec") -> int:
    """All cores where the search is large enough to pay for starting them."""
    rows = len(spec.devices) * len(spec.policies) * max(1, len(spec.precisions)) * len(spec.replicas)
    return (os.cpu_count() or 1) if rows * spec.workload.n * spec.seeds > 20_000 else 1


def read_spec(file: Path | None, given: dict[str, Any]) -> "PlanSpec":
    """The question of a file, of servefit.toml's objectives, and of flags; flags win. Raises ServefitError."""
    from servefit.plan.spec import FLAGS, PlanSpec, check_spec, load_spec

    spec = load_spec(file) if file else PlanSpec(workload=_default_workload())
    changes: dict[str, Any] = {
        name: tuple(given[name])
        for name in (
            "models",
            "devices",
            "precisions",
            "kv_bits",
            "policies",
            "budgets_tok",
            "replicas",
            "tp",
            "calibrations",
        )
        if given[name]
    }
    if given["seats"]:
        changes["seats"] = tuple(_count(part) for text in given["seats"] for part in text.split(","))
    for name in (
        "seeds",
        "quality",
        "quality_at_least",
        "engine",
        "kv_blocks",
        "peak_req_per_s",
        "pick",
    ):
        if given[name] is not None:
            changes[name] = given[name]
    if given["prices"]:
        changes["given_prices"] = _prices(given["prices"], spec.given_prices)
    if given["headroom"] is not None:
        changes["headroom_frac"] = show.share(given["headroom"], "--headroom")
    if given["prefix_cache"]:
        changes["prefix_cache"] = True
    targets, by_default = _targets(spec.targets, given, alone=not file)
    spec = replace(spec, **changes, workload=_workload(spec.workload, given), targets=targets, by_default=by_default)
    spec = _with_machine(spec)
    check_spec(spec, where=str(file or FLAGS))
    return spec


def _default_workload() -> Any:
    from servefit.workload.workload import Lengths, Workload

    return Workload(name="", n=1000, isl=Lengths(mean=512), osl=Lengths(mean=256))


def _workload(base: Any, given: dict[str, Any]) -> Any:
    """The workload with the flags in it; exactly one of rate, users and trace is left."""
    from servefit.workload.workload import Lengths

    ways = [name for name in ("rate", "concurrency", "trace") if given[name] is not None]
    if len(ways) > 1:
        raise ServefitError(f"Both --{ways[0]} and --{ways[1]} are given.", hint="Choose one.")
    names = ("n", "arrivals", "burstiness", "seed", "shared_prefix_tok")
    changes: dict[str, Any] = {name: given[name] for name in names if given[name] is not None}
    changes |= {name: Lengths(mean=given[name]) for name in ("isl", "osl") if given[name] is not None}
    if ways:
        none: dict[str, Any] = {"rate_req_per_s": None, "concurrency": None, "trace": None, "stages": ()}
        field = "rate_req_per_s" if ways[0] == "rate" else ways[0]
        changes |= none | {field: given[ways[0]]}
    out = replace(base, **changes)
    if (
        out.trace is None
        and out.rate_req_per_s is None
        and out.concurrency is None
        and not out.stages
        and out.arrivals != "burst"
    ):
        raise ServefitError(
            "Nothing says how many requests come.", hint="Add --rate 4, --concurrency 32 or --trace FILE."
        )
    return out


def _targets(base: Any, given: dict[str, Any], *, alone: bool) -> tuple[Any, tuple[str, ...]]:
    """(the targets with the flags in them; those of servefit.toml, else the usual example, where there are none, which of them
    nobody asked for).
    """
    from servefit.objectives import Targets

    changes: dict[str, Any] = latencies(given)
    p = {"p": changes.pop("p")} if "p" in changes else {}
    if given["goodput"] is not None:
        changes |= goodput(given["goodput"], rate=True)
    for name in ("usd_per_hour", "usd_per_mtok"):
        if given[name] is not None:
            changes[name] = given[name]
    for name, value in changes.items():
        if value is not None and value <= 0:
            raise ServefitError(f"A target of {value} for {name} cannot be met.", hint="Write a value above 0.")
    share = p.get("p", base.p) / 100
    by_default: tuple[str, ...] = ()
    example = Targets(ttft_s=0.1, tpot_s=0.01, goodput_frac=share)
    if alone and not changes and base == Targets():
        base = _from_settings() or example
        if base == example:
            by_default = ("ttft", "tpot", "goodput")
            click.echo(
                f"No target is given; by default TTFT is at most 100 ms, TPOT at most 10 ms, goodput at least {share:.0%}. "
                "Say your own with --ttft, --tpot and --goodput.",
                err=True,
            )
    targets = replace(base, **changes | p)
    if targets.goodput_frac is None and targets.goodput_req_per_s is None:
        targets = replace(targets, goodput_frac=example.goodput_frac)
        by_default = ("goodput",)
        click.echo(
            f"By default goodput is at least {share:.0%}, as many as --p: say your own with --goodput.", err=True
        )
    return targets, by_default


def _from_settings() -> Any:
    """Objectives of servefit.toml where there are any, else None."""
    from dataclasses import asdict

    from servefit.objectives import Targets
    from servefit.settings import load_settings

    wanted = {name: value for name, value in asdict(load_settings().objectives).items() if value is not None}
    return replace(Targets(), **wanted) if wanted else None


def _prices(texts: tuple[str, ...], filed: tuple["GivenPrice", ...]) -> tuple["GivenPrice", ...]:
    """The prices of flags, then those of the file that no flag names. Raises ServefitError."""
    from servefit.plan.spec import GivenPrice
    from servefit.units import parse_plain

    said: dict[str, float] = {}
    for text in texts:
        device, is_, usd = text.rpartition("=")
        if not is_ or not device.strip():
            raise ServefitError(f"--price {text} names no device and price.", hint="Write --price a100-80gb=1.10.")
        said[device.strip()] = parse_plain(usd)
    flags = tuple(GivenPrice(device=device, usd_per_hour=usd) for device, usd in said.items())
    return (*flags, *(p for p in filed if p.device not in said))


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ServefitError(f"--seats {text} is no whole number.", hint="Write 8, or 4,8,16.") from None


def _with_machine(spec: "PlanSpec") -> "PlanSpec":
    """With a calibration: its device among the devices; this machine's own figures where it is in no catalogue."""
    from servefit.facts.devices import find_device
    from servefit.plan.bases import THIS_MACHINE
    from servefit.plan.spec import GivenDevice

    wants_here = THIS_MACHINE in spec.devices
    if any(d.name == THIS_MACHINE for d in spec.given_devices) or not (spec.calibrations or wants_here):
        return spec
    if spec.calibrations and not wants_here:
        from servefit.calibrate.calibration import load_calibration

        for path in spec.calibrations:
            name = load_calibration(Path(path)).device
            if name in spec.devices:
                return spec
            try:
                found = find_device(name).name if name else ""
            except ServefitError:
                continue
            if found:
                return spec if found in spec.devices else replace(spec, devices=(found, *spec.devices))
    from servefit.check.checkup import this_device

    machine = this_device()
    here = GivenDevice(
        name=THIS_MACHINE,
        kind=machine.kind,
        memory_bytes=machine.memory_bytes,
        bandwidth_bytes_per_s=machine.bandwidth_bytes_per_s,
        usable_memory_frac=machine.usable_memory_frac,
        origin=f"this machine, bandwidth {machine.cite('bandwidth_bytes_per_s').source}",
    )
    return replace(
        spec, devices=tuple(dict.fromkeys((THIS_MACHINE, *spec.devices))), given_devices=(*spec.given_devices, here)
    )
