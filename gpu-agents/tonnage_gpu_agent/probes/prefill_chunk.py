"""A Llama-8B-shaped prefill chunk in one CUDA graph, over chunk size and the context already in the cache."""

from collections.abc import Iterator

import torch

from tonnage_core.gpu_health.measurement import Measurement
from tonnage_gpu_agent.kernels.transformer import add_rms_norm, rope_and_store, silu_multiply
from tonnage_gpu_agent.probes.decode_step import DecodeStepProbe, shape_for
from tonnage_gpu_agent.probes.llama import ROPE_BASE_LOG2, Weights
from tonnage_gpu_agent.probes.probe import Bench, duration, judged, relative_error

CHUNKS = (8192, 2048, 512)
"""The longest first: it takes the chip to the power limit that prompts are served at. A cool chip ran 512 tokens 10 %
faster."""
CONTEXTS = (0, 4096, 16384)


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The last tokens of a sequence over all of it: q [1, tokens, heads, dim], k and v [1, all, kv_heads, dim].

    Query i sees keys up to all - tokens + i. On a GPU the flash kernel does that with grouped heads as they are.
    """
    if q.is_cuda:
        attended: torch.Tensor = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False
        )[0]
        return attended
    return reference_attention(q, k, v).to(q.dtype)


def reference_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same in float64."""
    tokens, everything, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    keys, values = (t[0].double().repeat_interleave(group, 1) for t in (k, v))
    scores = torch.einsum("qhd,nhd->hqn", q[0].double(), keys) / q.shape[-1] ** 0.5
    limit = everything - tokens + torch.arange(tokens, device=q.device)
    scores.masked_fill_(torch.arange(everything, device=q.device)[None, None] > limit[None, :, None], -torch.inf)
    return torch.einsum("hqn,nhd->qhd", torch.softmax(scores, -1), values)[None]


class PrefillChunk:
    """`tokens` new tokens after `context` cached ones. Every layer writes its keys and values into the same cache:
    a chunk is bound by arithmetic, not by where the cache lies. Only the last token's logits are computed."""

    def __init__(self, bench: Bench, weights: Weights, tokens: int, context: int) -> None:
        shape, device = weights.shape, bench.device
        self.weights, self.tokens, self.context = weights, tokens, context

        def buffer(*size: int) -> torch.Tensor:
            return torch.full(size, torch.nan, dtype=bench.half, device=device)

        self.ids = bench.integers(0, shape.vocabulary, tokens, dtype=torch.int64)
        self.x, self.residual, self.normed = (buffer(tokens, shape.hidden) for _ in range(3))
        self.qkv = buffer(tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim)
        self.q = buffer(tokens, shape.heads, shape.head_dim)
        self.gate_up, self.gated = buffer(tokens, 2 * shape.intermediate), buffer(tokens, shape.intermediate)
        self.logits = buffer(1, shape.vocabulary)
        size = (1, shape.kv_heads, context + tokens, shape.head_dim)
        self.k, self.v = (bench.normal(*size, dtype=bench.half) for _ in range(2))
        self.slots = torch.arange(context, context + tokens, device=device)
        self.positions = self.slots.int()

    def __call__(self) -> None:
        """Embedding, every layer, the head for the last token."""
        w = self.weights
        torch.index_select(w.embedding, 0, self.ids, out=self.x)
        for layer in range(w.shape.layers):
            add_rms_norm(self.x, self.residual, w.norm, self.normed, add=layer > 0)
            torch.mm(self.normed, w.qkv[layer].t(), out=self.qkv.view(self.tokens, -1))
            rope_and_store(self.qkv, self.positions, self.slots, self.q, self.k, self.v, ROPE_BASE_LOG2)
            attended = causal_attention(self.q[None], self.k.transpose(1, 2), self.v.transpose(1, 2))
            torch.mm(attended.reshape(self.tokens, -1), w.out[layer].t(), out=self.x)
            add_rms_norm(self.x, self.residual, w.norm, self.normed)
            torch.mm(self.normed, w.gate_up[layer].t(), out=self.gate_up)
            silu_multiply(self.gate_up, self.gated)
            torch.mm(self.gated, w.down[layer].t(), out=self.x)
        add_rms_norm(self.x, self.residual, w.norm, self.normed)
        torch.mm(self.normed[-1:], w.head.t(), out=self.logits)

    def flops(self) -> int:
        """Weights of every token (the head for one), and causal attention: half of the chunk's own square."""
        shape = self.weights.shape
        head = 2 * shape.hidden * shape.vocabulary
        pairs = self.tokens * self.context + self.tokens * (self.tokens + 1) // 2
        return (
            self.tokens * (shape.weight_bytes - head) + head + 4 * shape.layers * shape.heads * shape.head_dim * pairs
        )


def attention_error(bench: Bench) -> float:
    """Error of the chunk's attention against float64, with a context before it."""
    shape = shape_for(bench)
    q = bench.normal(1, 40, shape.heads, shape.head_dim, dtype=bench.half)
    k, v = (bench.normal(1, 107, shape.kv_heads, shape.head_dim, dtype=bench.half) for _ in range(2))
    return relative_error(causal_attention(q, k, v), reference_attention(q, k, v))


class PrefillChunkProbe:
    """Chunks of 512 to 8192 tokens after 0 to 16384."""

    def unsupported(self, bench: Bench) -> str | None:
        """What the decode step needs."""
        return DecodeStepProbe().unsupported(bench)

    def points(self, bench: Bench) -> Iterator[Measurement]:
        """Microseconds a chunk."""
        error = attention_error(bench)
        weights = Weights(bench, shape_for(bench))
        sizes = ((32, 16),) if bench.rehearsal else [(chunk, context) for context in CONTEXTS for chunk in CHUNKS]
        for tokens, context in sizes:
            chunk = PrefillChunk(bench, weights, tokens, context)
            timing = bench.timer.graph([chunk], budget_ms=120)
            point = duration(
                "prefill_chunk",
                timing,
                flops=chunk.flops(),
                nbytes=weights.shape.weight_bytes,
                model=weights.shape.name,
                tokens=tokens,
                context=context,
            )
            finite = bool(torch.isfinite(chunk.logits).all())
            yield judged(point, error if finite else float("inf"), 1e-2)


probe = PrefillChunkProbe()
