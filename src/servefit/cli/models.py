"""`servefit models [NAME]`: the models in the catalogue, or one model's sizes; also of a config.json or a weight file."""

from typing import Any

import click

from servefit.cli import amounts, names
from servefit.cli.show import emit_json, plain, table
from servefit.errors import ServefitError
from servefit.facts.devices import Device, find_device
from servefit.facts.models import Layers, ModelShape, all_models, find_model
from servefit.physics.memory import (
    crossover_tok,
    find_precision,
    kv_bytes,
    kv_bytes_per_tok,
    kv_pool,
    request_blocks,
    seats_that_fit,
    state_bytes,
    streamed_weight_bytes,
    weight_bytes,
)
from servefit.physics.roofline import decode_ceiling_tok_per_s, model_peak, prefill_flop
from servefit.units import GB, fmt, fmt_bytes, fmt_s

_SHOWN = ("bf16", "fp8", "q8_0", "q4_k_m", "awq")


@click.command()
@click.argument(
    "name", required=False, shell_complete=names.models, metavar="[NAME | config.json | FILE.gguf | FILE.safetensors]"
)
@click.option(
    "--on",
    "device_name",
    shell_complete=names.devices,
    metavar="DEVICE",
    help="What the model does on this device: room, seats, ceiling.",
)
@click.option(
    "--precision", help="Bits of the weights for --on (bf16, fp8, q4_k_m, ...); a file's own where there is a file."
)
@click.option(
    "--context",
    "ctx_tok",
    type=amounts.CONTEXT,
    default=8_000,
    show_default=True,
    help="Tokens of one request.",
)
@click.option(
    "--kv-bits", type=click.Choice(["16", "8", "4"]), default="16", show_default=True, help="Bits of the KV cache."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(  # noqa: PLR0917 - click passes by name
    name: str | None, device_name: str | None, precision: str | None, ctx_tok: int, kv_bits: str, as_json: bool
) -> None:
    """The models in the catalogue; with NAME, parameters, weights, KV cache and their source.

    A path to a config.json, a .gguf or a .safetensors file works like a name: sizes then come from the file's header.
    """
    if name is None:
        if device_name:
            raise ServefitError("--on needs a model.", hint="servefit models llama-3.1-8b --on rtx-4090")
        _listing(as_json)
        return
    model, bits = find_model(name), int(kv_bits)
    device = find_device(device_name) if device_name else None
    facts = _facts(model, ctx_tok, bits)
    on = _on(model, device, precision, ctx_tok, bits) if device else None
    if as_json:
        emit_json({"model": facts, "on": on})
        return
    _details(model, ctx_tok, bits)
    if device and on:
        _show_on(on, device, ctx_tok)
    click.echo(f"next: servefit models {plain(name)} --on DEVICE, or servefit plan --model {plain(name)}")


def _listing(as_json: bool) -> None:
    models = all_models()
    if as_json:
        emit_json({"models": [_facts(m, 8_000, 16) for m in models]})
        return
    rows = [
        [m.name, m.title, _billions(m.params_total), _billions(m.params_active) if m.experts else "-",
         fmt(kv_bytes_per_tok(m)), _kinds(m), fmt(m.max_tok) if m.max_tok else "-", "*" if m.status == "unverified" else ""]
        for m in models
    ]  # fmt: skip
    headers = ["name", "model", "params", "active", "KV B/tok", "attention", "context", ""]
    table(headers, rows, title=f"{len(models)} models (KV in 16 bit)", right=(2, 3, 4, 6))
    click.echo("* shape typed from memory and not checked against a published total.")
    click.echo("next: servefit models NAME, or servefit models path/to/config.json")


def _billions(params: int) -> str:
    return f"{fmt(params / 1e9, 2 if params < 1e10 else 1)} B"


def _kinds(model: ModelShape) -> str:
    kinds: dict[str, int] = {}
    for group in model.groups:
        if group.attention != "none":
            name = "GQA" if group.attention == "full" and group.kv_heads < group.heads else group.attention
            kinds[name] = kinds.get(name, 0) + group.count
    return ", ".join(kinds) if len(kinds) == 1 else ", ".join(f"{count} {name}" for name, count in kinds.items())


def _facts(model: ModelShape, ctx_tok: int, kv_bits: int) -> dict[str, Any]:
    file = model.file
    return {
        "name": model.name, "title": model.title, "repo": model.repo, "params": model.params_total,
        "params_active": model.params_active, "layers": model.layers, "hidden": model.hidden, "heads": model.heads,
        "kv_heads": model.kv_heads, "head_dim": model.head_dim, "ffn": model.ffn, "vocab": model.vocab, "tied": model.tied,
        "experts": model.experts, "experts_per_tok": model.experts_per_tok, "attention": _kinds(model), "max_tok": model.max_tok,
        "weight_bytes": {p: weight_bytes(model, p) for p in _SHOWN},
        "file": {"quant": file.quant, "weight_bytes": file.total_bytes, "others_bytes": file.others_bytes} if file else None,
        "kv_bytes_per_tok": kv_bytes_per_tok(model, kv_bits), "state_bytes": state_bytes(model),
        "context_tok": ctx_tok, "kv_bytes": kv_bytes(model, ctx_tok, kv_bits),
        "source": model.source, "date": model.date, "status": model.status, "note": model.note,
    }  # fmt: skip


def _details(model: ModelShape, ctx_tok: int, kv_bits: int) -> None:
    cache = (
        f"{fmt(kv_bytes_per_tok(model, kv_bits))} bytes a token in {kv_bits} bit; "
        f"{fmt(ctx_tok)} tokens are {fmt_bytes(kv_bytes(model, ctx_tok, kv_bits))}"
    )
    active = f", {_billions(model.params_active)} active a token" if model.experts else ""
    rows = [
        ["parameters", f"{fmt(model.params_total)} ({_billions(model.params_total)}{active})"],
        ["shape", f"{model.layers} layers, width {fmt(model.hidden)}, vocabulary {fmt(model.vocab)}{', tied' if model.tied else ''}"],
        *[["layers", _layers(g)] for g in model.groups],
        ["KV cache", cache],
    ]  # fmt: skip
    if state_bytes(model):
        rows.append(["state", f"{fmt_bytes(state_bytes(model))} a request, whatever its length"])
    if model.max_tok:
        rows.append(["context", f"{fmt(model.max_tok)} tokens at most"])
    rows.append(["source", f"{model.source} ({', '.join(filter(None, (model.date, model.status)))})"])
    if model.note:
        rows.append(["note", model.note])
    table(["", ""], rows, title=f"{model.name}: {model.title}")
    weights = []
    choices: list[tuple[str, str | None]] = [(f"{model.file.quant} (file)", None)] if model.file else []
    for label, precision in [*choices, *[(p, p) for p in _SHOWN]]:
        size = weight_bytes(model, precision)
        crossover = crossover_tok(model, size, kv_bits)
        weights.append([
            label, fmt_bytes(size), fmt(size * 8 / model.params_total, 2), fmt_bytes(streamed_weight_bytes(model, precision)),
            fmt(crossover) if crossover and crossover < 10**9 else "-",
        ])  # fmt: skip
    headers = ["weights", "size", "bits/weight", "read per token", "KV = weights at"]
    table(headers, weights, right=(1, 2, 3, 4))


def _layers(group: Layers) -> str:
    attention = {
        "full": f"{group.heads} heads, {group.kv_heads} KV heads of {group.head_dim}",
        "sliding": f"{group.heads} heads, {group.kv_heads} KV heads of {group.head_dim}, window {fmt(group.window_tok)}",
        "mla": f"latent of {group.kv_lora_rank} + {group.rope_head_dim}, {group.heads} heads"
        + (f", index picks {fmt(group.index_top_tok)} tokens" if group.index_top_tok else ""),
        "recurrent": f"recurrent, {fmt_bytes(group.state_bytes)} of state",
        "none": "no attention",
    }[group.attention]
    mlp = f"MLP {fmt(group.ffn)}" if group.ffn else ""
    if group.experts:
        shared = f" and {fmt(group.shared_ffn)} shared" if group.shared_ffn else ""
        experts = f"{group.experts_per_tok} of {group.experts} experts of {fmt(group.expert_ffn)}{shared}"
        mlp = f"{mlp}, {experts}" if mlp else experts
    return f"{group.count} x {attention}{'; ' + mlp if mlp else ''}"


def _on(model: ModelShape, device: Device, precision: str | None, ctx_tok: int, kv_bits: int) -> dict[str, Any]:
    label = find_precision(precision).name if precision else (model.file.quant if model.file else "bf16")
    pool = kv_pool(model, device, precision, kv_bits=kv_bits)
    peak = model_peak(model, device, precision)
    ceiling = decode_ceiling_tok_per_s(model, device, precision, kv_bits=kv_bits)
    return {
        "device": device.name, "precision": label, "usable_bytes": pool.usable_bytes, "weight_bytes": pool.weight_bytes,
        "activation_bytes": pool.activation_bytes, "overhead_bytes": pool.overhead_bytes, "kv_pool_bytes": pool.bytes,
        "kv_pool_tok": pool.tokens, "kv_blocks": pool.blocks, "context_tok": ctx_tok,
        "blocks_per_request": request_blocks(model, ctx_tok, kv_bits=kv_bits),
        "seats_that_fit": seats_that_fit(pool, model, ctx_tok, kv_bits=kv_bits),
        "ceiling_tok_per_s": ceiling,
        "ceiling_at_context_tok_per_s": decode_ceiling_tok_per_s(model, device, precision, ctx_tok=ctx_tok, kv_bits=kv_bits),
        "prefill_floor_s": prefill_flop(model, ctx_tok) / peak.value if peak else None,
        "bandwidth_status": device.cite("bandwidth_bytes_per_s").status, "peak_status": peak.status if peak else None,
        "lower_bound": True,
    }  # fmt: skip


def _show_on(on: dict[str, Any], device: Device, ctx_tok: int) -> None:
    band = device.cite("bandwidth_bytes_per_s")
    peak_mark = f" ({on['peak_status']})" if on["peak_status"] in {"unverified", "disputed", "assumed"} else ""
    memory = (
        f"{fmt_bytes(on['usable_bytes'])} usable = {fmt_bytes(on['weight_bytes'])} weights + "
        f"{fmt_bytes(on['activation_bytes'] + on['overhead_bytes'])} working + {fmt_bytes(on['kv_pool_bytes'])} KV cache"
    )
    pace = (
        f"{fmt(on['ceiling_tok_per_s'], 1)} tok/s ({fmt_s(1 / on['ceiling_tok_per_s'])}) a stream, "
        f"{fmt(on['ceiling_at_context_tok_per_s'], 1)} at {fmt(ctx_tok)} tokens"
    )
    rows = [
        ["memory", memory],
        ["KV cache", f"{fmt(on['kv_pool_tok'])} tokens; {fmt(on['seats_that_fit'])} seats of {fmt(ctx_tok)} tokens"],
        ["types at most", pace],
        ["reads a prompt of " + fmt(ctx_tok), f"in {fmt_s(on['prefill_floor_s'])} at least{peak_mark}" if on["prefill_floor_s"]
         else "no arithmetic figure for this device"],
        ["from", f"datasheet alone: {fmt(device.bandwidth_bytes_per_s / GB)} GB/s{band.mark()}; every time is a lower bound"],
    ]  # fmt: skip
    table(["", ""], rows, title=f"{on['precision']} on {device.title}")
