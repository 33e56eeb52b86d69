"""Checks of sampling parameters, in vLLM's order and words."""

import math
from collections.abc import Iterable

from tonnage_core import engine_text
from tonnage_sim.api.fields import GenerationFields
from tonnage_sim.engine.output import StopRules
from tonnage_sim.errors import ApiError

_MAX_N = 16384
_MAX_LOGPROBS = 20
_GREEDY = 1e-5


def check_sampling(request: GenerationFields, max_tokens: int, logprobs: int | None) -> None:
    """Raise `ApiError` for the first parameter out of range; `max_tokens` is the limit after the context's."""
    _check_n(1 if request.n is None else request.n)
    _check_penalties(request)
    _check_randomness(request)
    _check_lengths(max_tokens, request.min_tokens)
    if "" in request.stop_strings:
        raise ApiError("stop cannot contain an empty string.")
    if "" in request.bad_words:
        raise ApiError(f"bad_words cannot contain an empty string. Got bad_words={request.bad_words}")
    if (request.n or 1) > 1 and request.temperature is not None and request.temperature < _GREEDY:
        raise ApiError(f"n must be 1 when using greedy sampling, got {request.n}.")
    _check_logprobs(logprobs, "logprobs", "sample")
    _check_logprobs(request.prompt_logprobs, "prompt_logprobs", "prompt")
    _check_token_ids(request)


def stop_rules(request: GenerationFields, max_tokens: int) -> StopRules:
    """When the request's samples end."""
    return StopRules(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
        strings=request.stop_strings,
        token_ids=frozenset(request.stop_token_ids or ()),
        include_string=request.include_stop_str_in_output,
    )


def _check_n(n: int) -> None:
    if n < 1:
        raise ApiError(f"n must be at least 1, got {n}.")
    if n > _MAX_N:
        raise ApiError(
            f"n must be at most {_MAX_N}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment "
            "variable."
        )


def _check_penalties(request: GenerationFields) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(request, name)
        if value is not None and not -2.0 <= value <= 2.0:
            raise ApiError(f"{name} must be in [-2, 2], got {value}.")
    repetition = request.repetition_penalty
    if repetition is not None and not math.isfinite(repetition):
        raise ApiError(f"repetition_penalty must be a finite number, got {repetition}.")
    if repetition is not None and repetition <= 0:
        raise ApiError(f"repetition_penalty must be greater than zero, got {repetition}.")


def _check_randomness(request: GenerationFields) -> None:
    heat = request.temperature
    if heat is not None:
        if not math.isfinite(heat):
            raise _out_of_range("temperature", "a finite number", heat)
        if heat < 0:
            raise ApiError(f"temperature must be non-negative, got {heat}.", parameter="temperature", value=heat)
        if heat > 2:
            raise _out_of_range("temperature", "in [0, 2]", heat)
    if request.top_p is not None and not 0 < request.top_p <= 1:
        raise _out_of_range("top_p", "in (0, 1]", request.top_p)
    if request.top_k is not None and request.top_k < -1:
        raise ApiError(f"top_k must be 0 (disable), or at least 1, got {request.top_k}.")
    if request.min_p is not None and not 0 <= request.min_p <= 1:
        raise ApiError(f"min_p must be in [0, 1], got {request.min_p}.")


def _out_of_range(name: str, wanted: str, value: float) -> ApiError:
    return ApiError(f"{name} must be {wanted}, got {value}.", parameter=name, value=value)


def _check_lengths(max_tokens: int, min_tokens: int) -> None:
    if max_tokens < 1:
        raise ApiError(f"max_tokens must be at least 1, got {max_tokens}.", parameter="max_tokens", value=max_tokens)
    if min_tokens < 0:
        raise ApiError(f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if min_tokens > max_tokens:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.")


def _check_logprobs(count: int | None, parameter: str, what: str) -> None:
    if count == -1:
        count = engine_text.TOKENS
    if count is not None and count > _MAX_LOGPROBS:
        raise ApiError(
            f"Requested {what} logprobs of {count}, which is greater than max allowed: {_MAX_LOGPROBS}",
            parameter=parameter,
            value=count,
        )


def _check_token_ids(request: GenerationFields) -> None:
    _check_in_vocabulary(request.stop_token_ids or (), "stop_token_ids")
    allowed = request.allowed_token_ids
    if allowed is not None and not allowed:
        raise ApiError("allowed_token_ids is not None and empty!", parameter="allowed_token_ids", value=allowed)
    if allowed is not None and _outside(allowed):
        raise ApiError(
            "allowed_token_ids contains out-of-vocab token id!", parameter="allowed_token_ids", value=allowed
        )
    bias = list(request.logit_bias or ())
    unreadable = [key for key in bias if not _is_integer(key)]
    if unreadable:
        raise ApiError(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {unreadable}",
            parameter="logit_bias",
            value=unreadable,
        )
    _check_in_vocabulary(map(int, bias), "logit_bias")


def _is_integer(key: str) -> bool:
    try:
        int(key)
    except ValueError:
        return False
    return True


def _check_in_vocabulary(token_ids: Iterable[int], parameter: str) -> None:
    outside = _outside(token_ids)
    if outside:
        raise ApiError(
            f"token_id(s) {outside} in {parameter} contain out-of-vocab token ids. "
            f"Vocabulary size: {engine_text.TOKENS}",
            parameter=parameter,
            value=outside,
        )


def _outside(token_ids: Iterable[int]) -> list[int]:
    return [t for t in token_ids if not 0 <= t < engine_text.TOKENS]
