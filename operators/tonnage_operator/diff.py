"""What is wanted against what is there: the actions that lead from one to the other, children of one owner at a time.

An apply is asked for when the digest of what is wanted is not the one last applied, or when a field of ours has another
value. It is compared only where we say something: what the server or others add is theirs.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tonnage_operator.actions import Action, Apply, Delete, Why
from tonnage_operator.kinds import CHILDREN, DIGEST, SCALERS, inside, meta, name_of, namespace_of, owned_by
from tonnage_runtime.kube import Object, Resource


@dataclass(frozen=True, slots=True)
class Wanted:
    """One child: its resource with the namespace, and its body without digest."""

    resource: Resource
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Actions in order (what must go first), and children that cannot be made: the name is someone else's."""

    actions: tuple[Action, ...]
    taken: tuple[str, ...] = ()


def digest(body: Mapping[str, Any]) -> str:
    """A short digest of a body."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def stamped(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with its digest as annotation."""
    metadata = dict(body.get("metadata") or {})
    metadata["annotations"] = {**(metadata.get("annotations") or {}), DIGEST: digest(body)}
    return {**body, "metadata": metadata}


def difference(wanted: Sequence[Wanted], there: Mapping[tuple[str, str], Object], uid: str) -> Difference:
    """Actions for the owner `uid`. `there` are objects by (plural, name): its children, and any that have their names.

    Deletions come first: of two scaling objects the old one goes before the new one comes.
    """
    names = {(one.resource.plural, one.name) for one in wanted}
    gone = [
        Delete(Why.NOT_WANTED, _resource_of(plural, item), name_of(item), str(meta(item).get("uid") or ""))
        for (plural, name), item in sorted(there.items())
        if (plural, name) not in names and owned_by(item, uid) and not meta(item).get("deletionTimestamp")
    ]
    made, taken = [], []
    for one in wanted:
        found = there.get((one.resource.plural, one.name))
        if found is not None and not owned_by(found, uid):
            taken.append(f"{one.resource.kind} {one.name}")
        elif (why := _why(one, found)) is not None:
            made.append(Apply(why, one.resource, one.name, stamped(one.body)))
    return Difference((*gone, *made), tuple(taken))


def _resource_of(plural: str, item: Object) -> Resource:
    found = next(kind for kind in (*CHILDREN, *SCALERS) if kind.plural == plural)
    return inside(found, namespace_of(item))


def _why(one: Wanted, found: Object | None) -> Why | None:
    if found is None:
        return Why.MISSING
    if (meta(found).get("annotations") or {}).get(DIGEST) != digest(one.body):
        return Why.CHANGED
    return None if holds(found, one.body) else Why.DRIFTED


def holds(found: Any, wanted: Any) -> bool:
    """Whether `found` has everything `wanted` says; lists are compared item by item, and by their length."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(key in found and holds(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        same = isinstance(found, list | tuple) and len(found) == len(wanted)
        return same and all(map(holds, found, wanted))
    return bool(found == wanted)
