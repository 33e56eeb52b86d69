"""The options of `tonnage bench` as a specification: one place where text becomes a load."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from tonnage_core.benchmarking.arrivals import Arrivals
from tonnage_core.benchmarking.lengths import Lengths, parse_lengths, resampled, usage_log
from tonnage_core.benchmarking.workload import Mix, PrefixTree, RequestClass, Sessions
from tonnage_core.errors import BadInputError
from tonnage_core.slo import Slo
from tonnage_core.traces import TraceRequest
from tonnage_loadgen.bench_points import Deployment
from tonnage_loadgen.bench_spec import BenchSpec
from tonnage_loadgen.shard import Endpoint
from tonnage_loadgen.trace_file import read_trace


def spec_of(given: dict[str, Any], model: str) -> BenchSpec:
    """The specification; raises `BadInputError` that names the option."""
    rate, trace, users = given["rate"], given["trace"], given["users"]
    return BenchSpec(
        endpoint=_endpoint(given, model),
        mix=_mix(given),
        arrivals=None if rate is None else Arrivals(given["arrivals"], rate, given["cv"], given["end_rate"]),
        duration_s=given["duration_s"],
        trace=() if trace is None else _trace(trace, given["limit"]),
        rate_scale=given["rate_scale"],
        users=users,
        requests=given["requests"],
        think_s=given["think_s"],
        processes=given["processes"],
        seed=given["seed"],
        warmup_s=given["warmup_s"],
        time_scale=given["time_scale"],
        slo=Slo(given["slo_ttft_ms"], given["slo_tpot_ms"], given["slo_percentile"]),
    )


def settings_document(spec: BenchSpec) -> dict[str, Any]:
    """What was asked, for the record, without secrets."""
    asked = asdict(replace(spec, trace=(), users=spec.users or 1, arrivals=None))
    asked["endpoint"] = {k: v for k, v in asked["endpoint"].items() if k not in ("headers", "tenant_keys")}
    asked["arrivals"] = None if spec.arrivals is None else asdict(spec.arrivals)
    asked["users"], asked["trace"] = spec.users, len(spec.trace) or None
    return asked


def deployment_of(given: dict[str, Any]) -> Deployment:
    """What the bench points say was measured."""
    engine, _, engine_version = given["engine"].partition(":")
    model = given["catalogue_model"] or given["model"] or ""
    return Deployment(
        model=model,
        config=model.replace("/", "--"),
        engine=engine,
        engine_version=engine_version,
        gpu=given["gpu"],
        precision=given["precision"],
        tp=given["tp"],
    )


def headers_of(given: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The bearer token as a header, when there is one."""
    key = given["api_key"]
    if key is not None and not (key.isascii() and key.isprintable()):
        raise BadInputError("--api-key: only printable ASCII can stand in a header")
    return () if key is None else (("authorization", f"Bearer {key}"),)


def numbers(text: str | None, option: str) -> list[float]:
    """A comma-separated list of numbers above 0."""
    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError as error:
        raise BadInputError(f"{option} {text!r}: numbers with commas between are expected, like 1,2,4") from error
    if any(not 0 < number < 1e9 for number in found):
        raise BadInputError(f"{option} {text!r}: each number is above 0")
    return found


def weights(given: Sequence[str], option: str) -> dict[str, float]:
    """NAME=WEIGHT, repeated, as a mapping."""
    found: dict[str, float] = {}
    for text in given:
        name, _, weight = text.partition("=")
        try:
            found[name] = float(weight or 1)
        except ValueError as error:
            raise BadInputError(f"{option} {text!r}: NAME=WEIGHT is expected") from error
        if not (name.isascii() and name.isprintable()) or not 0 < found[name] < 1e9:
            raise BadInputError(f"{option} {text!r}: a printable name and a weight above 0 are expected")
    return found


def _endpoint(given: dict[str, Any], model: str) -> Endpoint:
    return Endpoint(
        url=given["url"],
        model=model,
        api=given["api"],
        prompt_format=given["prompt_format"],
        headers=headers_of(given),
        tenant_keys=_keys(given["tenant_keys"]),
        ignore_eos=not given["no_ignore_eos"],
        timeout_s=given["timeout_s"],
    )


def _mix(given: dict[str, Any]) -> Mix:
    tree = None
    if given["prefix_tokens"]:
        tree = PrefixTree(
            given["prefix_tokens"], given["prefix_share"], given["prefix_depth"], given["prefix_branching"]
        )
    return Mix(
        classes=_classes(given),
        prefix=tree,
        sessions=Sessions(given["turns"], given["turn_think_s"]) if given["turns"] > 1 else None,
        tenants=weights(given["tenants"], "--tenant"),
        adapters=weights(given["adapters"], "--adapter"),
        cancel_share=given["cancel_share"],
        cancel_after_s=given["cancel_after_s"],
    )


def _classes(given: dict[str, Any]) -> tuple[RequestClass, ...]:
    if given["lengths_from"] is not None:
        return (RequestClass("all", 1.0, *_logged(given["lengths_from"])),)
    if not given["classes"]:
        return (RequestClass("all", 1.0, parse_lengths(given["input_tokens"]), parse_lengths(given["output_tokens"])),)
    return tuple(_class(text) for text in given["classes"])


def _logged(path: Path) -> tuple[Lengths, Lengths]:
    """Lengths of a log of usage, else of a trace."""
    try:
        found = usage_log(path.read_bytes(), path.name)
    except OSError as error:
        raise BadInputError(f"--lengths-from {path}: cannot be read: {error.strerror}") from error
    if found is not None:
        return found
    traced = _trace(path, None)
    return resampled([each.input_length for each in traced]), resampled([each.output_length for each in traced])


def _class(text: str) -> RequestClass:
    name, _, rest = text.partition("=")
    parts = rest.split("/")
    try:
        share, prompt, output = float(parts[0]), *_two(parts[1:])
    except ValueError as error:
        raise BadInputError(
            f"--class {text!r}: NAME=SHARE/INPUT/OUTPUT is expected, like chat=0.8/constant:500/uniform:50-200"
        ) from error
    return RequestClass(name, share, prompt, output)


def _two(parts: Sequence[str]) -> tuple[Lengths, Lengths]:
    if len(parts) != 2:
        raise ValueError
    return parse_lengths(parts[0]), parse_lengths(parts[1])


def _trace(path: Path, limit: int | None) -> tuple[TraceRequest, ...]:
    return read_trace(path).requests[:limit]


def _keys(path: Path | None) -> tuple[tuple[str, str], ...]:
    if path is None:
        return ()
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInputError(f"--tenant-keys {path}: cannot be read as YAML") from error
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in found.items()):
        raise BadInputError(f"--tenant-keys {path}: a mapping of tenant to key is expected")
    if not all(text.isascii() and text.isprintable() for pair in found.items() for text in pair):
        raise BadInputError(f"--tenant-keys {path}: only printable ASCII can stand in a header")
    return tuple(found.items())
