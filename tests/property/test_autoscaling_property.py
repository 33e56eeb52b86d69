"""Any bytes and any load: the reader never crashes, the decision stays within its limits and settles."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tonnage_core.autoscaling.engine_metrics import WANTED, EngineReading, NoEngineMetricsError, Signal, read_engine
from tonnage_core.autoscaling.exposition import UnparsableError, parse
from tonnage_core.autoscaling.forecast import required
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_core.autoscaling.policy import ScalingPolicy
from tonnage_core.autoscaling.state_machine import PoolState, decide

NEAR_MISSES = st.lists(
    st.sampled_from(
        ["vllm:num_requests_running", "sglang:token_usage", "{", "}", 'a="b"', '"', "\\", ",", " ", "\n", "1", "NaN",
         "# TYPE", "-", "e", ".", "\x00", "é", "1700000000000"]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@given(st.one_of(st.text(), st.binary().map(lambda raw: raw.decode("utf-8", "replace")), NEAR_MISSES))
@settings(max_examples=400)
def test_any_text_is_read_or_refused_with_a_typed_error(text: str) -> None:
    try:
        reading = read_engine(parse(text, WANTED))
    except (UnparsableError, NoEngineMetricsError):
        return
    assert all(value is None or value >= 0 for value in reading.gauges.values())


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.floats(allow_nan=False),
        min_size=1,
        max_size=5,
    )
)
def test_agrees_with_the_reference_parser_on_what_the_client_library_writes(series: dict[str, float]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("wanted", "A gauge.", ["name"], registry=registry)
    for name, value in series.items():
        gauge.labels(name).set(value)
    text = generate_latest(registry).decode()
    reference = {s.labels["name"]: s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert {s.label("name"): s.value for s in parse(text, {"wanted"}).samples["wanted"]} == reference


def endpoint(url: str, load: tuple[float, float, float] | None, silent_s: float) -> Observation:
    if load is None:
        return Observation(url, "p", Knowledge.STALE, "timeout", silent_s, silent_s, None)
    gauges: dict[Signal, float | None] = dict(zip(Signal, load, strict=True))
    return Observation(url, "p", Knowledge.FRESH, "", 0.0, 0.0, EngineReading("vllm", gauges, {}, {}, (), ()))


LOADS = st.one_of(
    st.none(),
    st.tuples(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 1)),
)


@given(st.lists(st.tuples(st.lists(LOADS, max_size=6), st.floats(0, 200)), min_size=1, max_size=30))
@settings(deadline=None)
def test_the_target_stays_within_limits_and_only_falls_when_everything_is_known(
    rounds: list[tuple[list[tuple[float, float, float] | None], float]],
) -> None:
    policy = ScalingPolicy(min_replicas=1, max_replicas=6, scale_down_after_s=20, unknown_hold_s=100)
    state, now = PoolState(), 0.0
    for loads, silent_s in rounds:
        now += 10.0
        before = state.target
        seen = [endpoint(str(index), load, silent_s) for index, load in enumerate(loads)]
        state, decision = decide(state, seen, now, policy)
        assert 1 <= decision.target <= 6
        assert decision.reasons
        if before is not None and decision.target < before:
            assert silent_s >= 100 or None not in loads
            assert decision.load.known_endpoints > 0


@given(st.floats(0, 20), st.integers(1, 8))
@settings(deadline=None)
def test_a_constant_load_spread_over_the_replicas_settles(kv_in_all: float, replicas: int) -> None:
    policy = ScalingPolicy(max_replicas=64, scale_down_after_s=5)
    state, targets = PoolState(target=replicas), []
    for now in range(60):
        count = state.target or replicas
        share = min(1.0, kv_in_all / count)
        queue = 0.0 if share < 1 else 10.0
        seen = [endpoint(str(index), (queue, 10.0, share), 0) for index in range(count)]
        state, decision = decide(state, seen, float(now), policy)
        targets.append(decision.target)
    assert len(set(targets[-20:])) == 1
    steps = [b - a for a, b in pairwise(targets) if b != a]
    assert not any(a < 0 < b for a, b in pairwise(steps)), "a scale-down that had to be taken back"


@given(st.lists(st.floats(0, 50), min_size=2, max_size=12), st.floats(0.1, 10))
def test_the_replicas_that_had_to_be_there_keep_the_wait_and_one_in_twenty_fewer_do_not(
    loads: list[float], slack: float
) -> None:
    needed = required([(5.0 * index, load) for index, load in enumerate(loads)], slack)
    assert _wait_s(loads, needed) <= slack * (1 + 1e-9)
    if needed > 1e-6:
        assert _wait_s(loads, needed * 0.95) > slack


def _wait_s(loads: list[float], replicas: float) -> float:
    """The queue's wait after the last of the loads of 5 s each."""
    backlog = 0.0
    for load in loads:
        backlog = max(0.0, backlog + 5.0 * (load - replicas))
    return backlog / replicas if replicas else 0.0
