"""The decode step of one tensor-parallel rank: its heads, its half of the network, its rows of the vocabulary."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as distributed

from tonnage_gpu_agent.probes.llama import DecodeStep, KvPool, LlamaShape, Weights
from tonnage_gpu_agent.probes.probe import Bench

LLAMA_70B = LlamaShape("llama-70b", 80, 8192, 64, 8, 128, 28672, 128256)
TOY_TP = LlamaShape("toy", 2, 64, 4, 2, 16, 96, 128)


def shard_shape(shape: LlamaShape, tp: int) -> LlamaShape:
    """What one of `tp` ranks holds; `ValueError` when something does not divide."""
    for name in ("heads", "kv_heads", "intermediate", "vocabulary"):
        if getattr(shape, name) % tp:
            raise ValueError(f"{name} {getattr(shape, name)} does not divide by tp {tp}")
    return replace(
        shape,
        heads=shape.heads // tp,
        kv_heads=shape.kv_heads // tp,
        intermediate=shape.intermediate // tp,
        vocabulary=shape.vocabulary // tp,
    )


def shard_weights(bench: Bench, shape: LlamaShape, tp: int, distinct: int) -> Weights:
    """Random weights of one rank; `distinct` layers' worth, used in turn (each far larger than the L2)."""
    weights = Weights(bench, replace(shard_shape(shape, tp), layers=distinct))
    weights.shape = shard_shape(shape, tp)
    for name in ("qkv", "out", "gate_up", "down"):
        setattr(weights, name, [getattr(weights, name)[i % distinct] for i in range(shape.layers)])
    return weights


def cut_weights(bench: Bench, full: Weights, tp: int, rank: int) -> Weights:
    """Rank `rank`'s part of whole weights: rows of Q, K, V, gate and up, columns of the projections back."""
    shape, part = full.shape, shard_shape(full.shape, tp)
    weights = Weights(bench, part)
    heads, kv_heads = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def rows(matrix: torch.Tensor, count: int) -> torch.Tensor:
        return matrix.narrow(0, rank * count, count)

    for layer in range(shape.layers):
        parts = torch.split(full.qkv[layer], [heads, kv_heads, kv_heads])
        weights.qkv[layer] = torch.cat([rows(each, each.shape[0] // tp) for each in parts])
        weights.out[layer] = full.out[layer].narrow(1, rank * heads // tp, heads // tp).contiguous()
        gate_up = full.gate_up[layer].chunk(2)
        weights.gate_up[layer] = torch.cat([rows(each, part.intermediate) for each in gate_up])
        weights.down[layer] = full.down[layer].narrow(1, rank * part.intermediate, part.intermediate).contiguous()
    weights.embedding = rows(full.embedding, part.vocabulary).contiguous()
    weights.head = rows(full.head, part.vocabulary).contiguous()
    return weights


def cut_pool(full: KvPool, bench: Bench, tp: int, rank: int) -> KvPool:
    """Rank `rank`'s key and value heads of a whole pool, with the same pages."""
    part = shard_shape(full.shape, tp)
    pool = KvPool(bench, part, full.pages * part.kv_bytes * full.k.shape[2])
    heads = slice(rank * part.kv_heads, (rank + 1) * part.kv_heads)
    pool.k.copy_(full.k[:, heads])
    pool.v.copy_(full.v[:, heads])
    pool.order = full.order
    return pool


class TensorParallelStep(DecodeStep):
    """A decode step that sums over ranks after the embedding and twice a layer, and gathers the logits."""

    def __init__(
        self, bench: Bench, weights: Weights, pool: KvPool, batch: int, context: int, *, rank: int, tp: int
    ) -> None:
        super().__init__(bench, weights, pool, batch, context)
        tokens, vocabulary = self.tokens, weights.shape.vocabulary
        self.ids = bench.integers(0, tp * vocabulary, tokens, dtype=torch.int64)
        self.first_id = rank * vocabulary
        self.local, self.clamped = torch.empty_like(self.ids), torch.empty_like(self.ids)
        self.inside = torch.empty(tokens, dtype=torch.bool, device=bench.device)
        self.gathered = torch.full((tp * tokens, vocabulary), torch.nan, dtype=bench.half, device=bench.device)
        self.whole = torch.empty(tokens, tp * vocabulary, dtype=bench.half, device=bench.device)
        self.tp = tp

    def __call__(self) -> None:
        """As the base's, over the ranks."""
        w = self.weights
        torch.sub(self.ids, self.first_id, out=self.local)
        torch.clamp(self.local, 0, w.shape.vocabulary - 1, out=self.clamped)
        torch.eq(self.local, self.clamped, out=self.inside)
        torch.index_select(w.embedding, 0, self.clamped, out=self.partial)
        self.partial.mul_(self.inside[:, None])
        self.sum_ranks()
        self.layers_and_head()
        distributed.all_gather_into_tensor(self.gathered, self.logits)
        parts = self.gathered.view(self.tp, self.tokens, -1)
        self.whole.view(self.tokens, self.tp, -1).copy_(parts.transpose(0, 1))
        torch.argmax(self.whole, -1, out=self.next_ids)

    def sum_ranks(self) -> None:
        """NCCL's all-reduce, in place."""
        distributed.all_reduce(self.x)


class OneShotStep(TensorParallelStep):
    """Sums by reading every rank's partial result from peer memory, as serving engines do for small messages."""

    def __init__(
        self, bench: Bench, weights: Weights, pool: KvPool, batch: int, context: int, *, rank: int, tp: int
    ) -> None:
        super().__init__(bench, weights, pool, batch, context, rank=rank, tp=tp)
        import torch.distributed._symmetric_memory as symmetric

        memory: Any = symmetric
        group: Any = distributed.group.WORLD
        self.partial = memory.empty(*self.x.shape, dtype=self.x.dtype, device=self.x.device)
        memory.rendezvous(self.partial, group=group)
        self._ops: Any = torch.ops.symm_mem
        self._group = group.group_name

    def sum_ranks(self) -> None:
        """From `partial` of all ranks into `x`."""
        self._ops.one_shot_all_reduce_out(self.partial, "sum", self._group, self.x)
