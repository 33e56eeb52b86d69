"""The GPU agent's OpenAPI document against its golden copy: a change of the API is seen in review.

After a change on purpose: `python tests/golden/test_agent_openapi.py` writes the copy anew.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tonnage_gpu_agent.adapters.fake_nvml import FakeDriver
from tonnage_gpu_agent.main import assemble
from tonnage_gpu_agent.settings import AgentSettings
from tonnage_runtime.clock import ManualClock

GOLDEN = Path(__file__).with_name("agent_openapi.json")


def document() -> dict[str, Any]:
    app = assemble(AgentSettings(), FakeDriver(), ManualClock()).app
    found: dict[str, Any] = app.openapi()
    return found


def test_the_agents_api_is_the_golden_one() -> None:
    assert document() == json.loads(GOLDEN.read_text())


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(document(), indent=1, sort_keys=True) + "\n")
    sys.exit(0)
