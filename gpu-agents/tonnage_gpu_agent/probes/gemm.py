"""What the matrix-product probes share: one linear layer of 8192 x 8192, x [B, 8192] W^T, over B (guide labs 2a, 6)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import Bench, judged, rate, relative_error

WIDTH = 8192
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
QUICK_BATCHES = (1, 16, 64, 256, 2048, 8192)
CHECKED_ROWS = 64
LARGE_BATCH = 1024
"""From here on x, W and y of one product overflow the L2 cache, so two copies of W are rotation enough."""
SUSTAINED_BATCH = 4096
SUSTAINED_MS = 700.0

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
"""`product(x, w, y)` computes `y = x w^T`."""


@dataclass(frozen=True, slots=True)
class GemmSweep:
    """A sweep over B in one precision. `limit` bounds the error against float64 on the same inputs; `least_rows` pads
    a smaller B (the FLOPs of B count, as a server would have to pad too)."""

    name: str
    make: Callable[[Bench, int, int], torch.Tensor]
    product: Product
    out_dtype: torch.dtype
    limit: float
    least_rows: int = 1

    def run(self, bench: Bench) -> Iterator[Measurement]:
        """One point a batch; weights rotate through enough copies to overflow the L2 cache."""
        width = bench.sized(WIDTH, 64)
        probe_weight = self.make(bench, width, width)
        nbytes = probe_weight.numel() * probe_weight.element_size()
        weights = [probe_weight, *(self.make(bench, width, width) for _ in range(bench.copies(nbytes) - 1))]
        for batch in (QUICK_BATCHES if bench.quick else BATCHES)[: 2 if bench.rehearsal else None]:
            yield self._point(bench, batch, weights)
        if not bench.quick and not bench.rehearsal:
            yield self._sustained(bench, weights)

    def _sustained(self, bench: Bench, weights: list[torch.Tensor]) -> Measurement:
        """The rate after the power limit has acted, over most of a second: what a long prefill gets."""
        width = weights[0].shape[0]
        x = self.make(bench, SUSTAINED_BATCH, width)
        y = torch.empty(SUSTAINED_BATCH, width, dtype=self.out_dtype, device=bench.device)
        timing = bench.timer.graph([partial(self.product, x, w, y) for w in weights], budget_ms=SUSTAINED_MS)
        flops = 2 * SUSTAINED_BATCH * width * width
        return rate(f"{self.name}_sustained", flops, 0, timing, batch=SUSTAINED_BATCH, width=width)

    def _point(self, bench: Bench, batch: int, weights: list[torch.Tensor]) -> Measurement:
        width = weights[0].shape[0]
        rows = max(batch, self.least_rows)
        x = self.make(bench, rows, width)
        y = torch.empty(rows, width, dtype=self.out_dtype, device=bench.device)
        self.product(x, weights[0], y.fill_(torch.nan if y.is_floating_point() else -1))
        picked = torch.randint(0, rows, (min(rows, CHECKED_ROWS),), device=bench.device, generator=bench.generator)
        error = relative_error(y[picked], x[picked].double() @ weights[0].double().T)
        if y.is_floating_point() and not bool(torch.isfinite(y).all()):
            error = float("inf")
        calls = [partial(self.product, x, w, y) for w in weights]
        timing = bench.timer.burst(calls[:2] if batch >= LARGE_BATCH else calls)
        size = x.element_size()
        nbytes = (width * width + batch * width) * size + batch * width * y.element_size()
        padded = {"padded_rows": rows} if rows != batch else {}
        point = rate(self.name, 2 * batch * width * width, nbytes, timing, batch=batch, width=width, **padded)
        return judged(point, error, self.limit)


def wide(dtype: torch.dtype) -> Callable[[Bench, int, int], torch.Tensor]:
    """Normal values of a 16-bit type."""

    def make(bench: Bench, rows: int, columns: int) -> torch.Tensor:
        return bench.normal(rows, columns, dtype=dtype)

    return make


def multiply(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> object:
    """The framework's matrix product."""
    return torch.mm(x, w.t(), out=y)
