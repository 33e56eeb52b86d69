"""Records what vLLM's own scheduler decides on random workloads, for test_vllm_schedules.py to hold the model against.

usage, with the Python of an environment that has vLLM 0.32 (its CPU build will do) and some model directory:
    python tests/golden/record_vllm_schedules.py MODEL_DIR tests/golden/vllm_schedules.json [CASES]

No model runs: the scheduler gets made-up tokens. A workload is stored as a recipe, a step as what it scheduled.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import CacheConfig, DeviceConfig, LoRAConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

ADAPTERS = "abc"


def main(model: str, out: Path, cases: int) -> None:
    init_none_hash(sha256)
    recorded = [_Recording(model, _recipe(random.Random(seed))).run() for seed in range(cases)]
    document = {"source": f"vLLM {vllm.__version__} (Apache-2.0), vllm.v1.core.sched.scheduler", "cases": recorded}
    out.write_text(json.dumps(document, separators=(",", ":")).replace('{"config"', '\n{"config"') + "\n")


def _recipe(rng: random.Random) -> dict[str, Any]:
    size = rng.choice([1, 2, 4, 16])
    longest = size * rng.choice([10, 20])
    config = {
        "block_size": size,
        "num_blocks": longest // size + 1 + rng.choice([0, 3, 10, 40]),
        "max_model_len": longest,
        "max_num_seqs": rng.choice([2, 4, 8]),
        "max_num_batched_tokens": rng.choice([8, 16, 33, 200]),
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "long_prefill_token_threshold": rng.choice([0, 0, min(5, longest)]),
        "enable_prefix_caching": rng.random() < 0.85,
        "adapter_slots": rng.choice([0, 0, 1, 2]),
    }
    arrivals, step = [], 0
    for _ in range(rng.randint(3, 20)):
        step += rng.choice([0, 0, 0, 1, 3, 10])
        prompt = rng.randint(1, longest - 1)
        shared = rng.choice([0, prompt, prompt // 2, rng.randint(0, prompt)])
        adapter = rng.choice([None, *ADAPTERS]) if config["adapter_slots"] else None
        arrivals.append([step, prompt, shared, rng.randint(1, longest - prompt), rng.randint(0, 2), adapter])
    aborts = [[rng.randint(0, 2 * step + 40), number] for number in range(len(arrivals)) if rng.random() < 0.1]
    return {"config": config, "arrivals": arrivals, "aborts": sorted(aborts)}


class _Recording:
    """One workload on one scheduler. Requests are numbered in order of arrival."""

    def __init__(self, model: str, recipe: dict[str, Any]) -> None:
        self.recipe = recipe
        self.config = recipe["config"]
        self.scheduler = _scheduler(model, self.config)
        self.hasher = get_request_block_hasher(self.config["block_size"], sha256)
        self.live: dict[int, Any] = {}

    def run(self) -> dict[str, Any]:
        steps: list[list[Any]] = []
        pending = list(enumerate(self.recipe["arrivals"]))
        while pending or self.live:
            while pending and pending[0][1][0] <= len(steps):
                self._add(*pending.pop(0))
            for at, number in self.recipe["aborts"]:
                if at == len(steps) and number in self.live:
                    self.scheduler.finish_requests(str(number), RequestStatus.FINISHED_ABORTED)
                    del self.live[number]
            steps.append(self._step())
        return self.recipe | {"steps": steps}

    def _add(self, number: int, arrival: list[Any]) -> None:
        at, prompt, shared, output, priority, adapter = arrival
        self.live[number] = Request(
            request_id=str(number),
            prompt_token_ids=[place if place < shared else 1000 * (number + 1) + place for place in range(prompt)],
            sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
            pooling_params=None,
            arrival_time=at + number * 1e-6,
            priority=priority,
            block_hasher=self.hasher,
            lora_request=LoRARequest(adapter, ADAPTERS.index(adapter) + 1, "/none") if adapter else None,
        )
        self.scheduler.add_request(self.live[number])

    def _step(self) -> list[Any]:
        """[rows, preempted, hits, ended, running, waiting, deferred, free blocks, cached blocks]"""
        preempted: list[int] = []
        output, rows = self._schedule(preempted)
        if not rows and preempted:
            # An empty step, which vLLM runs and the model leaves out.
            self.scheduler.update_from_output(output, ModelRunnerOutput(req_ids=[], req_id_to_index={}))
            output, rows = self._schedule(preempted)
        hits = [[number, self._hits(number)] for number, _ in rows if self._hits(number) is not None]
        if rows:
            self._finish(output, [number for number, _ in rows])
        ended = [number for number, request in self.live.items() if request.is_finished()]
        for number in ended:
            del self.live[number]
        pool = self.scheduler.kv_cache_manager.block_pool
        sizes = [len(self.scheduler.running), len(self.scheduler.waiting), len(self.scheduler.deferred_waiting)]
        return [rows, preempted, hits, ended, *sizes, pool.get_num_free_blocks(), len(pool.cached_block_hash_to_block)]

    def _schedule(self, preempted: list[int]) -> tuple[Any, list[list[int]]]:
        before = {number: request.num_preemptions for number, request in self.live.items()}
        output = self.scheduler.schedule()
        preempted += [number for number, request in self.live.items() if request.num_preemptions > before[number]]
        return output, [[int(name), count] for name, count in output.num_scheduled_tokens.items()]

    def _hits(self, number: int) -> int | None:
        stats = self.live[number].prefill_stats
        return None if stats is None else int(stats.num_cached_tokens)

    def _finish(self, output: Any, numbers: list[int]) -> None:
        """Tokens come out of every row that has caught up."""
        sampled = []
        for number in numbers:
            request = self.live[number]
            caught_up = request.num_computed_tokens >= request.num_tokens
            sampled.append([100 + (7 * number + 3 * request.num_output_tokens) % 50] if caught_up else [])
        names = [str(number) for number in numbers]
        places = {name: place for place, name in enumerate(names)}
        result = ModelRunnerOutput(req_ids=names, req_id_to_index=places, sampled_token_ids=sampled)
        self.scheduler.update_from_output(output, result)


def _scheduler(model: str, config: dict[str, Any]) -> Any:
    slots = config["adapter_slots"]
    cache = CacheConfig(block_size=config["block_size"], enable_prefix_caching=config["enable_prefix_caching"])
    cache.num_gpu_blocks = config["num_blocks"]
    whole = VllmConfig(
        model_config=ModelConfig(model=model, dtype="float32", max_model_len=config["max_model_len"], seed=0),
        scheduler_config=SchedulerConfig(
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_model_len=config["max_model_len"],
            is_encoder_decoder=False,
            policy=config["policy"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            async_scheduling=False,
        ),
        cache_config=cache,
        lora_config=LoRAConfig(max_loras=slots, max_lora_rank=8, lora_dtype="auto") if slots else None,
        device_config=DeviceConfig("cpu"),
    )
    layer = FullAttentionSpec(block_size=config["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    group = KVCacheGroupSpec(["layer"], layer)
    return Scheduler(
        vllm_config=whole,
        kv_cache_config=KVCacheConfig(config["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[group]),
        structured_output_manager=StructuredOutputManager(whole),
        block_size=config["block_size"],
        log_stats=True,
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 60)
