"""What a deinstallation has to undo: finalizers that nobody would take away any more, and marks on nodes.

Objects of ModelServers stay as long as these do: they are owned, and go with them. Run with the operator stopped.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tonnage_operator.actions import Merge, SetStatus
from tonnage_operator.gpu_profile.reconcile import NodeRules, Seen, reconcile
from tonnage_operator.kinds import CUSTOM, MANAGER, NODES, inside, name_of, namespace_of
from tonnage_operator.release import let_go
from tonnage_runtime.kube import KubeClient, KubeConflictError, KubeError, KubeNotFoundError, Object, Resource

log = logging.getLogger("tonnage.operator")
TRIES = 5
Undo = Callable[[KubeClient, Resource, Object], bool]


@dataclass(frozen=True, slots=True)
class Released:
    """How many finalizers and node marks were taken away, and how many could not be."""

    finalizers: int = 0
    nodes: int = 0
    failed: int = 0


def release(client: KubeClient) -> Released:
    """Take every finalizer and mark of ours away. What fails is counted and logged, and keeps nothing else."""
    finalizers = nodes = failed = 0
    for kind in CUSTOM:
        found = _listed(client, kind)
        failed += found is None
        for item in found or ():
            done = _retried(client, inside(kind, namespace_of(item)), item, _unheld)
            finalizers, failed = finalizers + (done == "done"), failed + (done == "failed")
    found = _listed(client, NODES)
    failed += found is None
    for node in found or ():
        done = _retried(client, NODES, node, _unmarked)
        nodes, failed = nodes + (done == "done"), failed + (done == "failed")
    return Released(finalizers, nodes, failed)


def _listed(client: KubeClient, kind: Resource) -> list[Object] | None:
    """None: they could not be listed; the others are released all the same."""
    try:
        return client.list(kind)[0]
    except KubeNotFoundError:
        return []
    except KubeError as error:
        log.warning("not listed", extra={"object": kind.plural, "reason": str(error)})
        return None


def _unheld(client: KubeClient, resource: Resource, item: Object) -> bool:
    actions = let_go(item, resource)
    for action in actions:
        if isinstance(action, Merge):
            client.merge(resource, action.name, action.body, manager=MANAGER)
    return bool(actions)


def _unmarked(client: KubeClient, resource: Resource, item: Object) -> bool:
    """A fleet without profiles has no marks: the same decision that marks takes them back."""
    actions = reconcile(Seen(0.0, NodeRules("cordon"), (), (item,))).actions
    for action in actions:
        if isinstance(action, Merge):
            client.merge(resource, action.name, action.body, manager=MANAGER)
        elif isinstance(action, SetStatus):
            client.apply_status(resource, action.name, action.status, manager=MANAGER)
    return bool(actions)


def _retried(client: KubeClient, resource: Resource, item: Object, undo: Undo) -> str:
    for _ in range(TRIES):
        try:
            return "done" if undo(client, resource, item) else "none"
        except KubeNotFoundError:
            return "none"
        except KubeConflictError:
            try:
                item = client.get(resource, name_of(item))
            except KubeNotFoundError:
                return "none"
            except KubeError:
                break
        except KubeError as error:
            log.warning("not released", extra={"object": resource.path(name_of(item)), "reason": str(error)})
            break
    return "failed"
