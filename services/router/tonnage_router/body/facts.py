"""What routing knows of one request body."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False, init=False)
class BodyFacts:
    """Read once from the parsed body; the bytes themselves go upstream."""

    model: str | None
    stream: bool
    prompt: bytes
    """The prompt's bytes in the order the engine reads them, or packed token ids."""
    tokens: int | None
    """Prompt tokens when the body gives ids, else None."""
    max_tokens: int | None
    samples: int
    """Answers that will be generated, over all prompts of a batch; 0 on paths that generate none."""
    salt: str | None
    session: str | None
    include_usage: bool
    """The client itself asks for the usage event of a stream."""
    pool: str
    """Whose endpoints may take it: the base model's of an adapter that is loaded on demand, else the model's own."""
    base: str
    """The base model, by which metrics and objectives go. Both are set once `model` is."""
    document: Mapping[str, Any] | None
    """The whole parsed body, until the prompt is measured."""

    def __init__(
        self,
        model: str | None,
        stream: bool,
        prompt: bytes,
        tokens: int | None,
        max_tokens: int | None,
        samples: int,
        salt: str | None,
        session: str | None,
        include_usage: bool,
        document: Mapping[str, Any],
    ) -> None:
        self.model = model
        self.stream = stream
        self.prompt = prompt
        self.tokens = tokens
        self.max_tokens = max_tokens
        self.samples = samples
        self.salt = salt
        self.session = session
        self.include_usage = include_usage
        self.pool = self.base = ""
        self.document = document
