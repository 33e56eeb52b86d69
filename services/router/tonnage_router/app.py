"""The admin port: health, readiness, metrics, and why the router does what it does."""

from typing import Any

import orjson
from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry

from tonnage_router.fleet import Endpoint
from tonnage_router.gateway import Gateway
from tonnage_router.worker_channel import WorkerChannel
from tonnage_runtime.http_app import build_base_app

VERSION = "0.1.0"


def build_app(gateway: Gateway, registry: CollectorRegistry, channel: WorkerChannel | None = None) -> FastAPI:
    """The admin application over a running gateway. `channel`: to the router's other workers, where it has any."""
    app = build_base_app(
        "Tonnage router admin", registry, not_ready=gateway.not_ready, access_file=gateway.settings.access_file
    )

    @app.get("/admin/endpoints", tags=["admin"])
    async def endpoints() -> Response:
        """Every endpoint with its health, load and what it is believed to hold."""
        rows = [_endpoint(gateway, endpoint) for endpoint in gateway.fleet]
        found = {"schema": "tonnage.endpoints/1", "version": VERSION, "policy": gateway.profile.name, "endpoints": rows}
        return _json(found)

    @app.post("/admin/endpoints/{endpoint_id}/drain", tags=["admin"], responses={404: {"description": "Unknown"}})
    async def drain(endpoint_id: str, undo: bool = False) -> Response:
        """Send the endpoint no new requests; running ones go on. `undo=true` ends the drain."""
        endpoint = gateway.fleet.by_id.get(endpoint_id)
        if endpoint is None:
            message = f"no endpoint {endpoint_id}; known: {', '.join(gateway.fleet.by_id) or 'none'}"
            return JSONResponse({"error": {"message": message, "type": "not_found_error"}}, status_code=404)
        (gateway.fleet.undrain if undo else gateway.fleet.drain)(endpoint)
        if channel is not None:
            channel.drain(endpoint_id, undo=undo)
        return JSONResponse(_endpoint(gateway, endpoint))

    @app.get("/admin/decisions", tags=["admin"])
    async def decisions(limit: int = Query(default=50, ge=1, le=1000), candidates: bool = True) -> Response:
        """The latest decisions, newest first, with every candidate's scores or, `candidates=false`, without; and the
        latest requests refused for their predicted TTFT, with every endpoint's forecast."""
        newest = list(gateway.decisions)[-limit:][::-1]
        rows = [record.document() if candidates else record.summary() for record in newest]
        refusals = gateway.admission.slo.document()[:limit]
        return _json({"schema": "tonnage.decisions/1", "version": VERSION, "decisions": rows, "refusals": refusals})

    @app.get("/admin/decisions/{number}", tags=["admin"], responses={404: {"description": "Kept no longer"}})
    async def decision(number: int) -> Response:
        """One decision with every candidate's scores and what each adds to the total."""
        kept = gateway.decisions
        place = number - kept[0].number if kept else -1
        if not 0 <= place < len(kept):
            span = f"{kept[0].number} to {kept[-1].number}" if kept else "none"
            message = f"no decision {number} here; kept: {span}"
            return JSONResponse({"error": {"message": message, "type": "not_found_error"}}, status_code=404)
        return _json({"schema": "tonnage.decision/1", "version": VERSION, "decision": kept[place].document()})

    @app.get("/admin/queue", tags=["admin"])
    async def queue() -> dict[str, Any]:
        """Requests waiting for capacity: queued ones, and held ones by pool."""
        rows, held = gateway.admission.document(), gateway.admission.held()
        return {"schema": "tonnage.queue/1", "version": VERSION, "pools": rows, "held": held}

    @app.get("/admin/sharing", tags=["admin"])
    async def sharing() -> dict[str, Any]:
        """What other replicas say; `null` where nothing is shared."""
        found = gateway.sharing.document() if gateway.sharing is not None else None
        return {"schema": "tonnage.sharing/1", "version": VERSION, "sharing": found}

    return app


def _json(document: dict[str, Any]) -> Response:
    """Written at once: this loop also carries requests, and a thousand endpoints are half a megabyte."""
    return Response(orjson.dumps(document), media_type="application/json")


def _endpoint(gateway: Gateway, endpoint: Endpoint) -> dict[str, Any]:
    candidate = endpoint.candidate
    return {
        "id": endpoint.id,
        "url": endpoint.spec.url,
        "models": sorted(name for name in candidate.models if not name.startswith("\0")),
        "role": candidate.role,
        "healthy": candidate.healthy,
        "problem": endpoint.probe_problem,
        "draining": candidate.draining,
        "drained_by": sorted(endpoint.drained_by),
        "breaker": endpoint.breaker.name,
        "requests": candidate.requests,
        "prefill_tokens": candidate.prefill_tokens,
        "decode_tokens": candidate.decode_tokens,
        "load_tokens": candidate.load_tokens,
        "kv_utilisation": candidate.kv_utilisation,
        "waiting": candidate.waiting,
        "max_model_len": candidate.max_model_len,
        "gpu_speed": candidate.gpu_speed,
        "adapters": sorted(candidate.adapters),
        "adapter_slots": candidate.adapter_slots,
        "kv_block_size": candidate.kv_block_size,
        "kv_events": endpoint.follower.document() if endpoint.follower is not None else None,
        "index_blocks": gateway.scheduler.index.blocks(candidate.slot),
        "requests_total": endpoint.requests,
        "failures_total": endpoint.failures,
    }
