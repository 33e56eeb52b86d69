"""Launch cost a kernel: 600 tiny kernels launched one by one, and in a graph (guide lab 10a)."""

from collections.abc import Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import Bench, duration, judged, relative_error

ITERATIONS = 300
ELEMENTS = 1024


class Launch:
    """A multiply and an add on 1024 floats, 300 times: the kernels are so small that only their launch shows."""

    def unsupported(self, bench: Bench) -> str | None:
        """Any device."""
        return None

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Microseconds a kernel, eager and graph."""
        start = bench.normal(ELEMENTS, dtype=torch.float32)
        out = torch.full_like(start, torch.nan)

        def body() -> None:
            out.copy_(start)
            for _ in range(ITERATIONS):
                out.mul_(0.5).add_(1.0)

        body()
        want = start.double()
        for _ in range(ITERATIONS):
            want = want * 0.5 + 1.0
        error = relative_error(out, want)
        kernels = 2 * ITERATIONS + 1
        for name, timing in (("launch_eager", bench.timer.eager([body])), ("launch_graph", bench.timer.graph([body]))):
            point = duration(name, timing, kernels=kernels)
            each = timing.us / kernels
            point = Measurement(
                point.name, point.status, each, "us", params={**point.params, "us": each}, context=point.context
            )
            yield judged(point, error, 1e-5)


probe = Launch()
