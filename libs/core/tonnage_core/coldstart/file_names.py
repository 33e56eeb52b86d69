"""File names inside a snapshot: relative, POSIX, and unable to leave their directory."""

from tonnage_core.coldstart.errors import UnsafeNameError

MAX_NAME_BYTES = 1024
MAX_PART_BYTES = 200
MAX_DEPTH = 16
MANIFEST_NAME = "tonnage-manifest.json"
INDEX_NAME = "model.safetensors.index.json"


def safe_name(name: str) -> str:
    """`name` unchanged when it is safe below any directory; raises `UnsafeNameError` otherwise.

    Refused: empty, absolute, `.` and `..` parts, backslashes, control characters, over 1024 bytes, 200 bytes a part
    or 16 parts.
    """
    problem = _problem(name)
    if problem is not None:
        raise UnsafeNameError(name, problem)
    return name


def _problem(name: str) -> str | None:
    if not name:
        return "is empty"
    if any(ord(char) < 32 or char in "\\\x7f" or 0xD800 <= ord(char) < 0xE000 for char in name):
        return "holds a backslash, a control character or a lone surrogate"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"is longer than {MAX_NAME_BYTES} bytes"
    if name.startswith("/"):
        return "is absolute"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty, `.` or `..` part"
    if len(parts) > MAX_DEPTH:
        return f"is more than {MAX_DEPTH} levels deep"
    if any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"has a part longer than {MAX_PART_BYTES} bytes"
    return None


def slug(text: str) -> str:
    """A short directory-name form of a model's name: letters, digits, `.`, `_`, `-`; never empty, at most 64."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in text)
    return kept.strip("-.")[:64].rstrip("-.") or "model"
