"""A linear layer with batched low-rank adapters beside the same layer without: what many tenants on one model cost."""

from collections.abc import Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.kernels.lora import AdapterRows, cut_for, expand, lora_reference, shrink
from tonnage_gpu_agent.probes.probe import Bench, duration, judged, relative_error

WIDTH = 8192
SIZES = ((64, 16, 8), (1, 16, 1), (16, 16, 8), (64, 64, 8), (64, 16, 32), (256, 16, 8))
SCALE = 0.5


class LoraLayer:
    """`y = x W^T + s (x A_i^T) B_i^T`; on a GPU the shrink runs beside the base product on a second stream."""

    def __init__(self, bench: Bench, x: torch.Tensor, rows: AdapterRows, rank: int, adapters: int) -> None:
        batch, width = x.shape
        self.x, self.rows = x, rows
        self.cut = cut_for(batch, adapters)
        self.part = torch.full((self.cut.splits, batch, rank), torch.nan, device=x.device)
        self.y = torch.full_like(x, torch.nan)
        self.w = bench.normal(width, width, dtype=x.dtype, scale=width**-0.5)
        self.a = bench.normal(adapters, rank, width, dtype=x.dtype, scale=width**-0.5)
        self.b = bench.normal(adapters, width, rank, dtype=x.dtype, scale=rank**-0.5)
        self.side = None if bench.rehearsal else bench.stream()

    def base(self) -> None:
        """The layer without adapters."""
        torch.mm(self.x, self.w.t(), out=self.y)

    def adapted(self) -> None:
        """The layer with them."""
        if self.side is None:
            shrink(self.x, self.a, self.rows, self.part, self.cut)
            self.base()
        else:
            main = torch.cuda.current_stream()
            self.side.wait_stream(main)
            with torch.cuda.stream(self.side):
                shrink(self.x, self.a, self.rows, self.part, self.cut)
            self.base()
            main.wait_stream(self.side)
        expand(self.part, self.b, self.y, self.rows, SCALE, self.cut)


class LoraGemm:
    """Timed in a graph with and without adapters; the overhead is a share of the base product."""

    def unsupported(self, bench: Bench) -> str | None:
        """bf16 matrix units."""
        if not bench.rehearsal and torch.cuda.get_device_capability(bench.device) < (8, 0):
            return "needs compute capability 8.0"
        return None

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Batch 64, rank 16, 8 adapters first; then around it."""
        for batch, rank, adapters in SIZES[: 1 if bench.quick or bench.rehearsal else None]:
            yield self._point(bench, bench.sized(batch, 6), rank, adapters)

    def _point(self, bench: Bench, batch: int, rank: int, adapters: int) -> Measurement:
        width = bench.sized(WIDTH, 128)
        x = bench.normal(batch, width, dtype=bench.half)
        rows_of = bench.integers(0, adapters, batch, dtype=torch.int64)
        rows = AdapterRows.group(rows_of, adapters)
        layers = [LoraLayer(bench, x, rows, rank, adapters) for _ in range(bench.copies(2 * width * width))]
        first = layers[0]
        first.adapted()
        error = relative_error(first.y, lora_reference(x, first.w, first.a, first.b, rows_of, SCALE))
        base = bench.timer.graph([layer.base for layer in layers], budget_ms=30)
        adapted = bench.timer.graph([layer.adapted for layer in layers], budget_ms=30)
        overhead = adapted.us / base.us - 1
        point = duration(
            "lora_gemm",
            adapted,
            batch=batch,
            rank=rank,
            adapters=adapters,
            width=width,
            base_us=base.us,
            overhead=overhead,
            flops=2 * batch * width * (width + 2 * rank),
            nbytes=2 * (width * width + 2 * batch * width + 2 * adapters * rank * width),
        )
        return judged(point, error, 1e-2)


probe = LoraGemm()
