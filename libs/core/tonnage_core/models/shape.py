"""A model as the formulas see it: layers, vocabulary, weight inventory. Built by `models.config.shape_from_config`."""

from dataclasses import dataclass, field
from functools import cached_property

from tonnage_core.models.caching import bytes_per_token
from tonnage_core.models.encoders import Encoder
from tonnage_core.models.inventory import layer_tensors
from tonnage_core.models.layers import Attention, Experts, Layer
from tonnage_core.models.tensors import Split, Tensor, vector
from tonnage_core.models.weights import StageWeights, stage_weights
from tonnage_core.parallelism import Layout
from tonnage_core.quantization.formats import BF16, FP16, FP32, WeightFormat
from tonnage_core.quantization.plan import QuantizationPlan

DTYPE_FORMATS: dict[str, WeightFormat] = {"bfloat16": BF16, "float16": FP16, "float32": FP32}


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one model, in elements unless a name says bytes.

    `heads`, `kv_heads` and `head_dim` are those of the first attention layer; `intermediate` is the widest dense
    network, or an expert's width where there is none. `notes` state every approximation made while reading the config.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    intermediate: int
    max_position_embeddings: int
    dtype: str
    stack: tuple[Layer, ...]
    tied_embeddings: bool = False
    architecture: str = ""
    quantization: QuantizationPlan = field(default_factory=QuantizationPlan)
    encoders: tuple[Encoder, ...] = ()
    rotary_elements: int = 0
    """Elements of the cosine and sine tables that every rank keeps."""
    learned_positions: int = 0
    layer_inputs: tuple[int, int] = (0, 0)
    """Rows and width of the embeddings that each layer has for itself; (0, 0): none."""
    longest: int = 0
    """Tokens of the longest sequence the checkpoint is made for, scaling included."""
    draft_layers: int = 0
    """Multi-token-prediction layers in the checkpoint, loaded only for speculative decoding."""
    final_norms: int = 1
    head_bias: bool = False
    has_head: bool = True
    notes: tuple[str, ...] = ()

    @property
    def dense_format(self) -> WeightFormat:
        """How unquantised weights are stored."""
        return DTYPE_FORMATS[self.dtype]

    @property
    def element_bytes(self) -> int:
        """Bytes of an unquantised weight or activation."""
        return int(self.dense_format.bits // 8)

    @cached_property
    def embedding_tensors(self) -> tuple[Tensor, ...]:
        """Input embeddings and learned positions: first pipeline stage."""
        found = [Tensor("embed_tokens", self.vocab, self.hidden, split=Split.VOCABULARY, linear=False)]
        if self.learned_positions:
            found.append(Tensor("embed_positions", self.learned_positions, self.hidden, linear=False))
        rows, width = self.layer_inputs
        if width:
            every = self.layers * width
            found.append(Tensor("embed_tokens_per_layer", rows, every, split=Split.VOCABULARY, linear=False))
            found.append(Tensor("per_layer_model_projection", every, self.hidden, linear=False))
            found.append(Tensor("per_layer_gate_and_projection", 2 * every, self.hidden, linear=False))
        return tuple(found)

    @cached_property
    def head_tensors(self) -> tuple[Tensor, ...]:
        """Final norm and output head: last pipeline stage. A tied head is the embedding again."""
        found = [vector("norm", self.hidden * self.final_norms)]
        if self.has_head and not self.tied_embeddings:
            found.append(Tensor("lm_head", self.vocab, self.hidden, split=Split.VOCABULARY))
        if self.head_bias:
            found.append(vector("lm_head.bias", self.vocab, Split.ROWS))
        return tuple(found)

    @cached_property
    def parameters(self) -> int:
        """Every parameter, encoders included, multi-token-prediction layers not."""
        return self.text_parameters + sum(tensor.parameters for encoder in self.encoders for tensor in encoder.tensors)

    @cached_property
    def text_parameters(self) -> int:
        """Parameters of the language model."""
        ends = sum(tensor.parameters for tensor in (*self.embedding_tensors, *self.head_tensors))
        return ends + sum(tensor.parameters for layer in self.stack for tensor in layer_tensors(layer, self.hidden))

    @cached_property
    def active_parameters(self) -> int:
        """Parameters one token passes: all but the embeddings' other rows and the experts that were not chosen."""
        idle = 0 if self.tied_embeddings else self.vocab * self.hidden
        for layer in self.stack:
            network = layer.network
            if isinstance(network, Experts):
                width = network.latent or self.hidden
                one = width * network.intermediate * (3 if network.gated else 2)
                idle += (network.count - network.top_k) * one
        return self.text_parameters - idle

    def layer_formats(self, index: int, dense: WeightFormat) -> tuple[WeightFormat, ...]:
        """The storage format of each tensor of one layer, in the order of `layer_tensors`."""
        tensors = layer_tensors(self.stack[index], self.hidden)
        if not self.quantization.rules:
            return (dense,) * len(tensors)
        known = self._formats.get(index)
        if known is None:
            names = [f"layers.{index}.{tensor.name}" for tensor in tensors]
            known = self._formats[index] = tuple(
                self.quantization.format_for(name) if tensor.linear else None
                for name, tensor in zip(names, tensors, strict=True)
            )
        return tuple(dense if stored is None or stored is BF16 else stored for stored in known)

    @cached_property
    def _formats(self) -> dict[int, tuple[WeightFormat | None, ...]]:
        return {}

    @cached_property
    def stages_known(self) -> dict[tuple[Layout, WeightFormat], tuple[StageWeights, ...]]:
        """What `weights.stage_weights` has counted of this shape: a plan asks for the same layouts on every card."""
        return {}

    def end_format(self, name: str, dense: WeightFormat) -> WeightFormat:
        """The format of an embedding or head; only some methods quantise the head."""
        if name != "lm_head" or not self.quantization.head:
            return dense
        return self.quantization.format_for(name, dense)

    def encoder_format(self, name: str, dense: WeightFormat) -> WeightFormat:
        """The format of an encoder's projection."""
        return self.quantization.format_for(name, dense) if self.quantization.encoders else dense

    def weight_bytes(self, tp: int = 1, pp: int = 1, ep: int = 1, dp: int = 1) -> float:
        """Weight bytes of the heaviest rank, as loaded. `models.weights.stage_weights` gives every stage."""
        return max(stage.total for stage in stage_weights(self, Layout(tp, pp, ep, dp)))

    def kv_bytes_per_token(self, kv_dtype: str = "auto", tp: int = 1) -> int:
        """Cache bytes of one token on one rank, every attention layer counted at full length."""
        return bytes_per_token(self, kv_dtype, tp)

    @cached_property
    def distinct_layers(self) -> tuple[Layer, ...]:
        """Every kind of layer once."""
        return tuple(dict.fromkeys(self.stack))

    @cached_property
    def attention_layers(self) -> tuple[Attention, ...]:
        """The layers with plain softmax attention."""
        return tuple(layer.mixer for layer in self.stack if isinstance(layer.mixer, Attention))
