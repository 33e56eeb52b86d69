"""What a bench asks, as data: the endpoint, the load's shape, the workload, how runs are judged. One seed, one load."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import TypeVar

from tonnage_core.benchmarking.arrivals import LONGEST_S, Arrivals, expected, scaled, schedule
from tonnage_core.benchmarking.workload import Mix, Planned, as_planned, check_size, plan_requests
from tonnage_core.errors import BadInputError
from tonnage_core.slo import Slo
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.bench_run import Judging
from tonnage_loadgen.shard import Endpoint, Shard, Users

Drawn = TypeVar("Drawn")
FEW = 50.0
"""Expected arrivals below which a load is drawn to see whether it holds any."""


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """A load and its judging.

    Exactly one of `arrivals` (an open loop of `duration_s`), `trace` (its own arrivals, `rate_scale` times as fast) and
    `users` (a closed loop of `requests`, `think_s` apart in the mean, exponential) is given. The turns of a closed
    loop's conversations are as far apart as `mix.sessions` says, where it does.
    """

    endpoint: Endpoint
    mix: Mix
    arrivals: Arrivals | None = None
    duration_s: float = 60.0
    trace: tuple[TraceRequest, ...] = ()
    rate_scale: float = 1.0
    users: int | None = None
    requests: int = 200
    think_s: float = 0.0
    processes: int = 1
    seed: int = 0
    warmup_s: float | None = None
    time_scale: float = 1.0
    slo: Slo = field(default_factory=Slo)

    def __post_init__(self) -> None:
        """Raises `BadInputError` when the load has no shape or several."""
        if sum((self.arrivals is not None, bool(self.trace), self.users is not None)) != 1:
            raise BadInputError("give one load: a rate (open loop), a trace, or users (closed loop)")
        if self.users is not None and (self.users < 1 or self.requests < self.users or self.think_s < 0):
            raise BadInputError(
                "a closed loop needs 1 user or more, as many requests, and a think time of at least 0 s"
            )

    @property
    def least_s(self) -> float:
        """Wall seconds that the load takes at least, as far as the server does not decide."""
        if self.users is not None:
            begun = self._begun()
            return (begun * self.think_s + (self.requests - begun) * self.think_of(1)) / self.users
        turns = self.mix.sessions
        last = 0.0 if turns is None or self.trace else (turns.turns - 1) * turns.open_s
        if self.trace:
            return (self.trace[-1].arrival_s - self.trace[0].arrival_s) / self.rate_scale
        return self.duration_s + last

    def check(self, longest_s: float = LONGEST_S) -> None:
        """Raises `BadInputError` for a load that cannot be: too long, too many requests, none."""
        if self.least_s > longest_s:
            raise BadInputError(
                f"the load takes {self.least_s:.3g} s, and a run lasts at most {longest_s:g} s: "
                "give a shorter duration, a higher rate scale or shorter think times"
            )
        if self.users is not None:
            check_size(self._cut(), self._begun())
        if self.arrivals is not None:
            mean = expected(self.arrivals, self.duration_s)
            check_size(self.mix, mean)
            if mean < FEW:
                self._some(schedule(self.arrivals, self.duration_s, Random(self.seed)))

    def think_of(self, turn: int) -> float:
        """Mean seconds that a user of a closed loop waits before such a turn of a conversation, 0 being its first."""
        between = None if self.mix.sessions is None else self.mix.sessions.think_s
        return self.think_s if between is None or not turn else between

    def judging(self) -> Judging:
        """How its runs are judged."""
        return Judging(self.slo, self.warmup_s, self.time_scale, self.seed)

    def shard(self) -> Shard:
        """The whole load, drawn from the seed. Raises `BadInputError` for one without a request."""
        self.check()
        planned = self._some(self._planned(Random(self.seed)))
        users = None
        if self.users is not None:
            rng = Random(self.seed + 1)
            means = (self.think_of(each.turn) for each in planned)
            think = tuple(rng.expovariate(1 / mean) if mean else 0.0 for mean in means)
            users = Users(self.users, think)
        salted = replace(self.endpoint, request_ids=f"{self.endpoint.request_ids}-{self.seed}")
        return Shard(salted, tuple(planned), users)

    def at_rate(self, rate: float, seed: int) -> "BenchSpec":
        """The same at another rate of its arrivals, drawn anew."""
        if self.arrivals is None or self.arrivals.kind == "ramp":
            raise BadInputError("a sweep needs open-loop arrivals at one rate: poisson, gamma or constant")
        return replace(self, arrivals=replace(self.arrivals, rate=rate), seed=seed)

    @staticmethod
    def _some(drawn: list[Drawn]) -> list[Drawn]:
        if not drawn:
            raise BadInputError("the load holds no request: give a longer duration or a higher rate")
        return drawn

    def _planned(self, rng: Random) -> list[Planned]:
        if self.trace:
            times = scaled([request.arrival_s for request in self.trace], self.rate_scale)
            moved = [replace(request, arrival_s=at) for request, at in zip(self.trace, times, strict=True)]
            return as_planned(moved, self.mix, rng)
        if self.arrivals is not None:
            return plan_requests(self.mix, schedule(self.arrivals, self.duration_s, rng), rng)
        # First turns first, so that the cut leaves every user a conversation.
        drawn = plan_requests(self._cut(), [0.0] * self._begun(), rng)
        drawn = sorted(drawn, key=lambda each: each.turn)[: self.requests]
        return [replace(each, request=replace(each.request, index=n)) for n, each in enumerate(drawn)]

    def _begun(self) -> int:
        """Conversations of a closed loop: one a user at least."""
        turns = 1 if self.mix.sessions is None else self.mix.sessions.turns
        return max(-(-self.requests // turns), min(self.users or 1, self.requests))

    def _cut(self) -> Mix:
        """The mix of a closed loop without turns that nobody comes to."""
        turns = self.mix.sessions
        most = -(-self.requests // self._begun())
        return self.mix if turns is None else replace(self.mix, sessions=replace(turns, turns=min(turns.turns, most)))
