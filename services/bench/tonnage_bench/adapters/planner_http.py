"""Bench points to the planner. Equal ids replace each other there, so sending them again changes nothing."""

import httpx

TIMEOUT_S = 10.0


async def post_points(planner_url: str, text: str) -> str:
    """`sent`, `refused` (never to be taken) or `unreachable` (worth another try)."""
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            answer = await client.post(
                f"{planner_url.rstrip('/')}/v1/bench-points", content=text, headers={"content-type": "text/csv"}
            )
    except httpx.HTTPError:
        return "unreachable"
    if answer.status_code == 201:
        return "sent"
    return "refused" if 400 <= answer.status_code < 500 and answer.status_code != 429 else "unreachable"
