"""Chat templates render as the engine's do, or not at all."""

import datetime
from typing import Any

import pytest

from tonnage_router.adapters.chat_template import ChatTemplate
from tonnage_runtime.errors import SettingsError

PLAIN = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PARTS = (
    "{% for message in messages %}[{{ message.role }}]{% for part in message['content'] %}{{ part.text | trim }};"
    "{% endfor %}{% endfor %}"
)
NOON = datetime.datetime(2026, 11, 29, 12)


def template(source: str = PLAIN) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>"}, lambda: NOON)


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


USER = {"role": "user", "content": "hi"}


def test_messages_become_the_prompt_with_the_models_special_tokens() -> None:
    system = {"role": "system", "content": "be brief"}
    assert template().render(chat(system, USER)) == "<s><|system|>be brief<|end|><|user|>hi<|end|><|assistant|>"
    assert template().render(chat(USER, add_generation_prompt=False)) == "<s><|user|>hi<|end|>"


def test_text_parts_are_joined_for_templates_of_strings_and_kept_for_templates_of_parts() -> None:
    two = {"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]}
    assert template().render(chat(two)) == "<s><|user|> a \nb<|end|><|assistant|>"
    assert template(PARTS).render(chat(two)) == "[user]a;b;"
    assert template(PARTS).render(chat(USER)) == "[user]hi;"


def test_variables_of_the_request_reach_templates_that_use_them() -> None:
    thinking = template("{% if enable_thinking %}think{% else %}talk{% endif %}{{ tools is none }}")
    assert thinking.render(chat(USER, chat_template_kwargs={"enable_thinking": True})) == "thinkTrue"
    assert thinking.render(chat(USER, reasoning_effort="high")) == "thinkTrue"
    assert thinking.render(chat(USER, reasoning_effort="none")) == "talkTrue"
    assert thinking.render(chat(USER, chat_template_kwargs={"tools": [1], "chat_template": "x"})) == "talkTrue"


def test_dates_json_loop_controls_and_training_marks_work_as_in_transformers() -> None:
    source = (
        "{{ strftime_now('%d %b %Y') }} {{ {'a': '<é>'} | tojson }}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% generation %}g{% endgeneration %}"
    )
    assert template(source).render(chat(USER)) == '29 Nov 2026 {"a": "<é>"}01g'


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"messages": []},
        {"messages": "hi"},
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        chat({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}),
        chat({"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}),
        chat({"role": "assistant", "content": "x", "reasoning": "because"}),
        chat({"role": "tool", "content": "x", "tool_call_id": "1"}),
        chat({"role": "developer", "content": "x"}),
        chat({"role": "system", "content": "x-anthropic-billing-header: 1"}),
        chat(USER, tools=[{"type": "function"}]),
        chat(USER, documents=[{"text": "d"}]),
        chat(USER, chat_template="{{ messages }}"),
        chat(USER, continue_final_message=True),
        chat({"content": "x"}),
        chat(USER, 7),  # type: ignore[arg-type]
    ],
)
def test_what_the_engine_may_render_differently_is_not_rendered(document: dict[str, Any]) -> None:
    assert template().render(document) is None


def test_a_template_that_refuses_or_fails_renders_nothing() -> None:
    assert template("{{ raise_exception('roles must alternate') }}").render(chat(USER)) is None
    assert template("{{ messages[3]['content'] + 1 }}").render(chat(USER)) is None


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    assert template("{{ messages.append(1) }}").render(chat(USER)) is None
    assert template("{{ ''.__class__.__mro__[1].__subclasses__() }}").render(chat(USER)) is None


def test_a_template_that_is_none_is_told_at_the_start() -> None:
    with pytest.raises(SettingsError, match="chat template cannot be compiled"):
        template("{% for %}")
