"""vLLM's own API: which adapters an engine holds and uses, whether it sleeps, and the control calls.

`vllm:lora_requests_info` lists adapters with requests in flight in its labels and the time as its value; old series
stay, so the newest one counts.
"""

from tonnage_core.autoscaling.exposition import UnparsableError, parse
from tonnage_operator.actions import EngineCall
from tonnage_operator.adapters.http import Caller, CallError
from tonnage_operator.pods import EngineView

INFO = "vllm:lora_requests_info"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
LOAD_S = 120.0
"""A load reads the adapter's files; a sleep copies the weights to memory."""


class HttpEngines:
    """Engines by their pods' addresses."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def look(self, url: str, *, sleeps: bool) -> EngineView:
        """What the engine says now; what it does not say is None."""
        busy, requests = self._load(url)
        return EngineView(
            adapters=self._adapters(url),
            busy_adapters=busy,
            requests=requests,
            sleeping=self._sleeping(url) if sleeps else False,
        )

    def call(self, action: EngineCall) -> None:
        """Do it; `CallError` when it was not done. What is so already is done."""
        if action.call == "load":
            body = {"lora_name": action.adapter, "lora_path": action.path}
            self._tolerant(f"{action.url}/v1/load_lora_adapter", body, 400, "already been loaded")
        elif action.call == "unload":
            body = {"lora_name": action.adapter}
            self._tolerant(f"{action.url}/v1/unload_lora_adapter", body, 404, "")
        elif action.call == "sleep":
            self._caller.text("POST", f"{action.url}/sleep?level=1", timeout_s=LOAD_S)
        else:
            self._caller.text("POST", f"{action.url}/wake_up", timeout_s=LOAD_S)

    def _tolerant(self, url: str, body: dict[str, str], status: int, words: str) -> None:
        try:
            self._caller.text("POST", url, body, timeout_s=LOAD_S)
        except CallError as error:
            if error.status != status or words not in error.body:
                raise

    def _adapters(self, url: str) -> frozenset[str] | None:
        try:
            cards = self._caller.json("GET", f"{url}/v1/models").get("data")
        except CallError:
            return None
        if not isinstance(cards, list):
            return None
        return frozenset(str(card.get("id")) for card in cards if isinstance(card, dict) and card.get("parent"))

    def _load(self, url: str) -> tuple[frozenset[str] | None, float | None]:
        try:
            found = parse(self._caller.text("GET", f"{url}/metrics"), {INFO, RUNNING, WAITING})
        except (CallError, UnparsableError):
            return None, None
        counts = [sample.value for name in (RUNNING, WAITING) for sample in found.samples.get(name, [])]
        requests = sum(counts) if counts else None
        if requests == 0:
            return frozenset(), requests
        told = found.samples.get(INFO, [])
        if not told:
            return None, requests
        labels = dict(max(told, key=lambda sample: sample.value).labels)
        names = f"{labels.get('running_lora_adapters', '')},{labels.get('waiting_lora_adapters', '')}"
        return frozenset(name.strip() for name in names.split(",") if name.strip()), requests

    def _sleeping(self, url: str) -> bool | None:
        try:
            found = self._caller.json("GET", f"{url}/is_sleeping").get("is_sleeping")
        except CallError:
            return None
        return found if isinstance(found, bool) else None
