"""A tokenizer's pieces are its own ids of the whole text."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers

from tonnage_router.adapters.tokenizer import PromptTokenizer
from tonnage_runtime.errors import SettingsError

SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["hello world " * 4, "the cache holds blocks of the prefix", "def f(x):\n    return x"] * 3


def write(directory: Path, *, marks: Sequence[AddedToken | str] = SPECIAL, metaspace: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Metaspace(prepend_scheme="first")
        if metaspace
        else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=list(marks), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ messages[0]['content'] }}"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, PromptTokenizer]:
    directory = tmp_path_factory.mktemp("tokenizer")
    return write(directory), PromptTokenizer(directory, 1 << 16)


def encode(tokenizer: PromptTokenizer, text: str, *, special: bool) -> list[int]:
    pieces = tokenizer.pieces(text)
    ids = tokenizer.known(pieces)
    missing = [piece for piece in dict.fromkeys(pieces) if piece not in ids]
    encoded = tokenizer.encode_pieces(missing)
    tokenizer.remember(missing, encoded)
    packed = tokenizer.joined(pieces, ids | dict(zip(missing, encoded, strict=True)), special=special)
    return list(struct.unpack(f"<{len(packed) // 4}I", packed))


PARTS = st.lists(
    st.one_of(st.sampled_from([*SPECIAL, " ", "\n", "hello world", "<|im_"]), st.text(max_size=20)), max_size=12
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PARTS, st.booleans())
def test_pieces_give_the_ids_of_the_whole(
    pair: tuple[Tokenizer, PromptTokenizer], parts: list[str], special: bool
) -> None:
    text = "".join(parts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    whole, apart = pair
    expected = whole.encode(text, add_special_tokens=special).ids
    assert encode(apart, text, special=special) == expected
    assert encode(apart, text, special=special) == expected  # remembered


def test_a_follow_up_encodes_only_what_is_new(pair: tuple[Tokenizer, PromptTokenizer]) -> None:
    _, tokenizer = pair
    first = "<|im_start|>user\nwhat is a block?<|im_end|>\n<|im_start|>assistant\n"
    encode(tokenizer, first, special=False)
    pieces = tokenizer.pieces(first + "sixteen tokens<|im_end|>\n<|im_start|>user\nwhy?<|im_end|>")
    known = tokenizer.known(pieces)
    assert [piece for piece in dict.fromkeys(pieces) if piece not in known] == [
        "assistant\nsixteen tokens",
        "user\nwhy?",
    ]


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    write(tmp_path)
    tokenizer = PromptTokenizer(tmp_path, 20_000)
    for number in range(300):
        encode(tokenizer, f"text number {number}", special=False)
    assert 10_000 < tokenizer.held_bytes <= 20_000
    assert tokenizer.known(["text number 299"]) and not tokenizer.known(["text number 3"])


@pytest.mark.parametrize(
    "marks",
    [[AddedToken("<s>", special=True), AddedToken("<x>", lstrip=True, special=True)], ["<s>"]],
    ids=["a mark that takes the space before it", "no mark but the first token"],
)
def test_a_tokenizer_whose_pieces_depend_on_each_other_encodes_whole_texts(
    tmp_path: Path, marks: list[AddedToken | str]
) -> None:
    whole = write(tmp_path, marks=marks, metaspace=len(marks) == 1)
    tokenizer = PromptTokenizer(tmp_path, 1 << 16)
    text = "hello <x> world<s>and the <s> cache"
    assert tokenizer.pieces(text) == [text]
    assert encode(tokenizer, text, special=True) == whole.encode(text).ids


def test_the_template_is_found_in_its_own_file_first(tmp_path: Path) -> None:
    write(tmp_path)
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    found = PromptTokenizer(tmp_path, 1 << 16).template
    assert found is not None and found.render(chat) == "<s>hi"
    (tmp_path / "chat_template.jinja").write_text("own {{ messages[0].content }}")
    found = PromptTokenizer(tmp_path, 1 << 16).template
    assert found is not None and found.render(chat) == "own hi"


@pytest.mark.parametrize(("name", "content"), [("tokenizer.json", "{}"), ("tokenizer_config.json", "[")])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: str) -> None:
    write(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(SettingsError, match=name):
        PromptTokenizer(tmp_path, 1 << 16)


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tokenizer\.json"):
        PromptTokenizer(tmp_path / "absent", 1 << 16)
