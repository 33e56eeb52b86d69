"""Weight bytes of one rank of each pipeline stage, as an engine holds them after loading."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from tonnage_core.models.inventory import layer_tensors
from tonnage_core.models.tensors import Split, Tensor
from tonnage_core.parallelism import Layout, local_heads, pipeline_stages
from tonnage_core.quantization.formats import WeightFormat

if TYPE_CHECKING:
    from tonnage_core.models.layers import Layer
    from tonnage_core.models.shape import ModelShape

VOCABULARY_PAD = 64
"""vLLM pads the vocabulary to a multiple of this before it splits it."""


@dataclass(frozen=True, slots=True)
class StageWeights:
    """Bytes on one rank of a pipeline stage; `layers` counts the stage's decoder layers."""

    layers: int
    decoder: float
    experts: float
    embedding: float
    head: float
    encoders: float
    rotary: float

    @property
    def total(self) -> float:
        """Everything the rank holds."""
        return self.decoder + self.experts + self.embedding + self.head + self.encoders + self.rotary


def local_shape(tensor: Tensor, layout: Layout) -> tuple[int, int, int]:
    """Rows, columns and copies of a tensor on one rank; what does not divide is rounded up."""
    rows, columns, copies = tensor.rows, tensor.columns, tensor.copies
    match tensor.split:
        case Split.ROWS:
            rows = ceil(rows / layout.tp)
        case Split.COLUMNS:
            columns = ceil(columns / layout.tp)
        case Split.HEADS:
            rows = local_heads(rows // tensor.unit, layout.tp) * tensor.unit
        case Split.VOCABULARY:
            rows = ceil(ceil(rows / VOCABULARY_PAD) * VOCABULARY_PAD / layout.tp)
        case Split.EXPERT_ROWS:
            rows, copies = ceil(rows / layout.expert_tp), ceil(copies / layout.ep)
        case Split.EXPERT_COLUMNS:
            columns, copies = ceil(columns / layout.expert_tp), ceil(copies / layout.ep)
        case Split.NONE:
            pass
    return rows, columns, copies


def tensor_bytes(tensor: Tensor, stored: WeightFormat, dense: WeightFormat, layout: Layout) -> float:
    """Bytes of one rank's part of a tensor."""
    rows, columns, copies = local_shape(tensor, layout)
    if tensor.element_bytes is not None:
        return float(rows * columns * copies * tensor.element_bytes)
    return (stored if tensor.linear else dense).size(rows, columns, copies)


@lru_cache(maxsize=8192)
def _layer_bytes(
    layer: "Layer", hidden: int, formats: tuple[WeightFormat, ...], dense: WeightFormat, layout: Layout
) -> tuple[float, float]:
    """(everything else, experts) of one layer on one rank."""
    rest = experts = 0.0
    for tensor, stored in zip(layer_tensors(layer, hidden), formats, strict=True):
        size = tensor_bytes(tensor, stored, dense, layout)
        if tensor.split in (Split.EXPERT_ROWS, Split.EXPERT_COLUMNS):
            experts += size
        else:
            rest += size
    return rest, experts


def stage_weights(shape: "ModelShape", layout: Layout, dense: WeightFormat | None = None) -> tuple[StageWeights, ...]:
    """Weight bytes of every pipeline stage. `dense` replaces the dtype of unquantised weights."""
    dense = dense or shape.dense_format
    known = shape.stages_known
    if (layout, dense) not in known:
        known[layout, dense] = _stage_weights(shape, layout, dense)
    return known[layout, dense]


def _stage_weights(shape: "ModelShape", layout: Layout, dense: WeightFormat) -> tuple[StageWeights, ...]:
    counts = pipeline_stages(shape.layers, layout.pp)
    stages = []
    start = 0
    for stage, count in enumerate(counts):
        first, last = stage == 0, stage == len(counts) - 1
        sizes = [
            _layer_bytes(shape.stack[index], shape.hidden, shape.layer_formats(index, dense), dense, layout)
            for index in range(start, start + count)
        ]
        with_embedding = first or (last and shape.tied_embeddings)
        stages.append(
            StageWeights(
                layers=count,
                decoder=sum(rest for rest, _ in sizes),
                experts=sum(experts for _, experts in sizes),
                embedding=_sum(shape, shape.embedding_tensors, dense, layout) if with_embedding else 0.0,
                head=_sum(shape, shape.head_tensors, dense, layout) if last else 0.0,
                encoders=encoder_bytes(shape, dense, layout),
                rotary=shape.rotary_elements * dense.bits / 8,
            )
        )
        start += count
    return tuple(stages)


def _sum(shape: "ModelShape", tensors: tuple[Tensor, ...], dense: WeightFormat, layout: Layout) -> float:
    return sum(tensor_bytes(tensor, shape.end_format(tensor.name, dense), dense, layout) for tensor in tensors)


def encoder_bytes(shape: "ModelShape", dense: WeightFormat, layout: Layout) -> float:
    """Encoders are loaded on every rank of every stage; most split over tensor-parallel ranks."""
    total = 0.0
    for encoder in shape.encoders:
        for tensor in encoder.tensors:
            total += tensor_bytes(tensor, shape.encoder_format(tensor.name, dense), dense, layout)
    return total
