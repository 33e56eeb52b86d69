import json
from pathlib import Path

from prometheus_client import CollectorRegistry

from tonnage_router.gateway import Gateway
from tonnage_router.metrics import RouterMetrics
from tonnage_router.observations import Observations
from tonnage_router.settings import RouterSettings


def write(directory: Path, node: str, tflops: float, gbps: float) -> None:
    ceilings = {"bf16_tflops": tflops, "hbm_copy_gbps": gbps}
    document = {"schema": "tonnage.gpu_profile/1", "node": node, "index": 0, "ceilings": ceilings}
    (directory / f"{node}.json").write_text(json.dumps(document))


def test_endpoints_get_the_speed_of_their_gpus_profile(tmp_path: Path) -> None:
    write(tmp_path, "n1", 800, 4000)
    write(tmp_path, "n2", 400, 2000)
    (tmp_path / "broken.json").write_text("{")
    endpoints = [
        {"url": "http://127.0.0.1:1", "gpu_profile": "n1/0"},
        {"url": "http://127.0.0.1:2", "gpu_profile": "n2/0"},
        {"url": "http://127.0.0.1:3", "gpu_profile": "n3/0"},
        {"url": "http://127.0.0.1:4", "gpu_profile": "n1/0", "gpu_speed": 0.7},
    ]
    settings = RouterSettings.model_validate({"endpoints": endpoints, "gpu_profiles_dir": tmp_path})
    gateway = Gateway(settings, RouterMetrics(CollectorRegistry()))
    Observations(gateway).speeds()
    assert [e.candidate.gpu_speed for e in gateway.fleet] == [1.0, 0.5, None, 0.7]
