"""XIDs from two sources, and GPUs attributed to pods: a real pipe, a real gRPC server on a unix socket."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tonnage_gpu_agent.adapters.kernel_log import KernelLog
from tonnage_gpu_agent.adapters.pod_resources import (
    METHOD,
    Attribution,
    AttributionError,
    PodResources,
    device_uuid,
    message_classes,
)
from tonnage_gpu_agent.metrics import PodUse
from tonnage_gpu_agent.xids import XidEvent, XidLog, by_pci

LINE = "NVRM: Xid (PCI:0000:10:00): 79, pid=1234, name=python, GPU has fallen off the bus."


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@pytest.fixture
def seen() -> list[XidEvent]:
    return []


@pytest.fixture
def xids(seen: list[XidEvent]) -> XidLog:
    return XidLog(seen.append)


def test_one_event_told_by_both_sources_counts_once(xids: XidLog, seen: list[XidEvent]) -> None:
    assert xids.add("GPU-0", 79, 100.0, "driver")
    assert not xids.add_kernel_line(LINE, by_pci({"GPU-0": "00000000:10:00.0"}), 101.0)
    assert [event.source for event in seen] == ["driver"]


def test_an_xid_that_only_the_kernel_log_has_is_counted(xids: XidLog, seen: list[XidEvent]) -> None:
    assert xids.add_kernel_line(LINE.replace("79", "62"), by_pci({"GPU-0": "00000000:10:00.0"}), 101.0)
    assert [(event.uuid, event.code) for event in seen] == [("GPU-0", 62)]


def test_two_equal_xids_of_one_source_are_two_events(xids: XidLog) -> None:
    assert xids.add("GPU-0", 31, 100.0, "driver")
    assert xids.add("GPU-0", 31, 100.5, "driver")
    assert xids.since("GPU-0", 0.0) == (31, 31)
    assert xids.since("GPU-0", 100.2) == (31,)
    assert xids.since("GPU-1", 0.0) == ()


def test_the_xid_log_is_bounded(xids: XidLog) -> None:
    for second in range(1000):
        xids.add("GPU-0", 13, float(second), "driver")
    assert len(xids.since("GPU-0", 0.0)) == 256


def test_the_kernel_log_passes_new_records_on(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    lines: list[str] = []
    keep = os.open(path, os.O_RDWR)
    reader = KernelLog(str(path), lines.append)
    assert reader.start()
    os.write(keep, f"4,1234,5678,-;{LINE}\n".encode())
    assert until(lambda: lines == [LINE])
    reader.stop()
    os.close(keep)


def test_an_unreadable_kernel_log_is_no_error(tmp_path: Path) -> None:
    reader = KernelLog(str(tmp_path / "absent"), lambda line: None)
    assert not reader.start()
    reader.stop()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A kubelet that answers with `answer["response"]`, or fails when that is None."""
    classes = message_classes()
    answer: dict[str, Any] = {"response": classes["ListPodResourcesResponse"]()}

    def handle(request: Any, context: grpc.ServicerContext) -> Any:
        if answer["response"] is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")
        return answer["response"]

    method = grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=classes["ListPodResourcesRequest"].FromString,
        response_serializer=classes["ListPodResourcesResponse"].SerializeToString,
    )
    service, name = METHOD.strip("/").split("/")
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: method}),))
    path = str(tmp_path / "kubelet.sock")
    server.add_insecure_port(f"unix://{path}")
    server.start()
    yield path, answer
    server.stop(None).wait()


def give(answer: dict[str, Any], resource: str, *devices: str) -> None:
    pod = answer["response"].pod_resources.add(name="llama-0", namespace="serving")
    pod.containers.add(name="engine").devices.add(resource_name=resource, device_ids=list(devices))


def test_gpus_mig_devices_and_replicas_are_attributed_and_other_devices_are_not(
    kubelet: tuple[str, dict[str, Any]],
) -> None:
    path, answer = kubelet
    give(answer, "nvidia.com/gpu", "GPU-0", "GPU-1::3")
    give(answer, "nvidia.com/mig-1g.10gb", "MIG-7")
    give(answer, "rdma/hca", "mlx5_0")
    pods = PodResources(path)
    expected = [PodUse(uuid, "serving", "llama-0", "engine") for uuid in ("GPU-0", "GPU-1", "MIG-7")]
    assert pods() == expected
    pods.close()


def test_a_failed_look_is_counted_and_drops_no_sample(kubelet: tuple[str, dict[str, Any]]) -> None:
    path, answer = kubelet
    give(answer, "nvidia.com/gpu", "GPU-0")
    errors: list[int] = []
    pods = PodResources(path)
    attribution = Attribution(pods, lambda: errors.append(1))
    attribution.refresh()
    assert [use.uuid for use in attribution.uses] == ["GPU-0"]
    answer["response"] = None
    attribution.refresh()
    assert (attribution.uses, errors) == ((), [1])
    with pytest.raises(AttributionError, match="UNAVAILABLE"):
        pods()
    pods.close()


def test_a_node_without_a_kubelet_attributes_nothing() -> None:
    attribution = Attribution(None, lambda: None)
    attribution.refresh()
    assert attribution.uses == ()


def test_a_time_sliced_replica_is_its_gpu() -> None:
    assert device_uuid("GPU-1::3") == "GPU-1"
