"""Runs on Celery over Redis. The message names a run and holds nothing else; the service's database has the rest.

Messages are acknowledged when a worker takes them: what a dying worker or a lost broker drops is sent again by the
service, and what arrives twice is refused by it. No result backend: workers bring results to the service.
"""

import asyncio
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from tonnage_bench.errors import QueueError
from tonnage_bench.ports import Ref

TASK = "tonnage.bench.run"
SEND_S = 5.0


def celery_app(queue_url: str, queue_name: str) -> Celery:
    """The Celery application of service and workers."""
    app = Celery("tonnage.bench", broker=queue_url)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_default_queue=queue_name,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_timeout": SEND_S,
            "socket_connect_timeout": SEND_S,
            "retry_on_timeout": False,
            "global_keyprefix": "tonnage.bench.",
        },
    )
    return app


class CeleryQueue:
    """A `StepQueue`; a message that no worker took in `expires_s` is dropped: it was sent again meanwhile."""

    def __init__(self, queue_url: str, queue_name: str, expires_s: float) -> None:
        self._app = celery_app(queue_url, queue_name)
        self._expires_s = expires_s

    async def put(self, ref: Ref) -> None:
        """Send it. Raises `QueueError` when the broker does not take it in a few seconds."""
        try:
            async with asyncio.timeout(2 * SEND_S):
                await asyncio.to_thread(self._send, ref)
        except (OperationalError, OSError, TimeoutError) as error:
            raise QueueError(f"the queue takes no runs: {error}; is Redis up?") from error

    def _send(self, ref: Ref) -> None:
        given: list[Any] = [ref.job, ref.number, ref.attempt]
        self._app.send_task(TASK, args=given, retry=False, expires=self._expires_s)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._app.close)
