"""The planner's JSON answers. Unknown numbers are null."""

from importlib import metadata

from pydantic import BaseModel, ConfigDict

from tonnage_core.autoscaling.observation import Observation
from tonnage_core.autoscaling.outlook import Outlook
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.autoscaling.signals import Need, Total
from tonnage_core.autoscaling.state_machine import Reason
from tonnage_core.autoscaling.warm import WarmTable
from tonnage_planner.fleet import Decided

VERSION = metadata.version("tonnage")


class Document(BaseModel):
    """Base of every answer: closed, documented by attribute."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ReasonDocument(Document):
    """One sentence of an explanation."""

    code: str
    """From a fixed set."""
    signal: str | None
    """The signal that moved or blocked the target."""
    text: str
    """In words, with the numbers."""

    @classmethod
    def of(cls, reason: Reason) -> "ReasonDocument":
        """From the decision's reason."""
        return cls(code=reason.code.value, signal=reason.signal.value if reason.signal else None, text=reason.text)


class TargetDocument(Document):
    """A pool's target."""

    schema_: str = "tonnage.target/1"
    """Kind of the document."""
    version: str = VERSION
    """Version of Tonnage."""
    pool: str
    """The pool."""
    desired_replicas: int
    """Replicas it should have."""
    listed_endpoints: int
    """Endpoints there are, starting ones included."""
    known_endpoints: int
    """Endpoints whose load is known now."""
    moved_by: str | None
    """The signal that moved the target at the last decision."""
    asked_by: str | None
    """The signal that asks for the most replicas now."""
    decided_age_s: float
    """Time since the last decision."""
    changed_age_s: float | None
    """Time since the target last changed."""
    reasons: list[ReasonDocument]
    """Why, the settling reason last."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        alias_generator=lambda name: "schema" if name == "schema_" else name,
        populate_by_name=True,
    )


class NeedDocument(Document):
    """What one signal asks for."""

    signal: str
    """waiting, running, kv_usage, demand or slo."""
    replicas: int | None
    """Replicas it asks for; null when unknown or not used."""
    fits: int | None
    """Fewest replicas the load fits on with the scale-down margin."""
    value: float | None
    """The load."""
    target_per_replica: float | None
    """What one replica should carry."""

    @classmethod
    def of(cls, need: Need) -> "NeedDocument":
        """From the decision's need."""
        return cls(
            signal=need.signal.value,
            replicas=need.replicas,
            fits=need.fits,
            value=need.value,
            target_per_replica=need.target,
        )


class LoadDocument(Document):
    """One signal over the pool."""

    known: float | None
    """Sum over the endpoints that sent it; null when none did."""
    known_endpoints: int
    """How many sent it."""
    imputed: float
    """Load taken for endpoints that are long unknown."""
    imputed_endpoints: int
    """How many those are."""
    holding: list[str]
    """Endpoints whose short silence blocks scale-down."""

    @classmethod
    def of(cls, total: Total) -> "LoadDocument":
        """From the decision's total."""
        return cls(
            known=total.known if total.known_endpoints else None,
            known_endpoints=total.known_endpoints,
            imputed=total.imputed,
            imputed_endpoints=total.imputed_endpoints,
            holding=list(total.holding),
        )


class EndpointDocument(Document):
    """One endpoint as seen now."""

    url: str
    """Base URL."""
    pool: str
    """Its pool."""
    state: str
    """fresh, stale, pending, stuck or unknown."""
    reason: str
    """Why it is not fresh."""
    age_s: float | None
    """Since the last good reading."""
    engine: str | None
    """vllm, sglang or trtllm, by its metric names."""
    running: float | None
    """Requests running; null when unknown or stale."""
    waiting: float | None
    """Requests waiting; null when unknown or stale."""
    kv_usage: float | None
    """Share of KV blocks in use; null when unknown or stale."""
    missing: list[str]
    """Signals its engine should send and does not."""
    never_sent: list[str]
    """Signals its engine has no metric for."""
    read_from: dict[str, str]
    """The metric each signal was read from."""
    rates_per_s: dict[str, float | None]
    """Increases of its counters between the last two good readings."""
    restarts: int
    """Times its counters went back."""

    @classmethod
    def of(cls, seen: Observation) -> "EndpointDocument":
        """From an observation; values that are not fresh are null."""
        reading = seen.reading
        fresh = seen.reason == "" and reading is not None
        gauges = {signal.value: seen.value(signal) for signal in reading.gauges} if reading else {}
        return cls(
            url=seen.url,
            pool=seen.pool,
            state=seen.knowledge.value,
            reason=seen.reason,
            age_s=seen.age_s,
            engine=reading.engine if reading else None,
            running=gauges.get("running"),
            waiting=gauges.get("waiting"),
            kv_usage=gauges.get("kv_usage"),
            missing=[signal.value for signal in reading.missing] if reading else [],
            never_sent=[signal.value for signal in reading.never_sent] if reading else [],
            read_from={signal.value: name for signal, name in reading.names.items()} if reading else {},
            rates_per_s=dict(seen.rates_per_s) if fresh else {},
            restarts=seen.restarts,
        )


class ExplainDocument(TargetDocument):
    """A pool's target with everything it was derived from."""

    schema_: str = "tonnage.explain/1"
    """Kind of the document."""
    needs: list[NeedDocument]
    """What each signal asks for."""
    load: dict[str, LoadDocument]
    """The pool's load by signal."""
    router_waiting: float | None
    """Requests that wait in the router; null when unknown or no router is configured."""
    policy: dict[str, float | None]
    """The numbers it is scaled by."""
    outlook: "OutlookDocument | None"
    """The load measured and forecast; null for a pool whose replicas' capacity is not known."""
    warm: "WarmDocument | None"
    """What warm replicas would cost and save; null while no forecast was held against what came."""
    endpoints: list[EndpointDocument]
    """Its endpoints as seen now."""


class WarmChoiceDocument(Document):
    """One size of a warm pool."""

    replicas: int
    """Replicas kept warm."""
    idle_usd_per_hour: float | None
    """What they cost idle; null without `usd_per_replica_hour`."""
    late_requests_per_hour: float
    """Requests that surges beyond the forecast would still make late."""


class WarmDocument(Document):
    """What a warm pool would cost and save, from how far past forecasts fell short."""

    replicas: int | None
    """Replicas that pay; null without a price of a replica and of a late request."""
    idle_usd_per_hour: float | None
    """What those cost idle."""
    saved_misses_per_hour: float | None
    """Requests that they save from being late."""
    hours: float
    """Hours of forecasts it is drawn from."""
    choices: list[WarmChoiceDocument]
    """Each size, up to the first that leaves nothing late."""

    @classmethod
    def of(cls, table: WarmTable) -> "WarmDocument":
        """From the pool's table."""
        advice = table.advice
        rows = [
            WarmChoiceDocument(
                replicas=one.replicas,
                idle_usd_per_hour=one.idle_usd_per_hour,
                late_requests_per_hour=round(one.misses_per_hour, 3),
            )
            for one in table.choices
        ]
        return cls(
            replicas=advice.replicas if advice else None,
            idle_usd_per_hour=advice.idle_usd_per_hour if advice else None,
            saved_misses_per_hour=advice.saved_misses_per_hour if advice else None,
            hours=round(table.hours, 3),
            choices=rows,
        )


class OutlookDocument(Document):
    """What arrives and what is expected, in replicas that it keeps full; null where it is not known."""

    arrivals_per_s: float | None
    """Requests that arrive."""
    load: float | None
    """Replicas kept full by them."""
    forecast: float | None
    """The same at the horizon, without margin."""
    upper: float | None
    """With the margin learned from past forecasts: what is provided for."""
    margin: float | None
    """The margin, as a factor."""
    horizon_s: float
    """How far ahead: the time a start takes."""
    fill: float | None
    """Share of a replica that may be used."""
    late_share: float | None
    """Share of requests past the TTFT limit lately."""

    @classmethod
    def of(cls, outlook: Outlook) -> "OutlookDocument":
        """From the decision's outlook."""
        demand, said = outlook.demand, outlook.forecast
        return cls(
            arrivals_per_s=demand.arrivals_rps if demand else None,
            load=demand.load if demand else None,
            forecast=said.point if said else None,
            upper=said.upper if said else None,
            margin=said.margin if said else None,
            horizon_s=outlook.horizon_s,
            fill=outlook.fill,
            late_share=outlook.late_share,
        )


class TargetsDocument(Document):
    """Every pool's target."""

    targets: list[TargetDocument]
    """By pool."""


class EndpointsDocument(Document):
    """Every endpoint as seen now."""

    endpoints: list[EndpointDocument]
    """In the order listed."""
    list_error: str | None
    """Why the endpoint list could not be read, while the last good one stays in use."""


def target_fields(pool: str, decided: Decided, seen: list[Observation], now_s: float) -> dict[str, object]:
    """The fields of `TargetDocument`."""
    decision = decided.decision
    return {
        "pool": pool,
        "desired_replicas": decision.target,
        "listed_endpoints": len(seen),
        "known_endpoints": decision.load.known_endpoints,
        "moved_by": decision.moved_by.value if decision.moved_by else None,
        "asked_by": decision.asked_by.value if decision.asked_by else None,
        "decided_age_s": now_s - decided.at_s,
        "changed_age_s": None if decided.changed_at_s is None else now_s - decided.changed_at_s,
        "reasons": [ReasonDocument.of(reason) for reason in decision.reasons],
    }


def explain_fields(
    decided: Decided, policy: ScalingPolicy, seen: list[Observation], warm: WarmTable | None
) -> dict[str, object]:
    """The fields `ExplainDocument` adds."""
    decision = decided.decision
    router = decision.load.router
    return {
        "needs": [NeedDocument.of(need) for need in decision.needs],
        "load": {signal.value: LoadDocument.of(total) for signal, total in decision.load.totals.items()},
        "router_waiting": router.waiting if router else None,
        "policy": {name: value for name, value in vars(policy).items() if name != "capacity"},
        "outlook": OutlookDocument.of(decision.outlook) if decision.outlook else None,
        "warm": WarmDocument.of(warm) if warm else None,
        "endpoints": [EndpointDocument.of(one) for one in seen],
    }
