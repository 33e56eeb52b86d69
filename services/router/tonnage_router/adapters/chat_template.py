"""Chat templates rendered as vLLM renders them, for the requests whose rendering is known to be the same.

A template is the model publisher's code: it runs in Jinja's immutable sandbox. What the engine may render differently
(media, tools, documents, a template in the request) is refused with None: the caller then does without token ids.
"""

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tonnage_runtime.errors import SettingsError

NOT_RENDERED = ("tools", "documents", "chat_template", "continue_final_message", "mm_processor_kwargs", "functions")
"""Fields that change the prompt in ways that are the engine's own."""
NOT_KWARGS = frozenset({"chat_template", "tokenize"})
PLAIN_MESSAGE = frozenset({"role", "content", "name", "refusal"})
TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
BILLING_HEADER = "x-anthropic-billing-header"
"""A line that the engine takes out of system messages."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 reads a class attribute)

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class ChatTemplate:
    """One model's template. `now` gives the date that some templates print."""

    def __init__(self, source: str, special: Mapping[str, str], now: Callable[[], datetime.datetime]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise SettingsError(f"the chat template cannot be compiled: {error}") from error
        self._special = dict(special)
        self._variables = jinja2.meta.find_undeclared_variables(tree)
        self._as_parts = _iterates_content(tree)
        self._knows_developer = "'developer'" in source or '"developer"' in source

    def render(self, document: Mapping[str, Any]) -> str | None:
        """The prompt of a chat request's body, or None where the engine's may differ."""
        if any(document.get(name) for name in NOT_RENDERED):
            return None
        messages = self._messages(document.get("messages"))
        if messages is None:
            return None
        try:
            return self._template.render(messages=messages, tools=None, documents=None, **self._variables_of(document))
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError):
            return None  # the engine will say what is wrong with the request

    def _variables_of(self, document: Mapping[str, Any]) -> dict[str, Any]:
        given = document.get("chat_template_kwargs")
        kwargs: dict[str, Any] = dict(given) if type(given) is dict else {}
        effort = document.get("reasoning_effort")
        if effort is not None:
            kwargs.setdefault("enable_thinking", effort != "none")
            kwargs["reasoning_effort"] = effort
        kept = {name: value for name, value in kwargs.items() if name in self._variables and name not in NOT_KWARGS}
        kept.pop("messages", None)
        kept.pop("tools", None)
        kept.pop("documents", None)
        prompt = document.get("add_generation_prompt")
        return {**self._special, **kept, "add_generation_prompt": True if prompt is None else prompt}

    def _messages(self, given: object) -> list[dict[str, Any]] | None:
        if type(given) is not list or not given:
            return None
        messages = []
        for item in given:
            message = self._message(item)
            if message is None:
                return None
            messages.append(message)
        return messages

    def _message(self, item: object) -> dict[str, Any] | None:
        if type(item) is not dict or type(role := item.get("role")) is not str:
            return None
        if any(item[name] is not None and name not in PLAIN_MESSAGE for name in item) or item.get("refusal"):
            return None  # tool calls, reasoning, audio
        if role in ("tool", "function") or (role == "developer" and not self._knows_developer):
            return None
        texts = _texts(item.get("content"))
        if texts is None or (role == "system" and any(BILLING_HEADER in text for text in texts)):
            return None
        content: object = [{"type": "text", "text": text} for text in texts] if self._as_parts else "\n".join(texts)
        message = {"role": role, "content": content}
        if type(name := item.get("name")) is str:
            message["name"] = name
        return message


def _texts(content: object) -> list[str] | None:
    """The text parts of a message's content; None when there is anything else in it."""
    if type(content) is str:
        return [content]
    if type(content) is not list:
        return None if content is not None else []
    texts = []
    for part in content:
        if type(part) is str:
            texts.append(part)
        elif type(part) is dict and part.get("type") in TEXT_PARTS and type(part.get("text")) is str and len(part) == 2:
            texts.append(part["text"])
        else:
            return None
    return texts


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _iterates_content(tree: nodes.Template) -> bool:
    """The template loops over a message's content, so it is given parts, even for plain text."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None) -> bool:
    if isinstance(node, nodes.Filter | nodes.Test):
        return _is_content(node.node)
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Slice):
            return _is_content(node.node)
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name == "content"
