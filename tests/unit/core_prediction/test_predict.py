"""The closed loop: what TTFT, TPOT and throughput do with load, and what an answer says about itself."""

from dataclasses import replace

import pytest

from tonnage_core.hardware import find_gpu
from tonnage_core.parallelism import Layout, LayoutError
from tonnage_core.prediction import PredictError, PredictRequest, predict, step_model
from tonnage_core.prediction.closed_loop import Load, steady_state
from tonnage_core.prediction.coefficients import BY_NAME, Coefficients
from tonnage_runtime.catalogue import load_model

LLAMA = "meta-llama/Llama-3.1-8B"
NOTHING = {"overlap", "burst", "burst_alike"}
IDEAL = Coefficients(**{name: 0.0 if name.endswith("_s") or name in NOTHING else 1.0 for name in BY_NAME})


def asked(concurrency: int = 16, **changes: object) -> PredictRequest:
    base = PredictRequest(load_model(LLAMA), find_gpu("H100"), 1000, 500, concurrency, engine_version="0.19.0")
    return replace(base, **changes)  # type: ignore[arg-type]


def test_ideal_kernels_reach_the_guides_decode_floor() -> None:
    """Guide, section 2: a decode step is never shorter than (weights + KV) / bandwidth."""
    model = step_model(load_model(LLAMA), find_gpu("H100"), coefficients=IDEAL)
    weights = sum(part.weight_bytes for part in model.operators.products) + model.operators.head.weight_bytes
    floor = (weights + 8 * 2000 * 131072) / 3350e9
    assert model.decode_step_s(8, 2000) == pytest.approx(floor, rel=1e-6)


def test_ideal_kernels_reach_the_guides_prefill_estimate() -> None:
    """Guide, section 2: prefill is about 2 x parameters x tokens / FLOP/s, attention beside it."""
    model = step_model(load_model(LLAMA), find_gpu("H100"), coefficients=IDEAL)
    flops = sum(part.flops_per_row for part in model.operators.products)
    parts = model.parts(0, 0, 2048, 0)
    assert parts["dense_products"] == pytest.approx(2048 * flops / 989e12, rel=1e-6)
    pairs = 2048 * 2048 / 2 * 32 * 4 * 32 * 128
    assert parts["prompt_attention"] == pytest.approx(pairs / 989e12, rel=1e-6)


def test_more_clients_mean_more_throughput_and_slower_tokens() -> None:
    few, many = predict(asked(4)), predict(asked(64))
    assert many.output_tok_s.value > 3 * few.output_tok_s.value
    assert many.tpot_ms.value > few.tpot_ms.value
    assert many.ttft_ms.value > few.ttft_ms.value


@pytest.mark.parametrize("concurrency", [1, 16, 256])
def test_littles_law_holds(concurrency: int) -> None:
    found = predict(asked(concurrency))
    life = found.state.ttft_s - found.state.burst_s - found.state.queue_s + 499 * found.state.tpot_s
    assert found.state.requests_per_s * life == pytest.approx(found.slots.running, rel=0.02)


def test_prompts_of_others_slow_tokens_down() -> None:
    assert predict(asked(32, isl=8000.0)).state.prompt_share > predict(asked(32, isl=500.0)).state.prompt_share
    alone = predict(asked(1, isl=8000.0)).state
    assert alone.prompt_share == 0 and alone.tpot_s == pytest.approx(alone.decode_step_s)


def test_requests_beyond_the_pool_queue() -> None:
    room = predict(asked(32, pool_gib=20.0))
    full = predict(asked(32, pool_gib=2.0))
    assert room.slots.binding == "client" and room.state.queue_s == 0
    assert full.slots.binding == "kv_cache" and full.slots.running < 32
    assert full.ttft_ms.value > 10 * room.ttft_ms.value
    assert full.tpot_ms.value < room.tpot_ms.value


def test_a_batch_limit_queues_too() -> None:
    found = predict(asked(32, max_num_seqs=8))
    assert (found.slots.binding, found.slots.running) == ("max_num_seqs", 8)


def test_a_pool_without_room_does_not_fit() -> None:
    found = predict(asked(4, isl=8000.0, pool_gib=0.5))
    assert found.slots.fits is False and found.kind == "extrapolated"


def test_a_cached_prefix_shortens_the_first_token() -> None:
    assert predict(asked(16, prefix=900.0)).ttft_ms.value < 0.7 * predict(asked(16)).ttft_ms.value


def test_prompts_first_and_equal_lengths_keep_waves_together() -> None:
    drawn = predict(asked(64, engine="sglang", engine_version="0.5.9", length_spread=0.2))
    alike = predict(asked(64, engine="sglang", engine_version="0.5.9", length_spread=0.0))
    assert alike.ttft_ms.value > 2 * drawn.ttft_ms.value


def test_a_long_run_forgets_its_first_burst() -> None:
    short, long = predict(asked(64, waves=2.0)), predict(asked(64, waves=1000.0))
    assert long.ttft_ms.value < short.ttft_ms.value
    assert long.tpot_ms.value == short.tpot_ms.value


def test_a_prompt_that_is_held_back_waits_for_steps_and_for_what_came_meanwhile() -> None:
    free, held = predict(asked(64)), predict(asked(64, hold_steps=15.0))
    assert held.ttft_ms.value - free.ttft_ms.value > 15 * 0.9 * held.state.decode_step_s * 1e3
    assert held.output_tok_s.value < free.output_tok_s.value


def test_an_engine_that_serves_nobody_else_looks_at_once() -> None:
    assert predict(asked(1, hold_steps=30.0)).ttft_ms == predict(asked(1)).ttft_ms


def test_intervals_hold_their_value_and_widen_where_nothing_was_measured() -> None:
    known, unknown = predict(asked()), predict(asked(gpu=find_gpu("L40S")))
    assert known.kind == "derived" and unknown.kind == "extrapolated"
    for estimate in (known.tpot_ms, known.ttft_ms, known.output_tok_s):
        assert estimate.lo90 < estimate.value < estimate.hi90
    spread = [one.tpot_ms.hi90 / one.tpot_ms.value for one in (known, unknown)]
    assert spread[1] > spread[0]


def test_every_answer_comes_with_its_derivation() -> None:
    document = predict(asked()).document("1")
    steps = {step["name"]: step["value"] for step in document["steps"]}
    parts = sum(value for name, value in steps.items() if name.startswith("decode_") and name != "decode_step")
    assert parts == pytest.approx(steps["decode_step"], rel=1e-3)
    assert steps["tpot"] == pytest.approx(steps["decode_step"] / (1 - steps["prompt_share"]), rel=1e-3)
    assert document["tpot_ms"]["value"] == pytest.approx(steps["tpot"], rel=1e-3)


def test_one_token_out_still_has_an_answer() -> None:
    found = predict(asked(8, osl=1.0))
    assert found.ttft_ms.value > 0 and found.output_tok_s.value > 0


@pytest.mark.parametrize("layout", [Layout(8), Layout(2, 2), Layout(1, 1, 8, 8), Layout(4, 1, 4)])
def test_experts_are_placed_in_every_way(layout: Layout) -> None:
    found = predict(
        PredictRequest(load_model("deepseek-ai/DeepSeek-V3"), find_gpu("B200"), 1000, 500, 64, layout=layout)
    )
    assert 1 < found.tpot_ms.value < 500


@pytest.mark.parametrize(
    "changes",
    [
        {"isl": 0},
        {"osl": float("nan")},
        {"isl": float("inf")},
        {"concurrency": 0},
        {"concurrency": True},
        {"prefix": 1001},
        {"waves": 0},
        {"length_spread": -1},
        {"hold_steps": -1},
        {"hold_steps": float("inf")},
        {"max_num_seqs": 0},
        {"gpu_memory_utilization": 1.5},
        {"pool_gib": 0},
    ],
)
def test_impossible_questions_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(PredictError, match=next(iter(changes))):
        asked(**changes)  # type: ignore[arg-type]


def test_a_layout_the_engine_refuses_is_refused() -> None:
    from tonnage_core.memory.request import RefusedError

    with pytest.raises((RefusedError, LayoutError)):
        predict(asked(layout=Layout(3)))


def test_prompts_may_take_nearly_all_the_time() -> None:
    """A loop of long prompts and two tokens out stays finite and within its bounds."""
    model = step_model(load_model(LLAMA), find_gpu("H100"))
    found = steady_state(model, Load(30000, 2, 0, 512, 512))
    assert 0 < found.prompt_share <= 0.97
    assert found.ttft_s < 512 * 3 * found.prompt_s
