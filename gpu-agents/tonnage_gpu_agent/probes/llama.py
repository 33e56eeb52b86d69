"""A Llama-8B-shaped transformer with random weights: the kernels of a serving engine's step, and nothing else."""

from dataclasses import dataclass

import torch

from tonnage_gpu_agent.kernels.paged_decode import PagedDecode, plan_decode
from tonnage_gpu_agent.kernels.transformer import add_rms_norm, rope_and_store, silu_multiply
from tonnage_gpu_agent.probes.probe import Bench

PAGE = 16
ROPE_BASE_LOG2 = 18.931568569324174
"""log2 of Llama 3's rope_theta, 500000."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a Llama model."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of one token of one layer in a 16-bit type."""
        return 2 * self.kv_heads * self.head_dim * 2

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights a step reads: every matrix but the embedding table."""
        qkv = self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim
        layer = qkv + self.hidden * self.heads * self.head_dim + 3 * self.hidden * self.intermediate
        return 2 * (self.layers * layer + self.hidden * self.vocabulary)


LLAMA_8B = LlamaShape("llama-8b", 32, 4096, 32, 8, 128, 14336, 128256)
TOY = LlamaShape("toy", 2, 64, 4, 2, 16, 96, 128)


class Weights:
    """Random bf16 weights of variance 1 / fan-in, so that activations stay of order one."""

    def __init__(self, bench: Bench, shape: LlamaShape) -> None:
        def matrix(rows: int, columns: int) -> torch.Tensor:
            return bench.normal(rows, columns, dtype=bench.half, scale=columns**-0.5)

        self.shape = shape
        qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        layers = range(shape.layers)
        self.embedding = bench.normal(shape.vocabulary, shape.hidden, dtype=bench.half)
        self.qkv = [matrix(qkv, shape.hidden) for _ in layers]
        self.out = [matrix(shape.hidden, shape.heads * shape.head_dim) for _ in layers]
        self.gate_up = [matrix(2 * shape.intermediate, shape.hidden) for _ in layers]
        self.down = [matrix(shape.hidden, shape.intermediate) for _ in layers]
        self.head = matrix(shape.vocabulary, shape.hidden)
        self.norm = torch.ones(shape.hidden, dtype=bench.half, device=bench.device)


class KvPool:
    """Pages of K and V shared by the layers. A context too large for 32 layers' pages lets layers share pages
    (`groups` < layers): each still reads bytes that no cache holds, since a group is far larger than the L2."""

    def __init__(self, bench: Bench, shape: LlamaShape, nbytes: int) -> None:
        self.shape = shape
        self.pages = max(1, nbytes // (shape.kv_bytes * PAGE))
        size = (self.pages, shape.kv_heads, PAGE, shape.head_dim)
        self.k, self.v = (bench.normal(*size, dtype=bench.half) for _ in range(2))
        self.order = torch.randperm(self.pages, device=bench.device, generator=bench.generator).int()

    def groups(self, batch: int, context: int) -> int:
        """How many layers get pages of their own; 0 when not even one layer's context fits."""
        return min(self.shape.layers, self.pages // (batch * -(-context // PAGE)))

    def tables(self, batch: int, context: int) -> list[torch.Tensor]:
        """A block table a group, [batch, blocks], over disjoint pages in random order."""
        blocks = -(-context // PAGE)
        each = batch * blocks
        groups = range(self.groups(batch, context))
        return [self.order[i * each : (i + 1) * each].view(batch, blocks) for i in groups]


class DecodeStep:
    """One step of `batch` sequences at `context` tokens, each with `q_tokens` new tokens (1, or 1 + drafts)."""

    def __init__(
        self, bench: Bench, weights: Weights, pool: KvPool, batch: int, context: int, q_tokens: int = 1
    ) -> None:
        shape, device = weights.shape, bench.device
        self.weights, self.pool = weights, pool
        tokens = batch * q_tokens
        self.batch, self.q_tokens, self.tokens = batch, q_tokens, tokens

        def buffer(*size: int) -> torch.Tensor:
            return torch.full(size, torch.nan, dtype=bench.half, device=device)

        self.ids = bench.integers(0, shape.vocabulary, tokens, dtype=torch.int64)
        self.x, self.residual, self.normed = (buffer(tokens, shape.hidden) for _ in range(3))
        self.partial = self.x
        self.qkv = buffer(tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim)
        self.q, self.attended = (buffer(tokens, shape.heads, shape.head_dim) for _ in range(2))
        self.gate_up, self.gated = buffer(tokens, 2 * shape.intermediate), buffer(tokens, shape.intermediate)
        self.logits = buffer(tokens, shape.vocabulary)
        self.next_ids = torch.full((tokens,), -1, dtype=torch.int64, device=device)
        self.lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
        offsets = torch.arange(context - q_tokens, context, device=device)
        self.positions = offsets.repeat(batch).int()
        self.tables = pool.tables(batch, context)
        self.slots = [
            (table.long()[:, offsets // PAGE] * PAGE + offsets % PAGE).reshape(-1).contiguous() for table in self.tables
        ]
        plan = plan_decode(batch, shape.kv_heads, context, bench.multiprocessors)
        rows = shape.heads // shape.kv_heads * q_tokens
        self.attention = PagedDecode.make(plan, batch, shape.kv_heads, rows, shape.head_dim, device)

    def __call__(self) -> None:
        """Embedding, every layer, the head, greedy sampling."""
        torch.index_select(self.weights.embedding, 0, self.ids, out=self.x)
        self.layers_and_head()
        torch.argmax(self.logits, -1, out=self.next_ids)

    def layers_and_head(self) -> None:
        """Everything between the embedding and sampling."""
        w = self.weights
        for layer in range(w.shape.layers):
            self._layer(layer)
        add_rms_norm(self.x, self.residual, w.norm, self.normed)
        torch.mm(self.normed, w.head.t(), out=self.logits)

    def sum_ranks(self) -> None:
        """Where tensor-parallel ranks add up `partial` into `x`: one GPU has the whole sum."""

    def _layer(self, layer: int) -> None:
        w, shape = self.weights, self.weights.shape
        group = layer % len(self.tables)
        add_rms_norm(self.x, self.residual, w.norm, self.normed, add=layer > 0)
        torch.mm(self.normed, w.qkv[layer].t(), out=self.qkv.view(self.tokens, -1))
        rope_and_store(self.qkv, self.positions, self.slots[group], self.q, self.pool.k, self.pool.v, ROPE_BASE_LOG2)
        four = (self.batch, self.q_tokens, shape.heads, shape.head_dim)
        self.attention(
            self.q.view(four), self.pool.k, self.pool.v, self.tables[group], self.lengths, self.attended.view(four)
        )
        torch.mm(self.attended.view(self.tokens, -1), w.out[layer].t(), out=self.partial)
        self.sum_ranks()
        add_rms_norm(self.x, self.residual, w.norm, self.normed)
        torch.mm(self.normed, w.gate_up[layer].t(), out=self.gate_up)
        silu_multiply(self.gate_up, self.gated)
        torch.mm(self.gated, w.down[layer].t(), out=self.partial)
        self.sum_ranks()

    def nbytes(self, context: int) -> int:
        """Bytes the step has to read: the weights once, the cache of every sequence."""
        return self.weights.shape.weight_bytes + self.batch * context * self.weights.shape.layers * self._kv()

    def _kv(self) -> int:
        return self.weights.shape.kv_bytes

    def flops(self, context: int) -> int:
        """Multiply-adds count two: weights of every new token, and attention over the context."""
        shape = self.weights.shape
        attention = 4 * shape.layers * shape.heads * shape.head_dim * context
        return self.tokens * (shape.weight_bytes + attention)
