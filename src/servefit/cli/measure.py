"""`servefit measure`: how long do users wait, on this endpoint, for this workload?"""

import signal
import sys
from pathlib import Path
from typing import Any

import click

from servefit.cli import amounts
from servefit.errors import ServefitError
from servefit.workload.workload import Lengths, Workload


@click.command(name="measure", context_settings={"show_default": True})
@click.argument("target", required=False)
@click.option("--model", help="Model to ask for.  [default: the first that the server lists]")
@click.option(
    "-n",
    "n",
    type=amounts.REQUESTS,
    help="Number of requests.  [default: 10; 2000 with --until; else the workload file's]",
)
@click.option(
    "--concurrency",
    type=amounts.USERS,
    metavar="C",
    help="Closed loop: C users, each asking again when answered.  [default: 1]",
)
@click.option(
    "--rate",
    type=amounts.PER_S,
    metavar="R",
    help="Open loop instead: R requests per second, whatever becomes of them.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant", "gamma", "burst"]),
    help="How an open loop arrives.  [default: poisson]",
)
@click.option(
    "--burstiness",
    type=amounts.SHAPE,
    help="Gamma shape: below 1 burstier than Poisson, above 1 more even.  [default: 1]",
)
@click.option(
    "--ramp",
    "ramp_s",
    type=amounts.SECONDS,
    help="Closed loop: users start evenly over this many seconds.  [default: 0, all at once]",
)
@click.option("--isl", type=amounts.TOK, metavar="N", help="Prompt tokens a request.  [default: 256]")
@click.option("--osl", type=amounts.TOK, metavar="N", help="Output tokens a request.  [default: 64]")
@click.option("--prompt", metavar="TEXT", help="Send this text every time (a prefix cache will notice).")
@click.option(
    "--workload",
    "workload_file",
    type=click.Path(path_type=Path),
    help="A workload file (TOML): lengths, sessions, stages, traces. Flags win over it.",
)
@click.option("--seed", type=amounts.SEED, help="Seed of arrivals, lengths and prompts.  [default: 0]")
@click.option(
    "--dialect",
    default="",
    show_default="by the URL's path, else what the server is",
    help="openai-chat, openai-completions, ollama-chat, ollama-generate or anthropic.",
)
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run.  [default: runs/<time>-<target>]")
@click.option("--until", metavar="p95=5%", help="Stop once TTFT's p95 is known to 5%; -n is then the most.")
@click.option(
    "--repeat",
    type=amounts.SEEDS,
    metavar="K",
    default=1,
    help="Measure K times, in OUT/1 to OUT/K, and say the spread.",
)
@click.option(
    "--max-usd", type=amounts.CAP_USD, metavar="USD", help="Spend at most this.  [default: [caps] usd_per_run]"
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--keep-text", is_flag=True, help="Keep the model's output in the rows.")
@click.option(
    "--timeout",
    "timeout_s",
    type=amounts.WAIT_S,
    default=300.0,
    help="Give up on a request silent for so many seconds.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="What the model runs on (`servefit devices`): impossible times are then found."
    "  [default: this machine, where the server runs here]",
)
@click.option(
    "--precision", metavar="NAME", help="Of the model's weights there: bf16, fp8, q4_k_m ...  [default: not known]"
)
@click.option(
    "--no-probe", is_flag=True, help="Ask the endpoint nothing first: no cold request, no warm-up, no null server."
)
@click.option(
    "--realtime",
    is_flag=True,
    help="Real-time priority for this client while it measures (Linux, root): for busy machines.",
)
@click.option(
    "--workers", type=amounts.PROCESSES, metavar="N", help="N processes of this machine send the load as one client."
)
@click.option("--ray", "ray_address", metavar="ADDRESS", help="Clients on a Ray cluster, or 'local' for several here.")
@click.option("--clients", type=amounts.PROCESSES, help="With --ray: how many.  [default: one a node]")
@click.option("--selftest", is_flag=True, help="Measure servers whose answers are known, and say where we are wrong.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(target: str | None, as_json: bool, quiet: bool, **given: Any) -> int | None:
    """Measure TARGET: a URL, host:port, or a name from servefit.toml.

    \b
    TTFT  due to the first token that carries text (queue + prefill)
    ITL   every gap between tokens, pooled (one decode step)
    TPOT  (last token - first token) / (tokens - 1), per request
    E2E   due to the last token
    """  # noqa: D301 - click's mark for "keep these lines" is a real backspace
    from servefit.cli.measure_show import show_run, watcher
    from servefit.cli.show import plain
    from servefit.cli.spend import capped
    from servefit.measure.run import Options, default_folder, measure
    from servefit.measure.until import Until
    from servefit.wire.client import Limits

    if given.pop("selftest"):
        from servefit.cli.measure_show import show_selftest

        return show_selftest(as_json=as_json)
    if target is None:
        raise ServefitError("No target is named.", hint="servefit measure http://127.0.0.1:8080")
    if given["clients"] is not None and given["ray_address"] is None:
        raise ServefitError(
            "--clients is given without --ray.", hint="servefit measure URL --workers 4, or --ray local --clients 4"
        )
    workload = read_workload(given)
    endpoint = _endpoint(target, given)
    out = given["out"] or default_folder(endpoint.name, Path("runs"))
    if endpoint.paid:
        click.echo(f"{endpoint.name} is a paid target: these requests cost money.", err=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends the run as Ctrl-C does
    with watcher(quiet=quiet) as progress:
        options = Options(
            out=out,
            probe=not given["no_probe"],
            prompt=given["prompt"],
            keep_text=given["keep_text"],
            resume=given["resume"],
            limits=Limits(silent_s=given["timeout_s"]),
            progress=progress,
            until=Until(given["until"]) if given["until"] else None,
            device=_device(given["device"]),
            precision=given["precision"],
            realtime=given["realtime"],
        )
        try:
            if given["repeat"] > 1 and given["ray_address"] is None and given["workers"] is None:
                return _repeat(endpoint, workload, options, given["repeat"], as_json=as_json, max_usd=given["max_usd"])
            if given["ray_address"] is not None or given["workers"] is not None:
                run = _from_many(endpoint, workload, options, given)
            else:
                with capped(options, endpoint, workload, max_usd=given["max_usd"]) as limited:
                    run = measure(endpoint, workload, limited)
            interrupted = False
        except KeyboardInterrupt:
            from servefit.measure.kept import kept_run

            if not (out / "run.json").exists():
                raise
            run, interrupted = kept_run(out), True
    show_run(run, out, as_json=as_json)
    if interrupted:
        click.echo(f"interrupted; what was measured is kept: go on with --resume --out {out}", err=as_json)
        return 130
    failed = run.load_rows and not any(row.ok for row in run.load_rows)
    if not failed or all(row.expected_failure for row in run.load_rows):
        return None
    said = next((f.message for f in run.header.findings if f.code == "all_failed"), "Every request failed.")
    example = next((row.error for row in run.load_rows if row.error), None)
    click.echo(plain(f"servefit: {said}" + (f" For example: {example}" if example else "")), err=True)
    return 3


def _repeat(
    endpoint: Any, workload: Workload, options: Any, count: int, *, as_json: bool, max_usd: float | None
) -> int | None:
    """Measure several times; what was measured before Ctrl-C is shown."""
    from servefit.cli.measure_repeat import show_repeats
    from servefit.cli.spend import capped
    from servefit.measure.repeat import repeat

    done = []
    interrupted = False
    try:
        for path, run in repeat(
            endpoint, workload, options, count, guard=lambda mine: capped(mine, endpoint, workload, max_usd=max_usd)
        ):
            done.append((path, run))
    except KeyboardInterrupt:
        interrupted = True
        if not done:
            raise
    show_repeats(done, options.out, as_json=as_json)
    if interrupted:
        click.echo(f"interrupted after {len(done)} of {count} repeats.", err=as_json)
        return 130
    return None if any(row.ok for _, run in done for row in run.load_rows) else 3


def _device(name: str | None) -> Any:
    from servefit.facts.devices import find_device

    return None if name is None else find_device(name)


def _from_many(endpoint: Any, workload: Workload, options: Any, given: dict[str, Any]) -> Any:
    """The run from several clients. Raises ServefitError for what one schedule over several clients cannot do."""
    from servefit.measure.many import measure_from_many
    from servefit.measure.on_ray import on_ray
    from servefit.measure.workers import on_workers

    flag = "--ray" if given["ray_address"] is not None else "--workers"
    if given["ray_address"] is not None and given["workers"] is not None:
        raise ServefitError("Both --ray and --workers are given.", hint="With --ray, --clients says how many.")
    for name in ("until", "repeat", "max_usd"):
        if given[name] not in (None, 1):
            raise ServefitError(f"--{name.replace('_', '-')} does not go with {flag}.", hint="Leave one of them out.")
    if given["ray_address"] is not None:
        drive = on_ray(given["ray_address"], given["clients"])
    else:
        drive = on_workers(given["workers"])
    return measure_from_many(endpoint, workload, options, drive)


def _endpoint(target: str, given: dict[str, Any]) -> Any:
    return endpoint_of(target, model=given["model"], dialect=given["dialect"], api_key_env=given["api_key_env"])


def endpoint_of(name: str, *, model: str | None = None, dialect: str = "", api_key_env: str | None = None) -> Any:
    """The endpoint of a target: a name of servefit.toml, an engine that runs here, a usual port, a hosted one, or a URL."""
    from servefit.measure.probe import find_endpoint
    from servefit.servers.targets import find_target, looks_like_url

    target = find_target(name)
    return find_endpoint(
        target.url, model=model or target.model, dialect=dialect or target.dialect,
        api_key_env=api_key_env or target.api_key_env, name="" if looks_like_url(name) else target.name or name,
        paid=target.paid, expect_failure=target.expect_failure, ca_file=target.ca_file,
    )  # fmt: skip


def read_workload(given: dict[str, Any]) -> Workload:
    """The workload of a file and flags; flags win. Raises ServefitError."""
    from dataclasses import replace

    base = Workload(n=10, concurrency=1)
    if given.get("workload_file") is not None:
        from servefit.workload.workload import load_workload

        base = load_workload(given["workload_file"])
    if given.get("rate") is not None and given.get("concurrency") is not None:
        raise ServefitError("Both --rate and --concurrency are given.", hint="Choose one: open loop or closed loop.")
    if given.get("until") and given.get("n") is None and given.get("workload_file") is None:
        base = replace(base, n=2000)
    changes: dict[str, Any] = {
        name: given[name] for name in ("n", "arrivals", "burstiness", "ramp_s", "seed") if given.get(name) is not None
    }
    for name in ("isl", "osl"):
        if given.get(name) is not None:
            changes[name] = Lengths(mean=given[name])
    if given.get("rate") is not None:
        changes |= {"rate_req_per_s": given["rate"], "concurrency": None, "trace": None, "stages": ()}
    elif given.get("concurrency") is not None:
        changes |= {"concurrency": given["concurrency"], "rate_req_per_s": None, "trace": None, "stages": ()}
    elif given.get("arrivals") == "burst":
        changes |= {"concurrency": None}
    return replace(base, **changes)


if __name__ == "__main__":
    sys.exit(command())
