"""The Prometheus text format, read for a few wanted names only.

An engine exposes 400 lines and more, of which the planner needs about ten. A full parser spends 11 ms on such a body;
this one looks at the name first and takes 0.5 ms (benchmarks/planner), so that hundreds of endpoints fit in one loop.

Strict where it matters: a wanted line that is not well formed, or a body whose last line is cut, makes the whole
scrape unparsable. A half-read body would otherwise pass for a small load.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from tonnage_core.errors import TonnageError

_NAME_END = re.compile(r"[{ \t]")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]|\\.)*)"[ \t]*(,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE)
_TIMESTAMP = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_UNESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


class UnparsableError(TonnageError):
    """The body is not the Prometheus text format; `line` counts from 1."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}: the endpoint's /metrics is not Prometheus text")
        self.line = line


@dataclass(frozen=True)
class Sample:
    """One series of one name: its labels and its value as sent (NaN and infinities included)."""

    labels: tuple[tuple[str, str], ...]
    value: float

    def label(self, name: str) -> str | None:
        """The value of a label, or None when the series lacks it."""
        return next((value for key, value in self.labels if key == name), None)


@dataclass
class Exposition:
    """The wanted part of one scrape."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    """Metric name on the wire (counters with `_total`) -> its series."""
    families: set[str] = field(default_factory=set)
    """Every family that has a TYPE line, wanted or not: tells which engine this is."""
    series: int = 0
    """Lines that carry a value, wanted or not."""


def parse(text: str, wanted: Collection[str]) -> Exposition:
    """The samples of `wanted` in `text`; raises `UnparsableError`. Other names are counted, not read."""
    found = Exposition()
    if text and not text.endswith("\n"):
        raise UnparsableError(text.count("\n") + 1, "the last line is cut")
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip(" \t\r")
        if not line:
            continue
        if line[0] == "#":
            _comment(line, found)
            continue
        found.series += 1
        end = _NAME_END.search(line)
        if end is None:
            raise UnparsableError(number, "a name without a value")
        name = line[: end.start()]
        if name in wanted:
            found.samples.setdefault(name, []).append(_sample(line[end.start() :], number))
    return found


def _comment(line: str, found: Exposition) -> None:
    parts = line.split(maxsplit=3)
    if len(parts) >= 3 and parts[1] == "TYPE":
        found.families.add(parts[2])


def _sample(rest: str, number: int) -> Sample:
    labels: tuple[tuple[str, str], ...] = ()
    if rest[0] == "{":
        labels, rest = _labels(rest, number)
    parts = rest.split(" # ", 1)[0].split()
    if not 1 <= len(parts) <= 2 or not _NUMBER.fullmatch(parts[0]):
        raise UnparsableError(number, "a value is expected after the name")
    if len(parts) == 2 and not _TIMESTAMP.fullmatch(parts[1]):
        raise UnparsableError(number, "only a timestamp may follow the value")
    return Sample(labels, float(parts[0]))


def _labels(rest: str, number: int) -> tuple[tuple[tuple[str, str], ...], str]:
    """The labels of `{…}` at the start of `rest`, and what follows the brace."""
    labels: list[tuple[str, str]] = []
    at = 1
    while not rest.startswith("}", at):
        match = _LABEL.match(rest, at)
        if match is None:
            if rest[at:].lstrip(" \t").startswith("}"):
                at = rest.index("}", at)
                break
            raise UnparsableError(number, "labels are not well formed")
        labels.append((match[1], _ESCAPE.sub(_unescape, match[2])))
        at = match.end()
    return tuple(labels), rest[at + 1 :]


def _unescape(match: re.Match[str]) -> str:
    return _UNESCAPED.get(match[1], match[0])
