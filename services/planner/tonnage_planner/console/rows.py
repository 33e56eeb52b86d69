"""One row an endpoint: what the planner scraped of its engine beside what every router says of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from tonnage_core.autoscaling.engine_metrics import Signal
from tonnage_core.autoscaling.observation import Knowledge, Observation
from tonnage_planner.console.reading import flag, mappings, number, text, texts, total, whole
from tonnage_planner.settings import EndpointSettings

RANK = {"unknown": 0, "serving": 1, "draining": 2, "starting": 3, "stale": 4, "stuck": 5, "down": 6}
"""States by how much they ask to be looked at."""


def endpoint_rows(
    seen: Sequence[Observation],
    routers: Sequence[Mapping[str, Any]],
    listed: Mapping[str, EndpointSettings],
    verdicts: Mapping[str, str],
) -> list[dict[str, Any]]:
    """A row for each endpoint that the planner or a router knows; data-parallel ranks of one URL have one each.

    `routers` are their `/admin/endpoints`, `verdicts` statuses by `node/index`. What is unknown is None.
    """
    told: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for document in routers:
        for row in mappings(document.get("endpoints")):
            url, name = text(row.get("url")), text(row.get("id"))
            if url is not None and name is not None:
                told.setdefault((url.rstrip("/"), name), []).append(row)
    by_url = {one.url.rstrip("/"): one for one in seen}
    rows = [_row(name, url, by_url.get(url), said, listed, verdicts) for (url, name), said in told.items()]
    routed = {url for url, _ in told}
    rows += [
        _row(one.url.split("://", 1)[-1], one.url, one, [], listed, verdicts)
        for url, one in by_url.items()
        if url not in routed
    ]
    return rows


def _row(
    name: str,
    url: str,
    seen: Observation | None,
    said: Sequence[Mapping[str, Any]],
    listed: Mapping[str, EndpointSettings],
    verdicts: Mapping[str, str],
) -> dict[str, Any]:
    given = listed.get(url)
    profile = given.gpu_profile if given else None
    state, problem = _state(seen, said)
    return {
        "id": name,
        "url": url,
        "pool": seen.pool if seen else None,
        "state": state,
        "problem": problem,
        "gpu": profile,
        "verdict": verdicts.get(profile) if profile else None,
        **_engine(seen, said),
        **_routed(said),
    }


def _state(seen: Observation | None, said: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """The state, and why where it is not serving. Routers know health and drains, the planner starts and silence."""
    reason = (seen.reason or None) if seen else None
    if seen is not None and seen.knowledge in (Knowledge.PENDING, Knowledge.STUCK):
        return ("starting" if seen.knowledge is Knowledge.PENDING else "stuck"), reason
    healthy = [known for row in said if (known := flag(row.get("healthy"))) is not None]
    if any(row.get("draining") is True for row in said):
        causes = sorted({cause for row in said for cause in texts(row.get("drained_by"))})
        return "draining", f"drained by {', '.join(causes)}" if causes else "draining"
    if healthy and not any(healthy):
        problem = next((found for row in said if (found := text(row.get("problem")))), None)
        return "down", problem or reason or "its router's probes fail"
    if seen is not None and seen.knowledge is Knowledge.STALE:
        return "stale", reason
    if any(healthy) or (seen is not None and seen.knowledge is Knowledge.FRESH):
        return "serving", f"{sum(healthy)} of {len(healthy)} routers reach it" if not all(healthy) else None
    return "unknown", reason


def _engine(seen: Observation | None, said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Its load as its own metrics say it, or as the routers polled it where the planner could not."""
    fresh = seen is not None and seen.knowledge is Knowledge.FRESH
    rates: Mapping[str, float | None] = seen.rates_per_s if seen is not None and fresh else {}
    kv = seen.value(Signal.KV_USAGE) if seen else None
    waiting = seen.value(Signal.WAITING) if seen else None
    queries, hits = rates.get("prefix_queries"), rates.get("prefix_hits")
    return {
        "engine": seen.reading.engine if seen and seen.reading else None,
        "running": seen.value(Signal.RUNNING) if seen else None,
        "waiting": waiting if waiting is not None else _first(said, "waiting"),
        "kv_usage": kv if kv is not None else _first(said, "kv_utilisation"),
        "hit_rate": hits / queries if hits is not None and queries else None,
        "prompt_tok_s": rates.get("prompt_tokens"),
        "output_tok_s": rates.get("generation_tokens"),
        "requests_s": rates.get("finished_requests"),
        "preemptions_s": rates.get("preemptions"),
        "restarts": seen.restarts if seen else None,
        "age_s": seen.age_s if seen else None,
    }


def _first(said: Sequence[Mapping[str, Any]], field: str) -> float | None:
    return next((value for row in said if (value := number(row.get(field))) is not None), None)


def _routed(said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What routers count: their own requests add up, the rest is the first one's word."""
    first: Mapping[str, Any] = said[0] if said else {}
    return {
        "routers": len(said),
        "models": sorted({name for row in said for name in texts(row.get("models"))}),
        "role": text(first.get("role")),
        "breaker": text(first.get("breaker")),
        "in_flight": total([number(row.get("requests")) for row in said]),
        "load_tokens": total([number(row.get("load_tokens")) for row in said]),
        "requests_total": total([number(row.get("requests_total")) for row in said]),
        "failures_total": total([number(row.get("failures_total")) for row in said]),
        "gpu_speed": number(first.get("gpu_speed")),
        "adapters": sorted({name for row in said for name in texts(row.get("adapters"))}),
        "adapter_slots": whole(first.get("adapter_slots")),
        "index_blocks": whole(first.get("index_blocks")),
        "max_model_len": whole(first.get("max_model_len")),
        "exact_prefixes": isinstance(first.get("kv_events"), Mapping) if said else None,
    }
