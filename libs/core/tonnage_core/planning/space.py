"""Every configuration worth a look: layouts that an engine takes, formats that the card computes in."""

from collections.abc import Iterator

from tonnage_core.errors import BadInputError
from tonnage_core.models import ModelShape
from tonnage_core.models.layers import Experts, LatentAttention
from tonnage_core.parallelism import Layout
from tonnage_core.planning.candidate import Config, Refused, Sized, size
from tonnage_core.planning.spec import Draft, Offer, PlanSpec
from tonnage_core.speculative import Drafter, draft_model, eagle, medusa, ngram

NODE = 8
"""GPUs of one node: tensor parallelism stays inside."""
STAGES = (2, 4)
"""Pipeline stages to try where one node does not hold the model."""
DRAFT_LENGTHS = (2, 3, 5)


def configurations(spec: PlanSpec, offer: Offer) -> Iterator[Sized | Refused]:
    """Everything on one GPU; more pipeline stages only where no layout without them fits."""
    fitted = False
    for stages in (1, *STAGES):
        if spec.space.pp is not None and stages not in spec.space.pp:
            continue
        for found in _sized(spec, offer, stages):
            fitted = fitted or isinstance(found, Sized)
            yield found
        if fitted and spec.space.pp is None:
            return


def _sized(spec: PlanSpec, offer: Offer, stages: int) -> Iterator[Sized | Refused]:
    for layout in layouts(spec, offer, stages):
        for precision in precisions(spec, offer):
            for kv_dtype in cache_types(spec, offer):
                for budget in spec.space.max_num_batched_tokens or (None,):
                    plain = Config(offer, layout, precision, kv_dtype, budget)
                    yield size(spec, plain)
                    for draft in spec.space.speculation:
                        for drafted in DRAFT_LENGTHS:
                            yield size(spec, Config(offer, layout, precision, kv_dtype, budget, None, draft, drafted))


def layouts(spec: PlanSpec, offer: Offer, stages: int) -> Iterator[Layout]:
    """Tensor-parallel sizes inside a node; with experts also expert-parallel and attention-parallel ones."""
    experts, latent = has_experts(spec.shape), _is_latent(spec.shape)
    for tp in spec.space.tp or (1, 2, 4, 8):
        for dp in spec.space.dp or ((1, NODE) if latent and tp == 1 else (1,)):
            for ep in spec.space.ep or ((tp * dp,) if dp > 1 else (1, tp) if experts and tp > 1 else (1,)):
                try:
                    layout = Layout(tp, stages, ep, dp)
                except BadInputError:
                    continue
                if layout.gpus <= offer.most:
                    yield layout


def precisions(spec: PlanSpec, offer: Offer) -> tuple[str, ...]:
    """The checkpoint's own format, and FP8 for a plain one where the card computes in it."""
    if spec.space.precision is not None:
        return spec.space.precision
    plain = not spec.shape.quantization.rules
    return ("auto", "fp8") if plain and offer.gpu.fp8_tflops else ("auto",)


def cache_types(spec: PlanSpec, offer: Offer) -> tuple[str, ...]:
    """The model's own cache type, and FP8 where the card computes in it."""
    if spec.space.kv_dtype is not None:
        return spec.space.kv_dtype
    return ("auto", "fp8") if offer.gpu.fp8_tflops else ("auto",)


def has_experts(shape: ModelShape) -> bool:
    """Whether there are experts to spread."""
    return any(isinstance(layer.network, Experts) for layer in shape.distinct_layers)


def _is_latent(shape: ModelShape) -> bool:
    return any(isinstance(layer.mixer, LatentAttention) for layer in shape.distinct_layers)


def drafter_of(shape: ModelShape, draft: Draft) -> Drafter:
    """What drafts for this model: an EAGLE head is one decoder layer of it."""
    if draft.method == "ngram":
        return ngram(draft.acceptance)
    if draft.shape is not None:
        return draft_model(draft.shape.active_parameters, draft.acceptance)
    if draft.method == "medusa":
        return medusa(shape.hidden, shape.vocab, draft.acceptance)
    ends = 2 * shape.vocab * shape.hidden
    layer = max(shape.active_parameters - ends, shape.hidden**2) / max(1, shape.layers)
    return eagle(layer, shape.hidden, draft.acceptance)
