"""A model's tokenizer from its files: text to the engine's own token ids, with what was encoded before kept.

Special tokens split a text before anything else looks at it, so the text between two of them has the same ids wherever
it stands. A conversation's earlier turns are such pieces: a follow-up encodes only what is new. Whether pieces may be
encoded apart is tried out when the files are read; else texts are encoded whole.
"""

import datetime
import json
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import pack
from typing import Any

from tokenizers import Tokenizer

from tonnage_router.adapters.chat_template import ChatTemplate
from tonnage_runtime.errors import SettingsError

PIECE_BYTES = 200
"""Memory of one remembered piece beside its text and ids."""
_PROBES = ("Hello, world!", " leading space", "\nline\n", "trailing ", "x")


class PromptTokenizer:
    """Text to packed little-endian 32-bit ids. Remembers up to `cache_bytes` of pieces. For one thread only, except
    `encode_pieces`, which touches nothing that is remembered."""

    def __init__(self, directory: Path, cache_bytes: int) -> None:
        config = _json(directory / "tokenizer_config.json")
        try:
            self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        except Exception as error:  # the library raises no class of its own
            raise SettingsError(f"{directory}: tokenizer.json cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        source = _template(directory, config)
        self.template = None if source is None else ChatTemplate(source, _special(config), datetime.datetime.now)
        self._prefix, self._suffix = self._added()
        self._split = self._splitter()
        self._cache_bytes = cache_bytes
        self._pieces: OrderedDict[str, bytes] = OrderedDict()
        self.held_bytes = 0
        """Estimated memory of what is remembered."""

    def pieces(self, text: str) -> list[str]:
        """The text in pieces that are encoded apart."""
        return [text] if self._split is None else [piece for piece in self._split.split(text) if piece]

    def known(self, pieces: Sequence[str]) -> dict[str, bytes]:
        """Ids of the pieces that are remembered, packed."""
        held, found = self._pieces, {}
        for piece in pieces:
            packed = held.get(piece)
            if packed is not None:
                held.move_to_end(piece)
                found[piece] = packed
        return found

    def encode_pieces(self, pieces: Sequence[str]) -> list[bytes]:
        """Ids of each piece, packed. Long ones release the interpreter while they are encoded."""
        encoded = self._tokenizer.encode_batch_fast(list(pieces), add_special_tokens=False)
        return [pack(f"<{len(one.ids)}I", *one.ids) for one in encoded]

    def remember(self, pieces: Sequence[str], ids: Sequence[bytes]) -> None:
        """Keep pieces' ids, the least recently used beyond the bound leaving."""
        for piece, packed in zip(pieces, ids, strict=True):
            if piece not in self._pieces:
                self.held_bytes += _size(piece, packed)
            self._pieces[piece] = packed
        while self.held_bytes > self._cache_bytes and len(self._pieces) > 1:
            self.held_bytes -= _size(*self._pieces.popitem(last=False))

    def joined(self, pieces: Sequence[str], ids: Mapping[str, bytes], *, special: bool) -> bytes:
        """Ids of the whole text, from those of its pieces; `special` adds what the tokenizer puts around a text (the
        begin-of-text token)."""
        whole = b"".join([ids[piece] for piece in pieces])
        return self._prefix + whole + self._suffix if special else whole

    def _added(self) -> tuple[bytes, bytes]:
        """Ids that the tokenizer puts before and after every text."""
        plain = self._tokenizer.encode("x", add_special_tokens=False).ids
        whole = self._tokenizer.encode("x", add_special_tokens=True).ids
        for start in range(len(whole) - len(plain) + 1):
            end = start + len(plain)
            if whole[start:end] == plain:
                return pack(f"<{start}I", *whole[:start]), pack(f"<{len(whole) - end}I", *whole[end:])
        return b"", b""

    def _splitter(self) -> "re.Pattern[str] | None":
        added = self._tokenizer.get_added_tokens_decoder().values()
        marks = [token for token in added if not token.normalized]
        if not marks or any(token.lstrip or token.rstrip or token.single_word for token in marks):
            return None
        names = sorted({token.content for token in marks if token.content}, key=len, reverse=True)
        found = re.compile("(" + "|".join(re.escape(name) for name in names) + ")")
        mark = names[0]
        samples = [mark.join(_PROBES), f"{mark}{_PROBES[0]}", f"{_PROBES[1]}{mark}{mark}{_PROBES[2]}"]
        return found if all(self._same_apart(found, sample) for sample in samples) else None

    def _same_apart(self, found: "re.Pattern[str]", text: str) -> bool:
        whole = self._tokenizer.encode(text, add_special_tokens=False).ids
        apart = b"".join(self.encode_pieces([piece for piece in found.split(text) if piece]))
        return pack(f"<{len(whole)}I", *whole) == apart


def _size(piece: str, packed: bytes) -> int:
    return PIECE_BYTES + len(piece) + len(packed)


def _json(path: Path) -> dict[str, Any]:
    """A JSON object of the model's directory; an absent file is an empty one."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"{path}: a JSON object is expected")
    return document


def _template(directory: Path, config: Mapping[str, Any]) -> str | None:
    """The model's template: its own file, else the entry of its configuration (the one named `default` of several)."""
    try:
        return (directory / "chat_template.jinja").read_text()
    except FileNotFoundError:
        pass
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {row.get("name"): row.get("template") for row in found if isinstance(row, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _special(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name, for the template."""
    found = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found
