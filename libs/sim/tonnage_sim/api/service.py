"""What the API's handlers share."""

from collections.abc import Callable
from dataclasses import dataclass

from tonnage_sim.api.generation import Generator
from tonnage_sim.api.handover import Handover
from tonnage_sim.api.models import Models
from tonnage_sim.api.prompts import PromptReader
from tonnage_sim.engine.clock import EngineClock
from tonnage_sim.engine.loop import EngineLoop
from tonnage_sim.faults import Faults
from tonnage_sim.http1.message import Request


@dataclass(frozen=True, slots=True)
class Service:
    """The engine and what describes it."""

    models: Models
    generator: Generator
    prompts: PromptReader
    loop: EngineLoop
    clock: EngineClock
    faults: Faults
    fingerprint: str
    prompt_tokens_details: bool
    max_loras: int
    check_lora_paths: bool
    new_id: Callable[[], str]
    handover: Handover

    def request_id(self, prefix: str, request: Request, given: str | None) -> str:
        """The id shown to the client: the X-Request-Id header's, the body's, or a new one."""
        return f"{prefix}-{request.headers.get('x-request-id') or given or self.new_id()}"

    def created(self) -> int:
        """Unix time, whole seconds."""
        return int(self.clock.wall())

    @staticmethod
    def priority(request: Request, given: int) -> int:
        """The X-Vllm-Priority header's priority, else the body's."""
        try:
            return int(request.headers["x-vllm-priority"])
        except (KeyError, ValueError):
            return given
