"""Which pod has which GPU: the kubelet's pod-resources API (v1) over its unix socket.

The messages are declared here from the published protocol (k8s.io/kubelet, pkg/apis/podresources/v1, api.proto): only
the fields that say who has which device.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tonnage_gpu_agent.errors import AgentError
from tonnage_gpu_agent.metrics import PodUse

log = logging.getLogger(__name__)
PACKAGE = "v1"
METHOD = "/v1.PodResourcesLister/List"
RESOURCE_PREFIXES = ("nvidia.com/gpu", "nvidia.com/mig-")
TIMEOUT_S = 5.0
_Field = descriptor_pb2.FieldDescriptorProto
MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": (("pod_resources", 1, "PodResources", True),),
    "PodResources": (
        ("name", 1, "", False),
        ("namespace", 2, "", False),
        ("containers", 3, "ContainerResources", True),
    ),
    "ContainerResources": (("name", 1, "", False), ("devices", 2, "ContainerDevices", True)),
    "ContainerDevices": (("resource_name", 1, "", False), ("device_ids", 2, "", True)),
}
"""Message -> fields as (name, number, message type or empty for a string, repeated)."""


class AttributionError(AgentError):
    """The kubelet did not say who has which GPU."""


def message_classes() -> dict[str, Any]:
    """The protocol's message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name="tonnage/podresources.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            message.field.add(
                name=field,
                number=number,
                label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
                type=_Field.TYPE_MESSAGE if kind else _Field.TYPE_STRING,
                type_name=f".{PACKAGE}.{kind}" if kind else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


class PodResources:
    """Asks the kubelet. A failed look raises `AttributionError`; the caller counts it and keeps its samples."""

    def __init__(self, socket: str) -> None:
        classes = message_classes()
        self._request = classes["ListPodResourcesRequest"]
        self._channel = grpc.insecure_channel(f"unix://{socket}")
        self._list = self._channel.unary_unary(
            METHOD,
            request_serializer=self._request.SerializeToString,
            response_deserializer=classes["ListPodResourcesResponse"].FromString,
        )

    def __call__(self) -> list[PodUse]:
        """Every GPU that the kubelet gave to a container; MIG devices and replicas by their own id."""
        try:
            response = self._list(self._request(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise AttributionError(f"the kubelet's pod resources: {error.code().name}") from error
        found = []
        for pod in response.pod_resources:
            for container in pod.containers:
                for devices in container.devices:
                    if devices.resource_name.startswith(RESOURCE_PREFIXES):
                        uuids = (device_uuid(device) for device in devices.device_ids)
                        found += [PodUse(uuid, pod.namespace, pod.name, container.name) for uuid in uuids]
        return found

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def device_uuid(device: str) -> str:
    """The GPU's or MIG device's uuid of a device id; time-sliced replicas are `<uuid>::<n>`."""
    return device.split("::", 1)[0]


class Attribution:
    """The last known answer. Where the socket is absent GPUs are not attributed, and that is no error."""

    def __init__(self, look: Callable[[], Sequence[PodUse]] | None, on_error: Callable[[], None]) -> None:
        self._look, self._on_error = look, on_error
        self.uses: tuple[PodUse, ...] = ()

    def refresh(self) -> None:
        """One look; a failed one is counted and leaves nothing attributed, since a stale answer would be wrong."""
        if self._look is None:
            return
        try:
            self.uses = tuple(self._look())
        except AttributionError as error:
            self._on_error()
            self.uses = ()
            log.warning("gpus are not attributed to pods", extra={"reason": str(error)})
