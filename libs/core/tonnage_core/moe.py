"""Mixture of experts: how many experts a step reads, how uneven ranks are, and what all-to-all moves.

Source: section 8 of the LLM inference guide; routing is taken as uniform and independent, the even case. Bytes and
counts are of one layer.
"""

import math


def expert_coverage(experts: int, top_k: int, rows: float) -> float:
    """Expected share of experts that at least one of `rows` tokens chose: 1 - (1 - k/E)^rows.

    Their weights are what a decode step reads: k / E of them at one row, nearly all from some tens of rows on.
    """
    return float(1 - (1 - top_k / experts) ** rows)


def imbalance(rows: int, top_k: int, ranks: int) -> float:
    """Expected load of the busiest expert rank over the mean, at least 1: what gates the step.

    Tokens fall on ranks like balls into bins: the maximum of `ranks` counts of mean m stands about sqrt(2 m ln ranks)
    above it (Raab and Steger 1998), and is never more than everything on one rank.
    """
    if ranks <= 1 or rows < 1:
        return 1.0
    mean = rows * top_k / ranks
    return min(1 + math.sqrt(2 * math.log(ranks) / mean), float(ranks))


def all_to_all_bytes(rows: int, hidden: int, top_k: int, ranks: int, element_bytes: float) -> float:
    """Bytes one rank sends to dispatch its `rows` tokens to experts of other ranks; combining them moves as many back.

    A token goes to each of its chosen experts' ranks once, and (ranks - 1) / ranks of those are elsewhere.
    """
    if ranks <= 1:
        return 0.0
    copies = ranks * (1 - (1 - 1 / ranks) ** top_k)
    return rows * hidden * element_bytes * copies * (ranks - 1) / ranks


def redundant_experts(experts: int, ranks: int) -> int:
    """Copies that make the experts divide over the ranks: the fewest slots a rank holds, times ranks, less experts."""
    return -(-experts // ranks) * ranks - experts
