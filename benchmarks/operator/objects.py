"""How long the operator takes from nothing to rest over many ModelServers: `benchmarks/operator/objects.py [OUT]`.

The API server is the mock of the operator's tests, in this process: the CPU seconds are of both, so they bound the
operator's own from above.
"""

import asyncio
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tonnage_operator import kinds

HERE = Path(__file__).parent
UNIT = HERE.parents[1] / "tests" / "unit"


def load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


async def measure(settings: dict[str, Any]) -> dict[str, Any]:
    module = load("operator_mock", UNIT / "operator" / "conftest.py")
    resources, count = load("operator_resources", UNIT / "conftest.py"), settings["objects"]
    async with module.ApiServer() as server, module.Server(server):
        server.prepare()
        fleet = module.Fleet(server, str(server.url))
        for number in range(count):
            await server.put(kinds.MODEL_SERVERS, resources.model_server(f"m{number}"))
        wall, cpu = time.perf_counter(), time.process_time()
        await fleet.start(workers=settings["workers"])
        while len(server.applied("modelservers", subresource="status")) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        done = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        writes = len(server.calls)
        await fleet.stop()
    return {"objects": count, "writes": writes, **{key: round(value, 2) for key, value in done.items()}}


def main() -> int:
    settings = yaml.safe_load((HERE / "objects.yaml").read_text())
    load = list(os.getloadavg())
    found = asyncio.run(measure(settings))
    found |= {"schema": "tonnage.operator_bench/1", "within": found["wall_s"] <= settings["most_s"]}
    found |= {"cores": os.cpu_count(), "load_average_before": load, "load_average_after": list(os.getloadavg())}
    text = json.dumps(found, indent=1)
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")
    return 0 if found["within"] else 1


if __name__ == "__main__":
    sys.exit(main())
