"""y = 2 x + 1 on 1 GiB: two eager kernels, torch.compile, one Triton kernel, and a plain copy (guide lab 10b)."""

from collections.abc import Callable, Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.kernels.streams import scale_shift
from tonnage_gpu_agent.probes.probe import GIB, Bench, bandwidth, judged, relative_error, without


class Fusion:
    """A fused kernel moves each byte once in and once out; eager moves it twice."""

    def unsupported(self, bench: Bench) -> str | None:
        """Room for four buffers."""
        return None if bench.rehearsal or bench.free_bytes() > 5 * GIB else "needs 5 GiB of free device memory"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Triton and copy; the full suite also eager and torch.compile."""
        n = bench.sized(GIB // 4, 4096)
        x = bench.normal(n, dtype=torch.float32)
        y = torch.full_like(x, torch.nan)
        yield self._point(bench, "fusion_copy", 2, x, y, lambda: y.copy_(x), shifted=False)
        yield self._point(bench, "fusion_triton", 2, x, y.fill_(torch.nan), lambda: scale_shift(x, y, 2.0, 1.0))
        if bench.quick:
            return
        held: list[torch.Tensor] = []
        yield self._point(
            bench, "fusion_eager", 4, x, None, lambda: held.__setitem__(slice(None), [x * 2.0 + 1.0]), held=held
        )
        if bench.rehearsal:
            yield without("fusion_compile", "compiled code is timed on a GPU only")
            return
        compiled = torch.compile(lambda tensor: tensor * 2.0 + 1.0)
        yield self._point(
            bench, "fusion_compile", 2, x, None, lambda: held.__setitem__(slice(None), [compiled(x)]), held=held
        )

    def _point(
        self,
        bench: Bench,
        name: str,
        passes: int,
        x: torch.Tensor,
        y: torch.Tensor | None,
        call: Callable[[], object],
        *,
        shifted: bool = True,
        held: list[torch.Tensor] | None = None,
    ) -> Measurement:
        timing = bench.timer.eager([call], budget_ms=60)
        out = y if y is not None else (held or [x])[0]
        head = slice(0, 1 << 20)
        want = x[head].double() * 2 + 1 if shifted else x[head].double()
        error = relative_error(out[head], want) if bool(torch.isfinite(out).all()) else float("inf")
        return judged(bandwidth(name, passes * x.numel() * 4, timing, passes=passes), error, 1e-6)


probe = Fusion()
