"""One cold start from the pod, its events, the staging and vLLM's log."""

import contextlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tonnage_core.coldstart.anatomy import document, read_document, start_spans
from tonnage_core.coldstart.engine_log import EngineLog, read_engine_log
from tonnage_core.coldstart.phases import Span
from tonnage_core.coldstart.pod_spans import PodStart, pod_start
from tonnage_core.errors import BadInputError

FIELDS = (
    *("creationTimestamp", "labels", "uid", "conditions", "type", "status", "lastTransitionTime", "state", "running"),
    *("initContainerStatuses", "containerStatuses", "name", "startedAt", "finishedAt", "terminated", "reason"),
    *("firstTimestamp", "eventTime", "involvedObject", "fieldPath", "tonnage.dev/pool"),
)
T = datetime(2026, 11, 30, 1, 0, 0, tzinfo=UTC).timestamp()
LOG = """\
(APIServer pid=7) INFO 11-30 01:02:05 [api_utils.py:286] non-default args: {'model': '/models/m'}
(EngineCore pid=9) INFO 11-30 01:02:20 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: ...
(Worker pid=11) INFO 11-30 01:02:30 [default_loader.py:501] Loading weights took 6.00 seconds
(Worker pid=12) INFO 11-30 01:02:31 [default_loader.py:501] Loading weights took 7.00 seconds
(Worker pid=11) INFO 11-30 01:02:32 [gpu_model_runner.py:5150] Model loading took 14.99 GiB memory and 10.000000 seconds
(Worker pid=11) INFO 11-30 01:02:40 [backends.py:1167] Dynamo bytecode transform time: 5.50 s
(Worker pid=11) INFO 11-30 01:02:52 [monitor.py:20] torch.compile took 17.20 s in total
(Worker pid=11) INFO 11-30 01:03:05 [gpu_model_runner.py:6582] Graph capturing finished in 9 secs, took 0.52 GiB
(EngineCore pid=9) INFO 11-30 01:03:06 [core.py:402] init engine (profile, create kv cache, warmup model) took 33.90 s
(APIServer pid=7) INFO 11-30 01:03:10 [entry.py:140] Starting vLLM server on http://0.0.0.0:8000
"""


def at(minute: int, second: int) -> str:
    return f"2026-11-30T01:{minute:02}:{second:02}Z"


def the_pod(**status: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "name": "m-0",
            "uid": "u",
            "creationTimestamp": at(0, 0),
            "labels": {"tonnage.dev/pool": "chat"},
        },
        "status": {
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(1, 0)},
                {"type": "Ready", "status": "True", "lastTransitionTime": at(3, 12)},
            ],
            "initContainerStatuses": [
                {"name": "stage", "state": {"terminated": {"startedAt": at(1, 40), "finishedAt": at(1, 58)}}}
            ],
            "containerStatuses": [
                {"name": "sidecar", "state": {"running": {"startedAt": at(1, 59)}}},
                {"name": "engine", "state": {"running": {"startedAt": at(2, 0)}}},
            ],
            **status,
        },
    }


def event(reason: str, when: str, field: str = "spec.containers{engine}", uid: str = "u") -> dict[str, Any]:
    return {"reason": reason, "firstTimestamp": when, "involvedObject": {"uid": uid, "fieldPath": field}}


EVENTS = [
    event("Pulled", at(1, 39)),
    event("Pulling", at(1, 2)),
    event("TriggeredScaleUp", at(0, 5), field=""),
    event("Pulling", at(0, 1), uid="another pod's"),
]


def engine_log() -> EngineLog:
    return read_engine_log(LOG.splitlines(), T)


def whole() -> tuple[PodStart, list[Span]]:
    pod = pod_start(the_pod(), EVENTS, container="engine")
    return pod, start_spans(pod, engine_log())


def test_every_phase_of_a_start_is_found_and_every_second_is_in_one() -> None:
    pod, spans = whole()
    found = document(pod.name, pod.pool, spans)
    assert found["phases"] == {"provision": 60, "pull": 37, "fetch": 18, "load": 10, "init": 22 + 40}
    assert found["total_s"] == 192
    assert found["unexplained_s"] == 2 + 1 + 2  # scheduled to pulling, pulled to staging, staged to started
    assert found["unknown"] == []
    assert (found["name"], found["pool"]) == ("m-0", "chat")


def test_the_init_is_told_by_its_parts() -> None:
    _, spans = whole()
    parts = {one.detail: (one.start_s, one.end_s) for one in spans if one.phase == "init" and one.detail}
    assert parts["process"] == (T + 120, T + 142)
    assert parts["compile"] == pytest.approx((T + 154.8, T + 172))
    assert parts["graphs"] == (T + 176, T + 185)
    assert parts["engine"] == pytest.approx((T + 152.1, T + 186))
    assert "dynamo" in parts


def test_of_several_ranks_the_one_that_ends_last_counts() -> None:
    weights = next(one for one in engine_log().spans if one.detail == "weights")
    assert (weights.start_s, weights.end_s) == (T + 144, T + 151)


def test_what_no_source_tells_is_unknown() -> None:
    status = the_pod()["status"] | {"conditions": [], "containerStatuses": []}
    found = document(
        "m-0", "", start_spans(pod_start({"kind": "Pod", "metadata": {"name": "m-0"}, "status": status}), None)
    )
    assert found["phases"] == {"provision": None, "pull": None, "fetch": 18, "load": None, "init": None}
    assert found["unknown"] == ["provision", "pull", "load", "init"]


def test_a_pod_that_is_not_ready_yet_has_no_end() -> None:
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": at(2, 0)}]
    pod = pod_start(the_pod(conditions=conditions), container="engine")
    assert pod.ready_s is None
    assert pod.started_s == T + 120


def test_the_log_alone_tells_load_and_init() -> None:
    spans = start_spans(None, engine_log())
    assert document("log", "", spans)["phases"] | {} == {
        "provision": None, "pull": None, "fetch": None, "load": 10, "init": 17 + 38,
    }  # fmt: skip


def test_a_log_without_the_whole_loads_line_has_it_from_its_parts() -> None:
    lines = [line for line in LOG.splitlines() if "Model loading" not in line]
    load = next(one for one in read_engine_log(lines, T).spans if one.phase == "load" and not one.detail)
    assert (load.start_s, load.end_s) == (T + 144, T + 151)


@pytest.mark.parametrize(("near", "year"), [("2027-01-01T00:00:10+00:00", 2026), ("2026-12-31T12:00:00+00:00", 2026)])
def test_the_year_of_a_stamp_is_the_nearest(near: str, year: int) -> None:
    lines = [
        "INFO 12-31 23:59:58 [x.py:1] Loading weights took 1.00 seconds",
        "INFO 02-29 00:00:00 [x.py:1] no such day",
    ]
    found = read_engine_log(lines, datetime.fromisoformat(near).timestamp())
    assert found.first_s is not None
    assert datetime.fromtimestamp(found.first_s, UTC).year == year


def test_a_log_of_another_zone_is_moved_and_one_of_another_start_is_refused() -> None:
    pod, _ = whole()
    early = LOG.replace(" 01:0", " 00:0").splitlines()
    with pytest.raises(BadInputError, match="--log-offset"):
        start_spans(pod, read_engine_log(early, T))
    moved = read_engine_log(early, T, offset_s=-3600)
    assert document("m", "", start_spans(pod, moved))["phases"]["load"] == 10


def test_a_document_reads_back_and_a_damaged_one_is_refused() -> None:
    pod, spans = whole()
    found = document(pod.name, pod.pool, spans)
    assert read_document(found).total_s == 192
    for damage in (
        {"schema": "x"},
        {"spans": 3},
        {"spans": [{"phase": "boot", "start_s": 1, "end_s": 2}]},
        {"spans": [1]},
    ):
        with pytest.raises(BadInputError):
            read_document(found | damage)


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"kind": "Node", "metadata": {"name": "n"}},
        {"kind": "Pod", "metadata": {"name": "m", "creationTimestamp": "yesterday"}},
        {"kind": "Pod", "metadata": {"name": "m", "creationTimestamp": "2026-11-30T01:00:00"}},
        {"kind": "Pod", "metadata": {"name": "m"}, "status": {"conditions": 5}},
        {"kind": "Pod", "metadata": {"name": "m"}, "status": []},
    ],
)
def test_what_is_no_pod_is_refused_in_one_line(pod: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        pod_start(pod)


def test_a_container_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(BadInputError, match=r"'vllm'.*sidecar, engine"):
        pod_start(the_pod(), container="vllm")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.just(at(1, 0)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(meta=JSON, status=JSON, events=st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), max_size=3))
def test_whatever_stands_in_a_pod_it_is_read_or_refused(meta: Any, status: Any, events: list[dict[str, Any]]) -> None:
    named = {**meta, "name": "m"} if isinstance(meta, dict) else meta
    try:
        pod = pod_start({"kind": "Pod", "metadata": named, "status": status}, events)
        read_document(document(pod.name, pod.pool, start_spans(pod, None)))
    except BadInputError:
        pass


@settings(max_examples=50, deadline=None)
@given(
    lines=st.lists(
        st.text(max_size=40)
        | st.sampled_from(LOG.splitlines())
        | st.from_regex(
            r"INFO \d\d-\d\d \d\d:\d\d:\d\d \[x\] Loading weights took [0-9.]{1,9} seconds", fullmatch=True
        ),
        max_size=12,
    )
)
def test_whatever_stands_in_a_log_it_is_read_or_refused(lines: list[str]) -> None:
    with contextlib.suppress(BadInputError):
        read_document(document("log", "", start_spans(None, read_engine_log(lines, T))))
