"""Field types and checks that completions and chat share."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tonnage_sim.errors import ApiError

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_SALT_CHARS = 128
_SALT_FORBIDDEN = frozenset("@/\\\x00")

StopField = str | Annotated[list[str], Field(max_length=4)] | None
TopLogprobs = Annotated[int, BeforeValidator(lambda v: 0 if v is None else v)]


class StreamOptions(BaseModel):
    """What a stream carries besides text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class ResponseFormat(BaseModel):
    """Accepted and checked; the simulator's words follow no schema."""

    type: Literal["text", "json_object", "json_schema"]


class StructuralTagFormat(BaseModel):
    """Accepted and checked; the simulator's words follow no grammar."""

    type: Literal["structural_tag"]
    format: Any


class LegacyStructuralTagFormat(BaseModel):
    """Its older form."""

    type: Literal["structural_tag"]
    structures: list[dict[str, Any]]
    triggers: list[str]


class GenerationFields(BaseModel):
    """Fields of both kinds of request; unknown ones are let pass, as vLLM does."""

    model_config = ConfigDict(extra="allow")
    logprobs_field: ClassVar[str] = "logprobs"
    constraints_field: ClassVar[str | None] = "structured_outputs"
    """The parameter that a refusal of constraints names."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: ResponseFormat | StructuralTagFormat | LegacyStructuralTagFormat | None = None
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: StopField = []
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    bad_words: list[str] = Field(default_factory=list)
    priority: int = Field(default=0, ge=INT64_MIN, le=INT64_MAX)
    request_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    kv_transfer_params: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_salt(cls, data: Any) -> Any:
        if not isinstance(data, dict) or (salt := data.get("cache_salt")) is None:
            return data
        if not isinstance(salt, str) or not salt:
            raise ApiError("Parameter 'cache_salt' must be a non-empty string if provided.", parameter="cache_salt")
        if len(salt) > _SALT_CHARS or _SALT_FORBIDDEN.intersection(salt):
            raise ApiError(
                "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.",
                parameter="cache_salt",
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_response_format(cls, data: Any) -> Any:
        wanted = data.get("response_format") if isinstance(data, dict) else None
        if isinstance(wanted, dict) and wanted.get("type") == "json_schema" and wanted.get("json_schema") is None:
            raise ApiError(
                "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
                parameter="response_format",
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_constraints(cls, data: Any) -> Any:
        wanted = data.get("structured_outputs") if isinstance(data, dict) else None
        if isinstance(wanted, dict) and sum(wanted.get(key) is not None for key in ("json", "regex", "choice")) > 1:
            raise ApiError(
                "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').",
                parameter=cls.constraints_field,
            )
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_stream_options(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("stream_options") and not data.get("stream"):
            raise ApiError("Stream options can only be defined when `stream=True`.", parameter="stream_options")
        return data

    @model_validator(mode="before")
    @classmethod
    def _check_logprobs(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in ("prompt_logprobs", cls.logprobs_field):
            value = data.get(name)
            if value is None:
                continue
            if not isinstance(value, (int, float)):
                raise ApiError(f"`{name}` must be an integer.", parameter=name, value=value)
            if name == "prompt_logprobs" and data.get("stream") and (value > 0 or value == -1):
                raise ApiError("`prompt_logprobs` are not available when `stream=True`.", parameter=name)
            if value < 0 and value != -1:
                raise ApiError(f"`{name}` must be a positive value or -1.", parameter=name, value=value)
        return data

    @property
    def include_usage(self) -> bool:
        """A last chunk with the usage is asked for."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Every chunk carries the usage so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def takes_list_of(value: Any, kind: type) -> bool:
    """`value` is a non-empty list of exactly `kind`s, looked at in C speed."""
    return isinstance(value, list) and len(value) > 0 and set(map(type, value)) == {kind}
