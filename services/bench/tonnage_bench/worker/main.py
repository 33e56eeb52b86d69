"""`python -m tonnage_bench.worker.main [SETTINGS.yaml]`: a Celery worker that makes one run at a time.

Settings are `TONNAGE_BENCH_WORKER_<FIELD>`. Start one a machine: two loads on the same processors disturb each other.
"""

import asyncio
import os
import socket
import ssl
import sys

from tonnage_bench.adapters.celery_queue import TASK, celery_app
from tonnage_bench.adapters.desk_http import HttpDesk
from tonnage_bench.adapters.step_process import StepProcess
from tonnage_bench.making import Worker
from tonnage_bench.ports import Ref
from tonnage_bench.settings import WorkerSettings
from tonnage_core.errors import BadInputError, TonnageError
from tonnage_runtime.access import SharedToken
from tonnage_runtime.arguments import settings_file
from tonnage_runtime.clock import SystemClock
from tonnage_runtime.logging import configure_logging
from tonnage_runtime.settings import load_settings
from tonnage_runtime.tls import client_context


async def make(settings: WorkerSettings, token: SharedToken, trusted: ssl.SSLContext, name: str, ref: Ref) -> str:
    """Make one run."""
    async with HttpDesk(settings.service_url, token, trusted) as desk:
        return await Worker(name, desk, StepProcess(), SystemClock(), settings.patience_s).make(ref)


def serve(settings: WorkerSettings) -> None:
    """Take runs from the queue until SIGTERM, which lets the run under way end; after a kill another makes it. Raises
    `SettingsError` for a token or authorities that cannot be read."""
    token, trusted = SharedToken(settings.token), client_context(settings.api_ca_file)
    app = celery_app(settings.queue_url, settings.queue_name)
    name = settings.name or f"{socket.gethostname()}-{os.getpid()}"

    @app.task(name=TASK, ignore_result=True)  # type: ignore[untyped-decorator]
    def run(job: str, number: int, attempt: int) -> None:
        asyncio.run(make(settings, token, trusted, name, Ref(job, number, attempt)))

    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    app.worker_main(["worker", "--pool", "solo", "--loglevel", settings.log_level, "--hostname", f"{name}@%h", *quiet])


def main() -> int:
    """Exit code 0 after a clean stop, 2 for bad settings."""
    try:
        file = settings_file("python -m tonnage_bench.worker.main", __doc__, sys.argv[1:])
        settings = load_settings(WorkerSettings, "bench_worker", os.environ, file)
        configure_logging("bench-worker", settings.log_level)
        serve(settings)
    except TonnageError as error:
        print(f"tonnage-bench-worker: {error}", file=sys.stderr)  # noqa: T201 - before logging is configured
        return 2 if isinstance(error, BadInputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
