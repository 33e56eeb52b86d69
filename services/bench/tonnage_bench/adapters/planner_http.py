"""Bench points to the planner. Equal ids replace each other there, so sending them again changes nothing."""

import logging
import ssl

import httpx

log = logging.getLogger("tonnage.bench")
TIMEOUT_S = 10.0
LATER = (401, 403, 429)
"""Refusals that end when a token was brought or the load is over."""


async def post_points(
    planner_url: str, text: str, authorization: str = "", trusted: ssl.SSLContext | None = None
) -> str:
    """`sent`, `refused` (never to be taken) or `unreachable` (worth another try). `authorization` may be empty."""
    headers = {"content-type": "text/csv"} | ({"authorization": authorization} if authorization else {})
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, verify=trusted or True) as client:
            answer = await client.post(f"{planner_url.rstrip('/')}/v1/bench-points", content=text, headers=headers)
    except httpx.HTTPError as error:
        log.warning("bench points wait", extra={"planner": planner_url, "reason": str(error) or type(error).__name__})
        return "unreachable"
    if answer.status_code == 201:
        return "sent"
    return "refused" if 400 <= answer.status_code < 500 and answer.status_code not in LATER else "unreachable"
