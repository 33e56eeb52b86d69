"""The planner's memory: a track an endpoint, a state and the last decision a pool."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tonnage_core.autoscaling.observation import Attempt, Knowledge, Observation, Track, advance, observe
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.autoscaling.reported_starts import told
from tonnage_core.autoscaling.signals import RouterQueue
from tonnage_core.autoscaling.state_machine import Decision, PoolState, decide
from tonnage_core.autoscaling.warm import WarmTable, warm_table
from tonnage_planner.capacity import capacity_of
from tonnage_planner.drift import DriftWatch
from tonnage_planner.groups import Groups
from tonnage_planner.settings import EndpointSettings, PlannerSettings
from tonnage_runtime.errors import SettingsError

log = logging.getLogger("tonnage.planner")


@dataclass(frozen=True)
class Decided:
    """A pool's decision and when it was made (monotonic seconds)."""

    decision: Decision
    changed_at_s: float | None
    at_s: float


class Fleet:
    """Holds what was seen; every number it gives comes from the pure decision."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        self.groups = Groups(settings)
        self._tracks: dict[str, Track] = {}
        self._states: dict[str, PoolState] = {}
        self._restored: dict[str, PoolState] = {}
        self._policies: dict[str, ScalingPolicy] = {}
        self._router_known_at_s: float | None = None
        self._router_waiting: Mapping[str, float] = {}
        self._started_at_s: float | None = None
        self.decided: dict[str, Decided] = {}
        self.drift = DriftWatch()
        self.source_error: str | None = None
        """Why the endpoint list could not be read, while the last good one stays in use."""

    def list_endpoints(self, endpoints: Sequence[EndpointSettings], now_s: float) -> None:
        """Follow the list: new endpoints get a track, those that left are forgotten with their last load."""
        first = self._started_at_s is None
        self._started_at_s = now_s if self._started_at_s is None else self._started_at_s
        listed = {endpoint.url: endpoint for endpoint in endpoints}
        self._tracks = {url: self._track(url, one.pool_name, now_s, joined=not first) for url, one in listed.items()}
        pools = {endpoint.pool_name for endpoint in endpoints} | set(self._settings.pools) | set(self.groups.families)
        pools |= set(self.groups.member_of)
        alone = sorted(pools - set(self.groups.member_of))
        self._states = {pool: self._states.get(pool) or self._state_of(pool) for pool in alone}
        self.decided = {pool: decided for pool, decided in self.decided.items() if pool in pools}
        self.drift.keep(sorted(pools))

    def restore(self, states: Mapping[str, PoolState]) -> None:
        """States from before a restart, taken up when their pool is listed."""
        self._restored = dict(states)

    def _state_of(self, pool: str) -> PoolState:
        return self._restored.pop(pool, PoolState())

    @property
    def states(self) -> Mapping[str, PoolState]:
        """What the next decisions remember, by pool."""
        return self._states

    def policy_of(self, pool: str) -> ScalingPolicy:
        """The pool's policy with what its replicas carry; with an unknown model the gauges alone decide (logged)."""
        family = pool if pool in self.groups.families else self.groups.member_of.get(pool)
        if family is not None:
            return self.groups.policy(family)
        if pool not in self._policies:
            try:
                capacity = capacity_of(pool, self._settings.hardware_of(pool))
            except SettingsError as error:
                log.warning("no forecast: what a replica carries is not known", extra={"error": str(error)})
                capacity = None
            self._policies[pool] = replace(self._settings.policy_of(pool), capacity=capacity)
        return self._policies[pool]

    def _track(self, url: str, pool: str, now_s: float, *, joined: bool) -> Track:
        known = self._tracks.get(url)
        return known if known is not None and known.pool == pool else Track(url, pool, listed_at_s=now_s, joined=joined)

    @property
    def listed(self) -> bool:
        """True once an endpoint list was read."""
        return self._started_at_s is not None

    @property
    def urls(self) -> Sequence[str]:
        """The listed endpoints."""
        return tuple(self._tracks)

    @property
    def pools(self) -> Sequence[str]:
        """Pools with an endpoint or a policy of their own."""
        return tuple(self._states)

    @property
    def every_endpoint_tried(self) -> bool:
        """True when each listed endpoint was scraped at least once, well or not."""
        return all(track.last is not None for track in self._tracks.values())

    def record(self, url: str, attempt: Attempt) -> None:
        """One scrape's result; of an endpoint that left the list meanwhile it is dropped."""
        track = self._tracks.get(url)
        if track is not None:
            self._tracks[url] = advance(track, attempt)

    def record_router(self, waiting: Mapping[str, float], now_s: float) -> None:
        """The router's queue by pool; pools it does not name stay unknown."""
        self._router_waiting = waiting
        self._router_known_at_s = now_s

    def record_starts(self, starts: Mapping[str, Mapping[str, float]]) -> None:
        """Starts that others timed, by pool and name; the horizon of the pool's forecast reckons with them."""
        for pool, state in self._states.items():
            if pool in starts:
                self._states[pool] = replace(state, outlook=told(state.outlook, starts[pool]))

    def observations(self, now_s: float, pool: str | None = None) -> list[Observation]:
        """Every endpoint as seen now, of one pool or family, or of all."""
        family = self.groups.families.get(pool or "")
        if family is not None:
            seen = [one for member in family.members for one in self.observations(now_s, member.pool)]
            return family.observations(seen, self._last(family.name))
        return [
            observe(
                track,
                now_s,
                stale_after_s=self._settings.stale_after_s,
                start_grace_s=self._settings.start_grace_s,
            )
            for track in self._tracks.values()
            if pool is None or track.pool == pool
        ]

    def decide(self, now_s: float) -> Mapping[str, Decision]:
        """Decide for every pool; returns the decisions by pool, a family's members included."""
        made: dict[str, Decision] = {}
        for pool, state in self._states.items():
            policy = self.policy_of(pool)
            seen = self.observations(now_s, pool)
            self._states[pool], made[pool] = decide(state, seen, now_s, policy, self._router_queue(pool, now_s))
            self.drift.look(pool, seen, now_s, self._settings.hardware_of(pool))
            family = self.groups.families.get(pool)
            if family is not None:
                all_seen = [one for member in family.members for one in self.observations(now_s, member.pool)]
                made |= family.share(made[pool], all_seen, now_s)
        made |= dict(self.groups.couple(made, self.policy_of))
        for pool, decision in made.items():
            self._decided(pool, decision, now_s)
        return made

    def usd_per_hour(self, pool: str, now_s: float) -> float | None:
        """What the pool's replicas cost, those that start included and those that cannot be placed not; None without
        a price in its policy.
        """
        price = self._settings.hardware_of(pool).usd_per_replica_hour
        if price is None:
            return None
        paid = sum(one.knowledge is not Knowledge.STUCK for one in self.observations(now_s, pool))
        return paid * price

    def _decided(self, pool: str, decision: Decision, now_s: float) -> None:
        state, before = self._states.get(pool), self.decided.get(pool)
        changed_at_s = state.changed_at_s if state is not None else None
        if state is None or decision.target != state.target:
            same = before is not None and before.decision.target == decision.target
            changed_at_s = before.changed_at_s if before is not None and same else now_s
        self.decided[pool] = Decided(decision, changed_at_s, now_s)

    def _last(self, pool: str) -> Decision | None:
        found = self.decided.get(pool)
        return None if found is None else found.decision

    def warm(self, pool: str) -> WarmTable | None:
        """What warm replicas of the pool would cost and save; None while no forecast was held against what came."""
        state, decided = self._states.get(pool), self._last(pool)
        if state is None or decided is None or decided.outlook is None:
            return None
        settings, policy = self._settings.hardware_of(pool), self.policy_of(pool)
        return warm_table(state.outlook.history, decided.outlook, policy, settings.usd_per_late_request)

    def _router_queue(self, pool: str, now_s: float) -> RouterQueue | None:
        if self._settings.router_url is None:
            return None
        known_at = self._router_known_at_s
        if known_at is not None and now_s - known_at <= self._settings.stale_after_s and pool in self._router_waiting:
            return RouterQueue(self._router_waiting[pool])
        since = known_at if known_at is not None else self._started_at_s
        return RouterQueue(None, now_s - (since if since is not None else now_s))
