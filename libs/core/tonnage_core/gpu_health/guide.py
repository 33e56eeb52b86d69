"""Ratios that a domain guide measured on one GPU, beside the same ratios of a probe run on another.

Source of the guide's figures: its labs 2a, 5, 6, 10a, 10b and 11, measured on an RTX PRO 6000 Blackwell. They are
what does not depend on a GPU's size: that decode costs the same up to a batch, how much a fused kernel saves.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tonnage_core.gpu_health.measurement import Measurement, PointStatus

Lookup = Callable[..., float]
"""`us(name, **params)`: microseconds of a measured point; KeyError when there is none."""


@dataclass(frozen=True, slots=True)
class GuideRatio:
    """A ratio of the guide and how it follows from measured points."""

    name: str
    guide: float
    measured: Callable[[Lookup], float]


GUIDE_RATIOS: Sequence[GuideRatio] = (
    GuideRatio("decode GEMM, B=64 over B=1, time (lab 2a)", 1.0,
               lambda us: us("gemm_bf16", batch=64) / us("gemm_bf16", batch=1)),
    GuideRatio("naive over fused attention, time (lab 5)", 11.3,
               lambda us: us("attention", implementation="naive") / us("attention", implementation="sdpa")),
    GuideRatio("tiled Python over fused attention, time (lab 5)", 24.7,
               lambda us: us("attention", implementation="tiled") / us("attention", implementation="sdpa")),
    GuideRatio("16-bit over fp8 GEMM, B=2048, time (lab 6)", 2.0,
               lambda us: us("gemm_bf16", batch=2048) / us("gemm_fp8", batch=2048)),
    GuideRatio("eager over graph launch, time a kernel (lab 10a)", 5.9,
               lambda us: us("launch_eager") / us("launch_graph")),
    GuideRatio("two eager kernels over one fused, time (lab 10b)", 2.0,
               lambda us: us("fusion_eager") / us("fusion_triton")),
    GuideRatio("pageable over pinned copy to the device, time (lab 11)", 5.3,
               lambda us: us("h2d_pageable", bytes=1 << 30) / us("h2d_pinned", bytes=1 << 30)),
)  # fmt: skip


def guide_ratios(points: Iterable[Measurement]) -> list[tuple[str, float, float | None]]:
    """Each ratio's name, the guide's figure and the measured one; None when a point of it was not measured."""
    ok = [p for p in points if p.status is PointStatus.OK and "us" in p.params]

    def us(name: str, **params: float | str) -> float:
        for point in ok:
            if point.name == name and _has(point.params, params):
                return float(point.params["us"])
        raise KeyError(name)

    found: list[tuple[str, float, float | None]] = []
    for ratio in GUIDE_RATIOS:
        try:
            found.append((ratio.name, ratio.guide, ratio.measured(us)))
        except KeyError:
            found.append((ratio.name, ratio.guide, None))
    return found


def _has(params: Mapping[str, float | str], wanted: Mapping[str, float | str]) -> bool:
    return all(params.get(key) == value for key, value in wanted.items())
