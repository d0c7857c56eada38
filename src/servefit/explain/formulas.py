"""The formulas of a wait, each with the reader's own numbers in it: what `--show-work` prints and `learn` teaches from.

Every function returns a number in the unit its name ends with; `Work` carries the line that shows how it came about.
"""

from dataclasses import dataclass

from servefit.units import fmt, fmt_bytes, fmt_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One line of working: what, the formula in words, the same with numbers, the result as printed and as a number."""

    what: str
    formula: str
    numbers: str
    result: str
    value: float

    @property
    def line(self) -> str:
        """`what = formula = numbers = result`."""
        return f"{self.what} = {self.formula} = {self.numbers} = {self.result}"


def reading_s(isl: int, prefill_tok_per_s: float) -> float:
    """Seconds to read a prompt of `isl` tokens: isl / prefill rate. Waiting in line is not in it.

    >>> reading_s(6200, 8000), reading_s(200, 8000)
    (0.775, 0.025)
    """
    return isl / prefill_tok_per_s


def writing_s(osl: int, itl_s: float) -> float:
    """Seconds from the first token to the last: `osl` tokens have osl - 1 gaps.

    >>> round(writing_s(300, 0.022), 6), round(writing_s(30, 0.022), 6)
    (6.578, 0.638)
    """
    return max(osl - 1, 0) * itl_s


def prefill_tok_per_s(isl: int, ttft_s: float) -> float:
    """Prompt tokens a second that a TTFT implies, were all of it reading: a lower bound of the server's prefill rate.

    >>> round(prefill_tok_per_s(8000, 4.21))
    1900
    """
    return isl / ttft_s


def prefill_flop_per_s(isl: int, ttft_s: float, active_params: float) -> float:
    """FLOP/s that a TTFT implies if every prompt token was computed: 2 x parameters x tokens / TTFT.

    Attention's own arithmetic is left out (13% more at 8,000 tokens of an 8B model), so this is a lower bound.

    >>> round(prefill_flop_per_s(8000, 4.21, 8.03e9) / 1e12, 1)
    30.5
    """
    return 2 * active_params * isl / ttft_s


def tok_computable(ttft_s: float, flop_per_s: float, active_params: float) -> int:
    """Most prompt tokens that `flop_per_s` can compute within a TTFT: the converse of `prefill_flop_per_s`.

    >>> tok_computable(1.0, 16.06e12, 8.03e9)
    1000
    """
    return int(flop_per_s * ttft_s / (2 * active_params))


def itl_ratio(weight_bytes: float, kv_bytes_per_tok: float, short_tok: int, long_tok: int) -> float:
    """How much longer a decode step takes at a longer context, by bytes read alone: (W + k*long) / (W + k*short).

    Overhead that does not grow with the context makes the true ratio smaller; nothing makes it larger.

    >>> round(itl_ratio(4.9e9, 131072, 12, 8000), 3), round(itl_ratio(4.9e9, 131072, 0, 8000), 3)
    (1.214, 1.214)
    """
    return (weight_bytes + kv_bytes_per_tok * long_tok) / (weight_bytes + kv_bytes_per_tok * short_tok)


def context_tok(
    short_itl_s: float, long_itl_s: float, weight_bytes: float, kv_bytes_per_tok: float, short_tok: int
) -> int:
    """The context that the growth of the ITL speaks of: (r(W + k*short) - W) / k tokens with r = long / short ITL.

    The seeds' sample, 22.4 ms at 12 tokens and 24.1 ms at "8,000", speaks of 2,850 tokens:

    >>> context_tok(0.0224, 0.0241, 4.9e9, 131072, 12)
    2850
    """
    ratio = long_itl_s / short_itl_s
    return round((ratio * (weight_bytes + kv_bytes_per_tok * short_tok) - weight_bytes) / kv_bytes_per_tok)


def floor_itl_s(weight_bytes: float, kv_bytes_per_tok: float, context: int, bandwidth_bytes_per_s: float) -> float:
    """Seconds that the bytes of one decode step take at full bandwidth, one sequence: no ITL is shorter.

    >>> round(1 / floor_itl_s(4.9e9, 131072, 0, 273e9), 2)
    55.71
    """
    return (weight_bytes + kv_bytes_per_tok * context) / bandwidth_bytes_per_s


def tail_ratio(p50_s: float, p95_s: float) -> float:
    """How many times the typical wait the slow one is: p95 / p50.

    >>> round(tail_ratio(0.145, 0.190), 2)
    1.31
    """
    return p95_s / p50_s


# --- the lines ------------------------------------------------------------------------------------------------------


def show_reading(isl: int, rate: float) -> Work:
    """The line for `reading_s`."""
    value = reading_s(isl, rate)
    return Work(what="reading", formula="prompt tokens / prefill rate", numbers=f"{fmt(isl)} tok / {fmt(rate)} tok/s",
                result=fmt_s(value), value=value)  # fmt: skip


def show_writing(osl: int, itl_s: float) -> Work:
    """The line for `writing_s`."""
    value = writing_s(osl, itl_s)
    return Work(what="writing", formula="(answer tokens - 1) x gap", numbers=f"{fmt(max(osl - 1, 0))} x {fmt_s(itl_s)}",
                result=exact_s(value), value=value)  # fmt: skip


def show_total(ttft_s: float, decode_s: float) -> Work:
    """The line for the whole wait."""
    value = ttft_s + decode_s
    return Work(what="whole wait", formula="first token + writing", numbers=f"{exact_s(ttft_s)} + {exact_s(decode_s)}",
                result=exact_s(value), value=value)  # fmt: skip


def show_share(what: str, part_s: float, whole_s: float) -> Work:
    """The line for a part's share of the whole."""
    value = part_s / whole_s
    return Work(what=f"share of {what}", formula=f"{what} / whole wait", numbers=f"{exact_s(part_s)} / {exact_s(whole_s)}",
                result=f"{fmt(value * 100, 1)}%", value=value)  # fmt: skip


def show_rate(isl: int, ttft_s: float) -> Work:
    """The line for `prefill_tok_per_s`."""
    value = prefill_tok_per_s(isl, ttft_s)
    return Work(what="prefill rate, were all of TTFT reading", formula="prompt tokens / TTFT",
                numbers=f"{fmt(isl)} tok / {fmt_s(ttft_s)}", result=f"{fmt(value)} tok/s", value=value)  # fmt: skip


def show_flop(isl: int, ttft_s: float, active_params: float) -> Work:
    """The line for `prefill_flop_per_s`."""
    value = prefill_flop_per_s(isl, ttft_s, active_params)
    return Work(what="arithmetic that this implies", formula="2 x parameters x prompt tokens / TTFT",
                numbers=f"2 x {fmt(active_params / 1e9, 2)}e9 x {fmt(isl)} / {fmt_s(ttft_s)}",
                result=f"{fmt(value / 1e12, 1)} TFLOP/s" if value >= 1e11 else f"{fmt(value / 1e9, 1)} GFLOP/s", value=value)  # fmt: skip


def show_ceiling(weight_bytes: float, kv_bytes_per_tok: float, context: int, bandwidth_bytes_per_s: float) -> Work:
    """The line for `floor_itl_s`."""
    value = floor_itl_s(weight_bytes, kv_bytes_per_tok, context, bandwidth_bytes_per_s)
    return Work(what="shortest possible gap", formula="(weights + context x KV per token) / bandwidth",
                numbers=f"({fmt_bytes(weight_bytes)} + {fmt(context)} x {fmt(kv_bytes_per_tok)} B) / {fmt(bandwidth_bytes_per_s / 1e9)} GB/s",
                result=f"{fmt_s(value)} = {fmt(1 / value, 1)} tok/s", value=value)  # fmt: skip


def show_context(
    short_itl_s: float, long_itl_s: float, weight_bytes: float, kv_bytes_per_tok: float, short_tok: int
) -> Work:
    """The line for `context_tok`."""
    value = context_tok(short_itl_s, long_itl_s, weight_bytes, kv_bytes_per_tok, short_tok)
    ratio = fmt(long_itl_s / short_itl_s, 4)
    return Work(what="context that the gap's growth speaks of", formula="(r x (weights + short KV) - weights) / KV per token",
                numbers=f"({ratio} x ({fmt_bytes(weight_bytes)} + {fmt(short_tok)} x {fmt(kv_bytes_per_tok)} B) - {fmt_bytes(weight_bytes)}) / {fmt(kv_bytes_per_tok)} B",
                result=f"{fmt(value)} tok", value=float(value))  # fmt: skip


def show_growth(weight_bytes: float, kv_bytes_per_tok: float, short_tok: int, long_tok: int) -> Work:
    """The line for `itl_ratio`."""
    value = itl_ratio(weight_bytes, kv_bytes_per_tok, short_tok, long_tok)
    return Work(what="growth of the gap by bytes alone", formula="(weights + long KV) / (weights + short KV)",
                numbers=f"({fmt_bytes(weight_bytes)} + {fmt_bytes(kv_bytes_per_tok * long_tok)}) / ({fmt_bytes(weight_bytes)} + {fmt_bytes(kv_bytes_per_tok * short_tok)})",
                result=fmt(value, 3), value=value)  # fmt: skip


def show_tail(p50_s: float, p95_s: float) -> Work:
    """The line for `tail_ratio`."""
    value = tail_ratio(p50_s, p95_s)
    return Work(
        what="tail of TTFT",
        formula="p95 / p50",
        numbers=f"{fmt_s(p95_s)} / {fmt_s(p50_s)}",
        result=fmt(value, 2),
        value=value,
    )


def exact_s(value: float) -> str:
    """Seconds to the millisecond, for lines that a reader adds up: "6.578 s", "775 ms"."""
    return f"{fmt(value, 3)} s" if value >= 1 else fmt_s(value)
