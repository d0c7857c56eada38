"""`servefit export`: a run as CSV, Parquet or Markdown."""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli.keep import check_not_decided_on, check_not_read
from servefit.errors import MissingExtra, ServefitError
from servefit.units import fmt, fmt_count, fmt_percent, fmt_s

if TYPE_CHECKING:
    from servefit.records import RequestRecord, Run

COLUMNS = (
    "id", "phase", "status", "due_s", "sent_s", "done_s", "ttft_s", "tpot_s", "e2e_s", "itl_max_s", "isl", "osl", "cached_tok",
    "http_status", "finish_reason", "error", "user", "replica",
)  # fmt: skip
"""A line a request; times in seconds since the run's start; empty where nothing was observed."""
COUNTS = ("isl", "osl", "cached_tok", "http_status", "user", "replica")
WORDS = ("id", "phase", "status", "finish_reason", "error")


@click.command(name="export")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--csv", "kind", flag_value="csv", help="A line a request.")
@click.option("--parquet", "kind", flag_value="parquet", help="The same with types, and every token's time.")
@click.option("--markdown", "kind", flag_value="markdown", help="A summary to paste into an issue or a chat.")
@click.option("--out", type=click.Path(path_type=Path), help="File to write.  [default: stdout; needed for --parquet]")
def command(run: Path, *, kind: str | None, out: Path | None) -> None:
    """Write RUN as CSV, Parquet (needs servefit[parquet]) or Markdown."""
    from servefit.cli.show import plain
    from servefit.files import write_text
    from servefit.records import load_run

    if kind is None:
        raise ServefitError("No format is named.", hint="Add --csv, --parquet or --markdown.")
    if out is not None:
        check_not_read(out, [run])
        check_not_decided_on(out, what="this table")
    found = load_run(run, packed=True)
    if kind == "parquet":
        if out is None:
            raise ServefitError("Parquet is not for a terminal.", hint="Name the file with --out run.parquet.")
        write_parquet(found, out)
    else:
        text = as_csv(found) if kind == "csv" else as_markdown(found)
        if out is None:
            click.echo(text, nl=False)
            return
        write_text(out, text)
    click.echo(plain(f"{out}: {len(found.rows)} requests" if kind != "markdown" else f"{out}: written"), err=True)


def cells(row: "RequestRecord") -> dict[str, Any]:
    """A request by column; None where nothing was observed."""
    value = {name: getattr(row, name) for name in COLUMNS if name != "itl_max_s"}
    return {name: max(row.itl_s, default=None) if name == "itl_max_s" else value[name] for name in COLUMNS}


def as_csv(run: "Run") -> str:
    """The rows as CSV. Text that a spreadsheet would take for a formula is quoted with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in run.rows:
        writer.writerow([_cell(value) for value in cells(row).values()])
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    text = str(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not isinstance(value, int) else text


def write_parquet(run: "Run", path: Path) -> None:
    """The rows as a Parquet file, with `chunk_s` as a list and the header in the file's metadata. Raises ServefitError."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", purpose="Parquet") from None
    import json

    from servefit.records import header_to_json

    rows = [cells(row) for row in run.rows]
    kinds = {n: pa.int64() if n in COUNTS else pa.string() if n in WORDS else pa.float64() for n in COLUMNS}
    columns = {n: pa.array([row[n] for row in rows], type=kinds[n]) for n in COLUMNS}
    columns["chunk_s"] = pa.array([list(row.chunk_s) for row in run.rows], type=pa.list_(pa.float64()))
    table = pa.table(columns).replace_schema_metadata({"servefit.run": json.dumps(header_to_json(run.header))})
    try:
        pq.write_table(table, path)
    except OSError as error:
        raise ServefitError(
            f"{path} cannot be written: {error.strerror or error}.", hint="Choose another --out."
        ) from None


def as_markdown(run: "Run") -> str:
    """The summary as a Markdown table with what was asked, of what, and what to know about it."""
    from servefit.cli.show import plain
    from servefit.objectives import summarize
    from servefit.stats import is_slowest

    summary, header = summarize(run), run.header
    load = header.load
    how = (
        fmt_count(load["concurrency"], "user")
        if load.get("concurrency")
        else f"{load.get('rate_req_per_s') or load.get('rate') or '-'} req/s"
    )
    what = f"**{_md(header.target or header.client.get('tool', 'run'))}**, {_md(header.model or 'model not recorded')}"
    lines = [
        f"{what}: {summary.n} requests, {how}, {load.get('isl', '-')} tokens in, {load.get('osl', '-')} out",
        "",
        "| | p50 | p95 | p99 | mean | max | n |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in ("TTFT", "ITL", "TPOT", "E2E"):
        values = getattr(summary, f"{name.lower()}_s")
        shown = [fmt_s(getattr(values, key)) for key in ("p50", "p95", "p99", "mean", "max")]
        lines.append(f"| {name} | {' | '.join(shown)} | {fmt(values.n)} |")
    share = fmt_percent(summary.ok / summary.n if summary.n else None)
    lines += ["", f"{fmt(summary.output_tok_per_s, 1)} output tok/s, {fmt(summary.req_per_s, 2)} req/s; {summary.ok} of {summary.n} answered ({share})"]  # fmt: skip
    n = summary.ttft_s.n
    if n and is_slowest(95, n):
        lines.append(f"p95 = slowest of {n}")
    lines.append(
        f"{header.kind}, clock: {header.clock}, verdict: {header.verdict}; servefit {header.tool_version or '-'}, "
        f"workload {header.workload_sha256[:12] or 'not recorded'}"
    )
    lines += [f"- {f.level}: {_md(f.message)}" for f in header.findings]
    return plain("\n".join(lines) + "\n")


def _md(text: str) -> str:
    """`text` so that it cannot break a table or become HTML."""
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
