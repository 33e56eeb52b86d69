"""What a query asks for: its metric names, its selectors, and the query without its comparisons and its `unless`."""

import re
from collections.abc import Iterator

VARIABLES = {"$cluster": ".*", "$pool": ".*", "$model": ".*", "$product": ".*", "$__rate_interval": "20s"}
VARIABLES |= {"$__range": "2m"}
NAME = r"(?:tonnage[_:][a-z0-9_:]+|vllm:[a-z0-9_]+|process_[a-z_]+|up\b)"
SELECTOR = re.compile(rf"\b{NAME}(?:\{{[^}}]*\}})?")
COMPARED = re.compile(r"\s*(?:==|!=|>=|<=|>|<)\s*(?:bool\s+)?[0-9.]+(?:\s*\*\s*[0-9.]+)?")
WORDS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
OF_THE_LANGUAGE = {
    *("sum", "max", "min", "avg", "count", "topk", "quantile", "rate", "increase", "histogram_quantile", "time"),
    *("by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "offset", "bool"),
    *("abs", "ln", "present_over_time"),
}


def substituted(query: str) -> str:
    """The query with Grafana's variables filled in."""
    for name in sorted(VARIABLES, key=len, reverse=True):
        query = query.replace(name, VARIABLES[name])
    return query


def selectors(query: str) -> list[str]:
    """Every metric selector of a query, each once, without ranges."""
    return sorted(set(SELECTOR.findall(query)))


def names(query: str) -> set[str]:
    """The metric names of a query."""
    return {selector.split("{")[0] for selector in selectors(query)}


def left_side(query: str) -> str:
    """What an alert compares: without comments, comparisons with numbers, and what `unless` takes away."""
    return COMPARED.sub("", re.sub(r"#[^\n]*", "", query)).split("unless", maxsplit=1)[0].strip()


def unexplained(query: str) -> Iterator[str]:
    """Words that are neither of the language, nor a label, nor a metric of a prefix that this module knows."""
    plain = re.sub(r"#[^\n]*|\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", query)
    plain = re.sub(r"\b(by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)", " ", plain)
    for word in WORDS.findall(SELECTOR.sub(" ", plain)):
        if word not in OF_THE_LANGUAGE and not re.fullmatch(r"e[0-9]+", word):
            yield word
