"""Leave-one-model-out: refit every fitted constant without a model, then predict that model's pools."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from tonnage_core.memory.accuracy import Case
from tonnage_core.memory.constants import FITTED, FittedConstants
from tonnage_core.memory.plan import plan_memory
from tonnage_core.memory.truth import request_of
from tonnage_core.models.layers import Experts
from tonnage_core.units import GIB

FIT_RELEASE = "0.19.0"
"""The release whose boots fit the constants."""


def fit_constants(cases: Iterable[Case]) -> FittedConstants:
    """Constants from the boots of `FIT_RELEASE` among the cases; what no boot measures keeps its value."""
    residuals: list[float] = []
    single: list[float] = []
    group: list[float] = []
    graphs: list[tuple[tuple[float, ...], float]] = []
    for case in cases:
        row = case.row
        usable = not row.excluded and row.value is not None and case.shape is not None
        if not usable or row.columns.get("engine_version") != FIT_RELEASE:
            continue
        if row.metric == "activation_peak_gib":
            residuals.append(_fixed_residual(case))
        elif row.metric == "non_torch_gib":
            ranks = row.whole("tp", 1) or 1
            (single if ranks == 1 else group).append((row.value or 0.0) - 0.055 * max(0, ranks - 2))
        elif row.metric == "cuda_graph_gib":
            graphs.append((_graph_features(case), row.value or 0.0))
    base, layer, choice = least_relative_squares(graphs)
    return FittedConstants(
        activation_fixed=median(residuals) if residuals else FITTED.activation_fixed,
        graph_base=base,
        graph_layer=layer,
        graph_choice=choice,
        non_torch=median(single) if single else None,
        non_torch_group=median(group) if group else None,
    )


def _fixed_residual(case: Case) -> float:
    """Bytes that the named tensors leave of a measured peak."""
    assert case.shape is not None
    plan = plan_memory(request_of(case.row, case.shape, case.gpu, use_pool=False))
    named = plan.stages[0].activation - plan.request.constants.activation_fixed
    return (case.row.value or 0.0) * GIB - named


def _graph_features(case: Case) -> tuple[float, ...]:
    assert case.shape is not None
    networks = [layer.network for layer in case.shape.stack]
    return 1.0, float(case.shape.layers), float(sum(one.top_k for one in networks if isinstance(one, Experts)))


def least_relative_squares(points: Sequence[tuple[tuple[float, ...], float]]) -> tuple[float, float, float]:
    """Three coefficients that minimise the squared relative error; the fitted ones where points are too few."""
    if len(points) < 4:
        return FITTED.graph_base, FITTED.graph_layer, FITTED.graph_choice
    rows = [[sum(x[i] * x[j] / y / y for x, y in points) for j in range(3)] for i in range(3)]
    right = [sum(x[i] / y for x, y in points) for i in range(3)]
    for pivot in range(3):
        scale = rows[pivot][pivot]
        if abs(scale) < 1e-12:
            return FITTED.graph_base, FITTED.graph_layer, FITTED.graph_choice
        rows[pivot] = [value / scale for value in rows[pivot]]
        right[pivot] /= scale
        for other in range(3):
            if other != pivot:
                factor = rows[other][pivot]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[pivot], strict=True)]
                right[other] -= factor * right[pivot]
    return right[0], right[1], right[2]


def leave_one_model_out(cases: Sequence[Case], metric: str = "kv_cache_gib") -> list[tuple[str, float]]:
    """(row id, signed error in percent) of a metric, each with constants that never saw the row's model."""
    found = []
    scored = [case for case in cases if case.row.metric == metric and not case.row.excluded and case.shape]
    for model in sorted({case.row.config for case in scored}):
        constants = fit_constants(case for case in cases if case.row.config != model)
        for case in scored:
            if case.row.config == model:
                found.append((case.row.id, _error(case, constants)))
    return found


def _error(case: Case, constants: FittedConstants) -> float:
    assert case.shape is not None and case.row.value is not None
    request = request_of(case.row, case.shape, case.gpu, use_pool=False)
    request = replace(request, constants=_for_release(case, constants))
    pool = plan_memory(request).stages[0].pool or 0.0
    return (pool / GIB - case.row.value) / abs(case.row.value) * 100


def _for_release(case: Case, constants: FittedConstants) -> FittedConstants:
    """Overheads outside torch are per release: only boots of the fitted release take the refitted ones."""
    if case.row.columns.get("engine_version") == FIT_RELEASE:
        return constants
    return replace(constants, non_torch=None, non_torch_group=None)
