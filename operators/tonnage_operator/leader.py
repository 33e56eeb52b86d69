"""One operator acts: a Lease that its holder renews, and that another takes when it was not renewed for its time
(Kubernetes, "Leases"). The server decides a race by the object's version."""

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tonnage_operator.kinds import LEASES, MANAGER, inside, meta
from tonnage_runtime.clock import Clock
from tonnage_runtime.kube import KubeClient, KubeConflictError, KubeError, KubeNotFoundError, Object

log = logging.getLogger("tonnage.operator")
SEIZE_TRIES = 10


@dataclass(frozen=True, slots=True)
class LeaseRules:
    """Seconds: the lease lasts, and is renewed. Who could not renew acts no more after `lasts_s` less one renewal."""

    name: str = "tonnage-operator"
    namespace: str = "tonnage"
    identity: str = "operator"
    lasts_s: float = 15.0
    renew_s: float = 4.0


class Leader:
    """Holds the lease, or waits for it. `held` is asked before every action."""

    def __init__(self, client: KubeClient, rules: LeaseRules, clock: Clock) -> None:
        self._client, self._rules, self._clock = client, rules, clock
        self._renewed_at: float | None = None
        self._seen: tuple[str, float] | None = None
        """The lease's version as last seen, and when it was seen to change: the holder's clock may be wrong."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to ask for it, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and give the lease back."""
        self._stop.set()
        self._thread.join(10.0)
        if self.held():
            self._renewed_at = None
            try:
                self._write(self._client.get(self._resource, self._rules.name), holder="")
            except KubeError as error:
                log.info("lease not given back", extra={"reason": str(error)})

    def seize(self) -> bool:
        """Take the lease from whoever holds it, for good: who held it stops at its next renewal, and nobody else acts
        before this one's time is over. False when there is none; raises `KubeError`."""
        for _ in range(SEIZE_TRIES):
            try:
                self._write(self._client.get(self._resource, self._rules.name), self._rules.identity)
            except KubeNotFoundError:
                return False
            except KubeConflictError:
                # It was renewed in between.
                continue
            return True
        raise KubeConflictError(f"lease {self._rules.name} changes faster than it can be taken")

    def held(self) -> bool:
        """Whether this process may act now."""
        at = self._renewed_at
        return at is not None and self._clock.monotonic() - at < self._rules.lasts_s - self._rules.renew_s

    @property
    def _resource(self) -> Any:
        return inside(LEASES, self._rules.namespace)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.step()
            self._stop.wait(self._rules.renew_s)

    def step(self) -> None:
        """Renew, take or wait; a failure is logged and costs this step alone."""
        asked = self._clock.monotonic()
        try:
            mine = self._ask()
        except KubeConflictError:
            mine = False
        except KubeError as error:
            log.warning("lease not renewed", extra={"reason": str(error)})
            return
        if mine and self._renewed_at is None:
            log.info("leading", extra={"identity": self._rules.identity})
        self._renewed_at = asked if mine else None

    def _ask(self) -> bool:
        try:
            lease = self._client.get(self._resource, self._rules.name)
        except KubeNotFoundError:
            body = {"metadata": {"name": self._rules.name}, "spec": self._spec({}, self._rules.identity)}
            self._client.create(self._resource, body, manager=MANAGER)
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._rules.identity) and not self._expired(lease, spec):
            return False
        self._write(lease, self._rules.identity)
        return True

    def _expired(self, lease: Object, spec: Object) -> bool:
        """Whether it has not changed for its time, by this process's own clock."""
        version, now = str(meta(lease).get("resourceVersion")) + str(spec.get("renewTime")), self._clock.monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
            return False
        lasts = spec.get("leaseDurationSeconds")
        return now - self._seen[1] > (lasts if isinstance(lasts, int) else self._rules.lasts_s)

    def _write(self, lease: Object, holder: str) -> None:
        body = {"metadata": dict(meta(lease)), "spec": self._spec(lease.get("spec") or {}, holder)}
        self._client.replace(self._resource, self._rules.name, body, manager=MANAGER)

    def _spec(self, before: Object, holder: str) -> dict[str, Any]:
        now = datetime.fromtimestamp(self._clock.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changed = before.get("holderIdentity") != holder
        turns = before.get("leaseTransitions")
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, int(self._rules.lasts_s)),
            "renewTime": now,
            "acquireTime": now if changed else before.get("acquireTime", now),
            "leaseTransitions": (turns if isinstance(turns, int) else 0) + int(changed),
        }
