"""The GpuProfile resource of one GPU: name, labels, status, and the request for a probe in its annotation."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage_core.gpu_health.profile import SCHEMA

NODE_LABEL = "tonnage.dev/node"
PRODUCT_LABEL = "tonnage.dev/product"
PROBE_ANNOTATION = "tonnage.dev/probe"
SUITES = ("quick", "full")
NAME_MAX, LABEL_MAX, REASON_MAX = 253, 63, 500
KEPT = ("measured_at", "context", "ceilings", "curves")


def dns_safe(text: str, most: int) -> str:
    """`text` as a name that Kubernetes takes: lower-case letters, digits and `-`, at most `most` (>= 16) characters.

    What had to be changed gets a digest of the original at its end, so that two texts do not become one name.
    """
    safe = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if safe == text and 0 < len(text) <= most:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"{safe[: most - 11].strip('-')}-{digest}".lstrip("-")


def profile_name(node: str, index: int) -> str:
    """`<node>-<index>`; dots of a node's name stay, since an object's name may have them."""
    suffix = f"-{index}"
    parts = node.split(".")
    if len(node) + len(suffix) <= NAME_MAX and all(re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", p) for p in parts):
        return node + suffix
    return dns_safe(node, NAME_MAX - len(suffix)) + suffix


def profile_labels(node: str, product: str) -> dict[str, str]:
    """Labels to select profiles by; values that are no label are made one as names are."""
    plain = re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", node) and len(node) <= LABEL_MAX
    return {NODE_LABEL: node if plain else dns_safe(node, LABEL_MAX), PRODUCT_LABEL: dns_safe(product, LABEL_MAX)}


@dataclass(frozen=True, slots=True)
class ProbeHandled:
    """What became of the annotation's value `request`: started, ok, refused, or how the run ended. `at` is RFC 3339."""

    request: str
    outcome: str
    at: str
    reason: str = ""

    def document(self) -> dict[str, str]:
        """The status field `probeHandled`."""
        return {"request": self.request, "outcome": self.outcome, "at": self.at, "reason": self.reason[:REASON_MAX]}


def handled_from(found: Mapping[str, Any] | None) -> ProbeHandled | None:
    """The field of a status; None for none."""
    if not found or not isinstance(found.get("request"), str):
        return None
    return ProbeHandled(found["request"], *(str(found.get(key, "")) for key in ("outcome", "at", "reason")))


def profile_status(
    identity: Mapping[str, Any],
    profile: Mapping[str, Any] | None,
    verdict: Mapping[str, Any],
    handled: ProbeHandled | None,
    version: str,
) -> dict[str, Any]:
    """The GpuProfile document as status, without its points (`probes`): they are long, and curves hold their values.

    `identity` has node, index, uuid, name, product and memory_bytes. What is unknown is absent.
    """
    status = {"schema": SCHEMA, "version": version, **identity, "verdict": verdict}
    status |= {key: profile[key] for key in KEPT if profile is not None and key in profile}
    if handled is not None:
        status["probeHandled"] = handled.document()
    return dict(_known(status))


def _known(value: Any) -> Any:
    """`value` without nulls in mappings: a schema has no place for them, and absent says the same."""
    if isinstance(value, Mapping):
        return {key: _known(item) for key, item in value.items() if item is not None}
    return [_known(item) for item in value] if isinstance(value, list | tuple) else value
