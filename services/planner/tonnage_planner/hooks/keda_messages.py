"""The messages of KEDA's external scaler, declared from its published protocol (kedacore/keda, externalscaler.proto).

Declared here and not generated: seven small messages need no build step, and no generated file that lint cannot read.
"""

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"
_Field = descriptor_pb2.FieldDescriptorProto
_TEXT, _FLAG = _Field.TYPE_STRING, _Field.TYPE_BOOL
_INT, _FLOAT, _MESSAGE = _Field.TYPE_INT64, _Field.TYPE_DOUBLE, _Field.TYPE_MESSAGE
MESSAGES: dict[str, tuple[tuple[str, int, int, str, bool], ...]] = {
    "IsActiveResponse": (("result", 1, _FLAG, "", False),),
    "MetricSpec": (
        ("metricName", 1, _TEXT, "", False),
        ("targetSize", 2, _INT, "", False),
        ("targetSizeFloat", 3, _FLOAT, "", False),
    ),
    "GetMetricSpecResponse": (("metricSpecs", 1, _MESSAGE, "MetricSpec", True),),
    "GetMetricsRequest": (
        ("scaledObjectRef", 1, _MESSAGE, "ScaledObjectRef", False),
        ("metricName", 2, _TEXT, "", False),
    ),
    "MetricValue": (
        ("metricName", 1, _TEXT, "", False),
        ("metricValue", 2, _INT, "", False),
        ("metricValueFloat", 3, _FLOAT, "", False),
    ),
    "GetMetricsResponse": (("metricValues", 1, _MESSAGE, "MetricValue", True),),
}
"""Message -> fields as (name, number, type, message type, repeated); `ScaledObjectRef` has a map and stands below."""


@cache
def message_classes() -> dict[str, Any]:
    """The protocol's message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(name="tonnage/externalscaler.proto", package=PACKAGE, syntax="proto3")
    _add_reference(file)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of, repeated in fields:
            message.field.add(
                name=field,
                number=number,
                label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
                type=kind,
                type_name=f".{PACKAGE}.{of}" if of else None,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("ScaledObjectRef", *MESSAGES)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


def _add_reference(file: Any) -> None:
    """`ScaledObjectRef`: name, namespace and a map of the trigger's metadata, which on the wire is a list of pairs."""
    message = file.message_type.add(name="ScaledObjectRef")
    pair = message.nested_type.add(name="ScalerMetadataEntry")
    pair.options.map_entry = True
    for number, field in enumerate(("key", "value"), start=1):
        pair.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL, type=_TEXT)
    for number, field in enumerate(("name", "namespace"), start=1):
        message.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL, type=_TEXT)
    message.field.add(
        name="scalerMetadata",
        number=3,
        label=_Field.LABEL_REPEATED,
        type=_MESSAGE,
        type_name=f".{PACKAGE}.ScaledObjectRef.ScalerMetadataEntry",
    )
