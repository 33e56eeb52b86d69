"""A ModelServer's specification. Older stored objects lack fields: each has a default here and in the definition."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage_operator.reading import Reader, SpecError
from tonnage_runtime.kube import Object

MODES = ("keda", "hpa", "direct", "manual")
WARM_KINDS = ("unrouted", "sleeping", "placeholder")
STAGED = ("s3://", "http://", "https://")
"""Sources that the cold-start service stages; `hf://` is left to the engine."""
OWN_FLAGS = frozenset(
    {
        "model",
        "host",
        "port",
        "served-model-name",
        "revision",
        "shutdown-timeout",
        "enable-sleep-mode",
        "enable-lora",
        "max-loras",
        "api-key",
        "tensor-parallel-size",
    }
)
"""Flags that other fields of the specification say; `tensor-parallel-size`, `enable-lora` and `max-loras` are taken
from the arguments too when they agree, since a plan writes them."""
LAYOUT = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
NAME_MOST = 45
START_MOST_S = 7 * 86_400


@dataclass(frozen=True, slots=True)
class Drain:
    """Times of a pod's end, in seconds."""

    timeout_s: int = 300
    """Running requests get this long."""
    unroute_s: int = 15
    """Until every router has seen that the pod is going."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Bounds and way of scaling."""

    least: int = 1
    most: int = 1
    mode: str = "manual"
    to_zero: bool = False
    warm: int = 0
    warm_kind: str = "unrouted"
    warm_auto: bool = False
    """Take the planner's advice for the number, `warm` at least."""


@dataclass(frozen=True, slots=True)
class ModelServerSpec:
    """What is asked for."""

    name: str
    namespace: str
    model: str
    uri: str
    revision: str
    version: str
    image: str
    args: Mapping[str, Any]
    env: tuple[Mapping[str, Any], ...]
    lora_slots: int
    start_s: int
    gpu_class: str
    gpus: int
    gpu_resource: str
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    runtime_class: str
    resources: Mapping[str, Any]
    scaling: Scaling
    drain: Drain
    surge: int
    isolated: bool
    """Only Tonnage's own pods, and `network_peers`, reach the engines."""
    network_peers: tuple[Mapping[str, Any], ...]
    replicas: int | None
    """What was written through the scale subresource; None: nothing yet."""

    @property
    def staged(self) -> bool:
        """Whether the files come through the node's cache."""
        return self.uri.startswith(STAGED)

    @property
    def sleeps(self) -> bool:
        """Whether engines may be put to sleep."""
        return self.scaling.warm_kind == "sleeping" and (self.scaling.warm > 0 or self.scaling.warm_auto)


def read(item: Object) -> ModelServerSpec:
    """The specification; raises `SpecError` naming the first field that cannot be followed."""
    spec = Reader(item.get("spec"))
    model, engine, gpu = spec.part("model"), spec.part("engine"), spec.part("gpu")
    metadata = item.get("metadata") or {}
    engine.choice("kind", "vllm", ("vllm",))
    version = engine.text("version", "")
    if not version and not engine.has("image"):
        raise SpecError("spec.engine: version or image is needed")
    found = ModelServerSpec(
        name=_named(str(metadata.get("name", ""))),
        namespace=str(metadata.get("namespace", "")),
        model=model.word("name"),
        uri=model.word("uri"),
        revision=model.word("revision", ""),
        version=version,
        image=engine.text("image", "") or f"vllm/vllm-openai:v{version}",
        args=engine.mapping("args"),
        env=_environment(engine),
        lora_slots=engine.whole("loraSlots", 0, 0, 4096),
        start_s=engine.whole("startTimeoutSeconds", 1800, 10, START_MOST_S),
        gpu_class=gpu.text("class", ""),
        gpus=gpu.whole("count", 1, 1, 64),
        gpu_resource=gpu.text("resource", "nvidia.com/gpu"),
        node_selector=gpu.labels("nodeSelector"),
        tolerations=tuple(gpu.mappings("tolerations")),
        runtime_class=gpu.text("runtimeClassName", ""),
        resources=_resources(engine),
        scaling=_scaling(spec.part("scaling")),
        drain=_drain(spec.part("drain")),
        surge=spec.part("update").whole("maxSurge", 1, 1),
        isolated=spec.has("networkPolicy"),
        network_peers=tuple(spec.part("networkPolicy").mappings("from")),
        replicas=spec.whole("replicas", 0) if spec.has("replicas") else None,
    )
    _check_flags(found)
    _check_gpus(found)
    return found


def _named(name: str) -> str:
    if len(name) > NAME_MOST:
        raise SpecError(f"metadata.name: at most {NAME_MOST} characters, since names of its parts are built from it")
    if "." in name:
        raise SpecError("metadata.name: no dots, since its Service has the same name")
    return name


def _environment(engine: Reader) -> tuple[Mapping[str, Any], ...]:
    found = engine.mappings("env")
    if not all(isinstance(one.get("name"), str) and one["name"] for one in found):
        raise SpecError("spec.engine.env: each item has a name")
    return tuple(found)


def _resources(engine: Reader) -> dict[str, Any]:
    for part in ("limits", "requests"):
        engine.part("resources").mapping(part)
    return engine.mapping("resources")


def _scaling(found: Reader) -> Scaling:
    made = Scaling(
        least=found.whole("min", 1),
        most=found.whole("max", max(1, found.whole("min", 1)), 1),
        mode=found.choice("mode", "manual", MODES),
        to_zero=found.flag("toZero"),
        warm=found.whole("warm", 0),
        warm_kind=found.choice("warmKind", "unrouted", WARM_KINDS),
        warm_auto=found.flag("warmAuto"),
    )
    if made.least > made.most:
        raise SpecError(f"spec.scaling: min {made.least} is more than max {made.most}")
    if made.to_zero and made.mode == "hpa":
        raise SpecError("spec.scaling: an HPA keeps at least one replica: take mode keda or direct for toZero")
    return made


def _drain(found: Reader) -> Drain:
    return Drain(found.whole("timeoutSeconds", 300, 1, 86_400), found.whole("unrouteSeconds", 15, 1, 600))


def _check_flags(spec: ModelServerSpec) -> None:
    same = {"enable-lora": spec.lora_slots > 0, "max-loras": spec.lora_slots, "tensor-parallel-size": None}
    for flag, value in spec.args.items():
        if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9_]+)*", flag):
            raise SpecError(f"spec.engine.args: {flag!r} is no flag: write it without dashes at the front")
        if not isinstance(value, str | int | float | bool):
            raise SpecError(f"spec.engine.args.{flag}: text, a number, true or false is expected")
        if flag in OWN_FLAGS and (flag not in same or same[flag] not in (None, value)):
            raise SpecError(f"spec.engine.args.{flag}: other fields say this: leave it out, or make them agree")


def _check_gpus(spec: ModelServerSpec) -> None:
    """The GPUs of a pod are those that the engine's layout needs, and are said in one place."""
    given = [flag for flag in LAYOUT if flag in spec.args]
    needed = 1
    for flag in given:
        size = spec.args[flag]
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise SpecError(f"spec.engine.args.{flag}: a whole number of at least 1 is expected, found {size!r}")
        needed *= size
    if given and needed != spec.gpus:
        raise SpecError(f"spec.gpu.count is {spec.gpus}; the engine's arguments need {needed}")
    for part in ("limits", "requests"):
        said = (spec.resources.get(part) or {}).get(spec.gpu_resource)
        if said is not None and str(said) != str(spec.gpus):
            found = f"{spec.gpu_resource} is {said} and spec.gpu.count {spec.gpus}"
            raise SpecError(f"spec.engine.resources.{part}: {found}: leave it out")
