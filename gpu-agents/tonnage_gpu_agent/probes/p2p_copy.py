"""Copies from this GPU to each of its peers."""

from collections.abc import Iterator
from functools import partial

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.probes.probe import GIB, Bench, bandwidth, judged


class P2pCopy:
    """Direct over NVLink or PCIe where the driver allows it; `direct` says whether it does."""

    def unsupported(self, bench: Bench) -> str | None:
        """Needs another GPU."""
        return None if bench.peers else "one GPU has no peers"

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """1 GiB to each peer; a first copy makes the driver take memory on both GPUs."""
        with bench.helping():
            points = list(self._copies(bench))
        yield from points

    def _copies(self, bench: Bench) -> Iterator[Measurement]:
        source = bench.integers(0, 1 << 30, GIB // 4, dtype=torch.int32)
        for peer in bench.peers:
            target = torch.zeros(GIB // 4, dtype=torch.int32, device=peer)
            direct = torch.cuda.can_device_access_peer(bench.device, peer)
            timing = bench.timer.eager([partial(target.copy_, source)], budget_ms=100)
            error = 0.0 if torch.equal(target.to(bench.device), source) else float("inf")
            point = bandwidth("p2p_copy", GIB, timing, peer=str(peer.index), direct=int(direct))
            yield judged(point, error, 0.0)
            if not bench.quick:
                yield from self._sweep(bench, source, target, peer)

    def _sweep(
        self, bench: Bench, source: torch.Tensor, target: torch.Tensor, peer: torch.device
    ) -> Iterator[Measurement]:
        """1 KiB to 1 GiB, launched one by one: a copy between devices takes a stream of each, which no graph holds."""
        for power in range(10, 31, 2):
            nbytes = 1 << power
            call = partial(target[: nbytes // 4].copy_, source[: nbytes // 4])
            yield bandwidth("p2p_sweep", nbytes, bench.timer.eager([call]), peer=str(peer.index), mode="eager")


probe = P2pCopy()
