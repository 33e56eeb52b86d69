"""Roofline formulas: what a GPU could do at best, and the floors and estimates that follow for inference.

Source: Williams, Waterman, Patterson 2009, and sections 2, 4 and 9 of the LLM inference guide, whose worked numbers
are golden tests. Rates are GB/s (10^9) and TFLOP/s (10^12), dense; times are seconds; an efficiency is the share of the
peak that real kernels reach, in (0, 1].
"""

import math


def ridge_point(peak_tflops: float, gbps: float) -> float:
    """Arithmetic intensity, FLOP/byte, from which on compute is the limit and no longer memory: P / B."""
    return peak_tflops * 1e12 / (gbps * 1e9)


def attainable_tflops(peak_tflops: float, gbps: float, intensity: float) -> float:
    """min(P, B x intensity), for `intensity` FLOP/byte."""
    return min(peak_tflops, gbps * 1e9 * intensity / 1e12)


def gemm_intensity(rows: int, inputs: int, outputs: int, element_bytes: float) -> float:
    """FLOP/byte of [rows x inputs] @ [inputs x outputs], every operand moved once."""
    moved = element_bytes * (rows * inputs + inputs * outputs + rows * outputs)
    return 2 * rows * inputs * outputs / moved


def memory_seconds(size_bytes: float, gbps: float, efficiency: float = 1.0) -> float:
    """Time to move `size_bytes`."""
    return size_bytes / (gbps * 1e9 * efficiency)


def compute_seconds(flops: float, tflops: float, efficiency: float = 1.0) -> float:
    """Time to do `flops` operations."""
    return flops / (tflops * 1e12 * efficiency)


def decode_floor_seconds(weight_bytes: float, kv_bytes: float, gbps: float) -> float:
    """Least time of a decode step: every weight and every cached key and value is read once."""
    return memory_seconds(weight_bytes + kv_bytes, gbps)


def prefill_seconds(parameters: float, tokens: int, tflops: float) -> float:
    """Time to compute a prompt at a sustained rate: 2 FLOP a parameter and token, attention left out."""
    return compute_seconds(2 * parameters * tokens, tflops)


def prefill_chunks(prompt_tokens: int, budget: int, decodes: int) -> int:
    """Steps that a prompt takes when each step's `budget` tokens serve `decodes` running requests first."""
    if budget <= decodes:
        raise ValueError(f"a budget of {budget} tokens leaves nothing beside {decodes} decodes")
    return math.ceil(prompt_tokens / (budget - decodes))


def reused_blocks(shared_tokens: int, block_size: int) -> int:
    """Blocks of a shared prefix that a prefix cache reuses: only full ones."""
    return shared_tokens // block_size
