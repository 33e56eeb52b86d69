"""Development mode, adapters, settings."""

import asyncio

import pytest

from tonnage_core.engine.errors import BadEngineConfigError
from tonnage_runtime.catalogue import load_gpu, load_model
from tonnage_runtime.errors import SettingsError
from tonnage_runtime.settings import load_settings
from tonnage_sim.engine.build import plan_engine
from tonnage_sim.main import with_options
from tonnage_sim.metric_types import Families
from tonnage_sim.metrics import token_bounds
from tonnage_sim.settings import SimSettings

from .conftest import Start, until

PROMPT = list(range(1000, 1100))


async def test_a_reset_cache_finds_nothing(start: Start) -> None:
    sim = await start(dev_mode=True)
    await sim.complete(PROMPT)
    assert (await sim.http.post("/reset_prefix_cache")).json() == {"success": True}
    assert (await sim.complete(PROMPT))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_sleep_ends_running_requests_and_waking_serves_again(start: Start) -> None:
    sim = await start(dev_mode=True, time_scale=1.0)
    work = asyncio.create_task(sim.complete(PROMPT, max_tokens=2000))
    await until(lambda: sim.app.service.loop.stats.running == 1)
    assert (await sim.http.post("/sleep?level=2")).json() == {"status": "sleeping", "level": 2}
    assert (await work)["choices"][0]["finish_reason"] == "abort"
    assert (await sim.http.get("/is_sleeping")).json() == {"is_sleeping": True}
    assert await sim.metric("vllm:engine_sleep_state", sleep_state="discard_all") == 1
    assert await sim.metric("vllm:request_success_total", finished_reason="abort") == 1
    assert (await sim.http.post("/wake_up")).json() == {"status": "awake", "tags": None}
    assert (await sim.complete(PROMPT, max_tokens=1))["usage"]["completion_tokens"] == 1


async def test_sleep_may_wait_for_running_requests(start: Start) -> None:
    sim = await start(dev_mode=True, time_scale=20.0)
    work = asyncio.create_task(sim.complete(PROMPT, max_tokens=50))
    await until(lambda: sim.app.service.loop.busy)
    await sim.http.post("/sleep?mode=wait")
    assert (await work)["choices"][0]["finish_reason"] == "length"


async def test_an_adapter_is_served_from_its_load_to_its_unload(start: Start) -> None:
    sim = await start(max_loras=1)
    loaded = await sim.http.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "s3://a/x"})
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'x' added successfully.")
    cards = (await sim.http.get("/v1/models")).json()["data"]
    assert [(card["id"], card["parent"], card["max_model_len"]) for card in cards] == [
        ("m", None, 4096),
        ("x", "m", None),
    ]
    assert (await sim.complete(PROMPT, model="x"))["model"] == "x"
    gone = await sim.http.post("/v1/unload_lora_adapter", json={"lora_name": "x"})
    assert gone.text == "Success: LoRA adapter 'x' removed successfully."
    assert (await sim.http.post("/v1/completions", json={"model": "x", "prompt": "a"})).status_code == 404


async def test_running_adapters_are_told(start: Start) -> None:
    sim = await start(max_loras=1, lora_modules={"x": "x", "y": "y"}, time_scale=1.0)
    work = [asyncio.create_task(sim.complete(PROMPT, model=name, max_tokens=2000)) for name in ("x", "y")]
    await until(lambda: sim.app.service.loop.stats.deferred == 1)
    assert await sim.metric("vllm:lora_requests_info", running_lora_adapters="x", waiting_lora_adapters="y") > 0
    assert await sim.metric("vllm:num_requests_waiting_by_reason", reason="deferred") == 1
    for task in work:
        task.cancel()
    await until(lambda: not sim.app.service.loop.busy)


async def test_the_state_shows_engine_time_and_counters(start: Start) -> None:
    sim = await start(num_blocks=500)
    await sim.complete(PROMPT, max_tokens=3)
    state = (await sim.http.get("/admin/state")).json()
    assert state["schema"] == "tonnage.sim_state/1"
    assert state["num_blocks"] == 500
    assert state["counters"]["generation_tokens"] == 3


def test_settings_come_from_the_environment() -> None:
    environ = {
        "TONNAGE_SIM_TIME_SCALE": "4",
        "TONNAGE_SIM_SERVED_MODEL_NAME": "a, b",
        "TONNAGE_SIM_LORA_MODULES": '{"x": "y"}',
    }
    settings = load_settings(SimSettings, "sim", environ)
    assert (settings.time_scale, settings.served_model_name) == (4.0, ("a", "b"))
    assert settings.lora_modules == {"x": "y"}


def test_options_win_over_the_environment() -> None:
    environ = {"TONNAGE_SIM_TIME_SCALE": "4", "TONNAGE_SIM_SEED": "1"}
    given = with_options(environ, ["--time-scale", "8", "--block-size=32"])
    settings = load_settings(SimSettings, "sim", given)
    assert (settings.time_scale, settings.block_size, settings.seed) == (8.0, 32, 1)


@pytest.mark.parametrize(
    "name, value", [("TIME_SCALE", "0"), ("BLOCK_SIZE", "no"), ("BLOCKSIZE", "16"), ("PORT", "99999")]
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"TONNAGE_SIM_{name}|{name.lower()}"):
        load_settings(SimSettings, "sim", {f"TONNAGE_SIM_{name}": value})


def test_blocks_are_what_the_gpu_leaves() -> None:
    settings, gpu = SimSettings(), load_gpu("H100-SXM-80GB")
    plan = plan_engine(settings, load_model("meta-llama/Llama-3.1-8B"), gpu, "m")
    assert 25_000 < plan.config.num_blocks < 32_000
    assert plan.config.max_model_len == 131072
    assert plan.kv_bytes == plan.config.num_blocks * 16 * 131072


def test_a_small_gpu_shortens_the_context() -> None:
    plan = plan_engine(SimSettings(), load_model("meta-llama/Llama-3.1-8B"), load_gpu("L4"), "m")
    assert plan.config.max_model_len == (plan.config.num_blocks - 1) * 16 < 131072


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadEngineConfigError, match="leaves no room for KV"):
        plan_engine(SimSettings(), load_model("meta-llama/Llama-3.1-70B"), load_gpu("L4"), "m")


def test_token_buckets_end_at_the_context() -> None:
    assert token_bounds(4096) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def test_a_million_prints_as_go_does() -> None:
    families = Families()
    families.histogram("h", "words", token_bounds(2_000_000)).cell(()).observe(7, times=3)
    lines = families.render().splitlines()
    assert lines[:2] == ["# HELP h words", "# TYPE h histogram"]
    assert 'h_bucket{le="5.0"} 0.0' in lines
    assert 'h_bucket{le="2e+06"} 3.0' in lines
    assert lines[-2:] == ["h_count 3.0", "h_sum 21.0"]


def test_label_values_are_escaped() -> None:
    families = Families()
    families.gauge("g", "words").cell((("b", 'say "a\\b"\n'), ("a", "x"))).value = 1
    assert families.render().splitlines()[-1] == r'g{a="x",b="say \"a\\b\"\n"} 1.0'
