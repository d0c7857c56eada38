"""Precisions: how many bits a weight takes, scales included, and which arithmetic peak it may use."""

from dataclasses import dataclass
from typing import Literal

from servefit.errors import ServefitError
from servefit.facts.names import key

Peak = Literal["bf16", "fp8", "int8", "fp4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bits per weight of the layers, of the output head and of the input embedding; norms apart."""

    name: str
    weight_bits: float
    head_bits: float = 16.0
    embed_bits: float = 16.0
    small_bits: float = 16.0
    """Norms, biases, routers."""
    peak: Peak = "bf16"
    """The fastest arithmetic that such weights may use: fp8 weights with fp8 activations; llama.cpp's kinds quantise the
    activations to 8 bit as they go; AWQ and MXFP4 are unpacked to 16 bit."""
    source: str = ""


def _llamacpp(name: str, bits: float, source: str, *, head: float = 0.0, embed: float = 0.0) -> Precision:
    return Precision(
        name=name,
        weight_bits=bits,
        head_bits=head or bits,
        embed_bits=embed or bits,
        small_bits=32.0,
        peak="int8",
        source=source,
    )


_BLOCKS = "block layout of ggml: scales stored with each 32 (or 256) weights"

PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision(name="fp32", weight_bits=32, head_bits=32, embed_bits=32, small_bits=32, source="IEEE 754"),
        Precision(name="bf16", weight_bits=16, source="IEEE 754 and bfloat16: two bytes"),
        Precision(name="fp8", weight_bits=8, peak="fp8", source="one byte; head and embedding stay 16 bit"),
        Precision(name="int8", weight_bits=8, peak="int8", source="one byte; head and embedding stay 16 bit"),
        Precision(
            name="awq", weight_bits=4.25, source="AWQ and GPTQ in groups of 128: 16-bit scale, 4-bit zero, padded"
        ),
        Precision(name="nvfp4", weight_bits=4.5, peak="fp4", source="4 bits and one FP8 scale in 16 weights"),
        Precision(name="mxfp4", weight_bits=4.25, source="4 bits and one 8-bit scale in 32 weights; the experts"),
        _llamacpp("q8_0", 8.5, _BLOCKS),
        _llamacpp("q6_k", 6.5625, _BLOCKS),
        _llamacpp("q5_k_m", 5.7036, "llama.cpp quantize README, Llama-3.1-8B, whole file"),
        _llamacpp("q4_k_m", 4.8944, "llama.cpp quantize README, Llama-3.1-8B, whole file"),
        _llamacpp("q4_1", 5.0, _BLOCKS, head=8.5, embed=8.5),
        _llamacpp("q4_0", 4.5, _BLOCKS, head=6.5625),
    )
}
"""The bits of the whole-file rows are averages over layers, head and embedding: a file's header is exact, these are not."""

ALIASES = {"fp16": "bf16", "f16": "bf16", "16": "bf16", "f32": "fp32", "w8a8": "int8", "q4": "q4_k_m", "q8": "q8_0",
           "4bit": "q4_k_m", "8bit": "q8_0", "int4": "awq", "gptq": "awq", "fp4": "nvfp4", "q5": "q5_k_m", "q6": "q6_k"}  # fmt: skip

PRECISIONS |= {alias: PRECISIONS[name] for alias, name in ALIASES.items()}


def find_precision(precision: "Precision | str") -> Precision:
    """The precision of that name in any spelling, or the one given. Raises ServefitError with the names that are known.

    >>> find_precision("Q4_K_M").weight_bits, find_precision("q4").name
    (4.8944, 'q4_k_m')
    """
    if isinstance(precision, Precision):
        return precision
    found = {key(name): p for name, p in PRECISIONS.items()}.get(key(precision))
    if found is None:
        names = ", ".join(dict.fromkeys(p.name for p in PRECISIONS.values()))
        raise ServefitError(f"There is no precision '{precision}'.", hint=f"Known: {names}.")
    return found


def arithmetic_of(quant: str) -> Precision:
    """The precision whose arithmetic a file's number format may use at the fastest: 8 bit for every kind of ggml block.

    >>> arithmetic_of("Q4_1").peak, arithmetic_of("F8_E4M3").peak, arithmetic_of("BF16").peak, arithmetic_of("IQ4_XS").peak
    ('int8', 'fp8', 'bf16', 'int8')
    """
    name = quant.upper()
    if name.startswith("F8"):
        return PRECISIONS["fp8"]
    return PRECISIONS["q8_0"] if name.startswith(("Q", "IQ", "TQ", "I8", "U8")) else PRECISIONS["bf16"]
