"""The chat template: a role token, the text, an end-of-turn token for each message, then the assistant's role token.

An answer's tokens stand in the next turn's prompt exactly as they were generated, its end-of-turn token included, so
that the follow-up finds them in the cache.
"""

from collections.abc import Sequence

from tonnage_core import engine_text
from tonnage_sim.api.chat_messages import Turn

_ROLES = {
    "system": engine_text.SYSTEM,
    "developer": engine_text.SYSTEM,
    "user": engine_text.USER,
    "assistant": engine_text.ASSISTANT,
    "tool": engine_text.TOOL,
    "function": engine_text.TOOL,
}
_NAMES = {
    engine_text.BOS: "<|begin|>",
    engine_text.SYSTEM: "<|system|>",
    engine_text.USER: "<|user|>",
    engine_text.ASSISTANT: "<|assistant|>",
    engine_text.TOOL: "<|tool|>",
    engine_text.END_OF_TURN: "<|end|>",
    engine_text.EOS: "<|eos|>",
}


def render(messages: Sequence[Turn], *, add_generation_prompt: bool, continue_final: bool) -> list[int]:
    """The prompt's token ids. A role without a token of its own is written out after the system's."""
    tokens: list[int] = []
    for message in messages:
        role = _ROLES.get(message.role)
        tokens += (role,) if role is not None else (engine_text.SYSTEM, *engine_text.encode(message.role + "\n"))
        tokens += engine_text.encode(message.text)
        tokens.append(engine_text.END_OF_TURN)
    if continue_final:
        tokens.pop()
    elif add_generation_prompt:
        tokens.append(engine_text.ASSISTANT)
    return tokens


def prompt_text(tokens: Sequence[int]) -> str:
    """The rendered prompt with its special tokens spelled out."""
    parts: list[str] = []
    start = 0
    for index, token in enumerate(tokens):
        if token in engine_text.SPECIAL:
            parts += (engine_text.decode(tokens[start:index]), _NAMES.get(token, ""))
            start = index + 1
    parts.append(engine_text.decode(tokens[start:]))
    return "".join(parts)
