"""Events of a stream that say again what the last one said, the text of one string apart: most tokens' do."""

from typing import Final

from tonnage_router.wire.headers import EVENT_CHUNK_END

LARGEST_CHUNK: Final = 4096
"""Bytes, framing included; larger ones go through the parser."""
LONGEST_TEXT: Final = 64
COMPACT: Final = b'":"'
SPACED: Final = b'": "'
"""Between a key and its string."""
ENDS: Final = (b'",', b'"}')
CHUNK_LINES: Final = [b""] * LARGEST_CHUNK
"""What a chunk of so many bytes begins with, framing included; empty: none has so many. To write it anew for each token
is seen."""
for _size in range(1, LARGEST_CHUNK - 7):
    CHUNK_LINES[len(b"%x\r\n\r\n" % _size) + _size] = b"%x\r\n" % _size


class RepeatedEvent:
    """What stands before and after that string in the last event that was read. `events` passed unread; `size` is the
    bytes of all chunks passed.

    An event that a reader found to say nothing of usage is followed by others that say nothing of it: the string holds
    no quote, so `"usage"` would have to end where it does, and there no colon follows.
    """

    __slots__ = ("_after", "_before", "events", "size")

    def __init__(self) -> None:
        self._before = b""
        self._after = b""
        self.events = 0
        self.size = 0

    def learn(self, chunk: bytes, at: int) -> None:
        """`chunk` is whole, its payload begins at `at`, and a reader found whole events there and no usage."""
        alone = chunk.startswith(b"data:", at) and chunk.find(b"\n", at) == len(chunk) - len(EVENT_CHUNK_END)
        opening = COMPACT if chunk.find(COMPACT, at) > 0 else SPACED
        start = chunk.rfind(opening, at) + len(opening)
        end = chunk.find(b'"', start)
        if start > at + len(opening) and chunk[end : end + 2] in ENDS and (alone or chunk.count(b"data:", at) == 1):
            self._before, self._after = chunk[at:start], chunk[end:]

    def forget(self) -> None:
        """What comes next is to be read."""
        self._before = b""

    def end(self) -> tuple[int, int]:
        """The answer ended: `events` and `size`, taken."""
        events, size = self.events, self.size
        self._before = b""
        self.events = self.size = 0
        return events, size

    def passes(self, data: bytes) -> bool:
        """Whether `data`, which begins at a chunk's border, is one whole chunk with such an event, so that it need not
        be read."""
        before, after = self._before, self._after
        if not before:
            return False
        at = payload_at(data)
        start, end = at + len(before), len(data) - len(after)
        if not at or not 0 <= end - start <= LONGEST_TEXT or data[at:start] != before or not data.endswith(after):
            return False
        while start < end:  # byte by byte: compiled, a search costs ten times as much
            byte = data[start]
            if byte == 34 or byte < 32:
                return False
            start += 1
        self.events += 1
        self.size += len(data)
        return True


def payload_at(data: bytes) -> int:
    """Where the payload begins if `data`, from a chunk's border on, is one whole chunk and not the last, framed as this
    router frames; else 0."""
    if len(data) >= LARGEST_CHUNK:
        return 0
    line = CHUNK_LINES[len(data)]
    return len(line) if data.startswith(line) and data.endswith(b"\r\n") else 0
