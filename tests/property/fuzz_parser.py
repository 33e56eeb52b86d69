"""Parsers of files and of other processes' words under arbitrary bytes: by hypothesis in every run, by coverage in
`make fuzz`."""

import json
import math
from collections.abc import Callable

import msgspec
from safetensors import SafetensorError, deserialize

from tonnage_core.autoscaling.engine_metrics import WANTED, NoEngineMetricsError, Signal, read_engine
from tonnage_core.autoscaling.exposition import UnparsableError, parse
from tonnage_core.coldstart.errors import CorruptFileError
from tonnage_core.coldstart.safetensors_header import DTYPE_BITS, LENGTH_BYTES, header_bytes, parse_header
from tonnage_core.errors import BadInputError
from tonnage_core.memory import MemoryRequest, plan_memory
from tonnage_core.memory.report import report_of
from tonnage_core.models import shape_from_config
from tonnage_core.prefix_index.event_sync import Apply, EventSync, Reset
from tonnage_core.prefix_index.exact_index import ExactIndex
from tonnage_core.prefix_index.kv_events import VIEW_ENTRY_BYTES, KvView
from tonnage_core.traces import MAX_TOKENS, TraceError, parse_trace, prompt_token_ids
from tonnage_router import engine_metrics as routing_gauges
from tonnage_router import share_codec
from tonnage_router.adapters.kv_codec import decode
from tonnage_router.errors import KvEventError, PeerEntryError

BOUND = 8


def _file(header: str, body: bytes) -> bytes:
    raw = header.encode()
    return len(raw).to_bytes(LENGTH_BYTES, "little") + raw + body


def safetensors(data: bytes) -> None:
    """Any file: a header whose spans tile it, which the format's reference reader takes alike, or one named error."""
    try:
        length = header_bytes(data[:LENGTH_BYTES], len(data), "f")
        header = parse_header(data[LENGTH_BYTES : LENGTH_BYTES + length], len(data), "f")
    except CorruptFileError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
        return
    at = header.body_start
    for tensor in header.tensors:
        assert tensor.start == at and tensor.size_bytes >= 0
        tensor.name.encode()
        at = tensor.end
    assert at == len(data)
    if all(tensor.dtype in DTYPE_BITS for tensor in header.tensors):
        try:
            theirs = deserialize(data)  # type: ignore[no-untyped-call]
        except SafetensorError as error:
            raise AssertionError(f"the reference reader refuses it: {error}") from error
        assert {(name, tuple(each["shape"])) for name, each in theirs} == {(t.name, t.shape) for t in header.tensors}


def config(data: bytes) -> None:
    """Any config.json: a shape and a memory plan, or one short error."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    try:
        plan = plan_memory(MemoryRequest(shape_from_config(document, "m"), pool_gib=4.0))
    except BadInputError as error:
        assert "\n" not in str(error) and len(str(error)) < 600
        return
    assert 0.0 <= report_of(plan)["weight_gib"] < math.inf


def trace(data: bytes) -> None:
    """Any trace file: requests in order and within bounds, or one error; every line is a request or a bad line."""
    try:
        found = parse_trace(data)
    except TraceError as error:
        assert "\n" not in str(error)
        return
    before = 0.0
    for request in found.requests:
        assert before <= request.arrival_s < math.inf
        before = request.arrival_s
        assert 1 <= request.input_length <= MAX_TOKENS and 1 <= request.output_length <= MAX_TOKENS
        assert len(request.hash_ids) == -(-request.input_length // request.block_tokens)
        if request.input_length < 2000:
            assert len(prompt_token_ids(request)) == request.input_length
    lines = sum(1 for line in data.split(b"\n") if line.strip())
    assert len(found.requests) + len(found.bad_lines) in (lines, lines - 1)


def metrics(data: bytes) -> None:
    """Any page of an engine, as the planner and the router read it: values in their range, unknown, or one error."""
    gauges = routing_gauges.parse(data)
    assert gauges.kv_utilisation is None or 0.0 <= gauges.kv_utilisation <= 1.0
    assert all(n is None or n >= 0 for n in (gauges.waiting, gauges.running, gauges.kv_tokens, gauges.max_loras))
    assert gauges.started_at is None or math.isfinite(gauges.started_at)
    try:
        reading = read_engine(parse(data.decode("utf-8", "replace"), WANTED))
    except (UnparsableError, NoEngineMetricsError) as error:
        assert "\n" not in str(error)
        return
    for signal, value in reading.gauges.items():
        assert value is None or (0.0 <= value < math.inf and (signal is not Signal.KV_USAGE or value <= 1.0))
        assert value is not None or signal in (*reading.missing, *reading.never_sent)
    assert all(count is None or 0.0 <= count < math.inf for count in reading.counters.values())


def kvevents(data: bytes) -> None:
    """Any batches in any order: the view stays within its bound, and what it forgets leaves no block in the index."""
    index = ExactIndex()
    index.add_slot(0)
    view = KvView(index, 0, BOUND * VIEW_ENTRY_BYTES)
    sync: EventSync[bytes] = EventSync(lambda _: None, replays=bool(data[:1] > b"\x7f"), max_held=4)
    effects = sync.connected()
    for piece in data[1:].split(b"\xc1"):  # a byte that msgpack never uses
        number, payload = int.from_bytes(piece[:1], "big") % 6, piece[1:]
        effects += sync.message(number, piece[:1], payload) if number < 5 else sync.replayed(number - 5, payload)
        effects += sync.replay_ended() if piece[:1] == b"\xff" else []
        for effect in effects:
            if isinstance(effect, Reset):
                view.reset(complete=effect.complete)
                assert index.blocks(0) == 0
            elif isinstance(effect, Apply):
                try:
                    batch = decode(effect.batch)
                except KvEventError:
                    continue
                for event in batch.events:
                    view.apply(event)
                    assert index.blocks(0) <= len(view) <= BOUND
        effects = []
    index.remove_slot(0)
    assert index == ExactIndex() or index.blocks(0) == 0
    assert not index._masks


def peers(data: bytes) -> None:
    """Any entry of the replicas' stream: read and written again alike, or one error."""
    try:
        entry = share_codec.decode(data)
    except PeerEntryError as error:
        assert len(str(error)) < 600
        return
    assert share_codec.decode(share_codec.encode(entry)) == entry


def _batch(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


_STORED = {
    "type": "BlockStored",
    "block_hashes": [b"a", b"b"],
    "parent_block_hash": None,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
}
_MOE = {
    **_LLAMA,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
SEEDS: dict[str, list[bytes]] = {
    "safetensors": [
        _file('{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}', bytes(8)),
        _file('{"__metadata__":{"f":"pt"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}', bytes(2)),
        _file(
            '{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"b":{"dtype":"I8","shape":[0],"data_offsets":[1,1]}}',
            bytes(1),
        ),
    ],
    "config": [json.dumps(each).encode() for each in (_LLAMA, _MOE)],
    "trace": [
        b'{"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}\n' * 2,
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16T18:17:04+01:00,9,9\n",
    ],
    "metrics": [
        b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name="m"} 3.0\n'
        b'vllm:num_requests_waiting{model_name="m"} 1e2\nvllm:kv_cache_usage_perc{model_name="m"} 0.25 1700000000\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0\nprocess_start_time_seconds 1.7e9\n'
        b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7e9\n'
        b'vllm:time_to_first_token_seconds_bucket{le="0.1"} 3\n',
        b'sglang:num_running_reqs{tp_rank="0"} NaN\nsglang:token_usage 0.5\nsglang:num_queue_reqs +Inf\n',
        b"trtllm_kv_cache_utilization 0.5\n",
    ],
    "kvevents": [
        b"\x00"
        + b"\x00"
        + _batch(_STORED)
        + b"\xc1\x01"
        + _batch({"type": "BlockRemoved", "block_hashes": [b"a"]}, ["AllBlocksCleared"]),
        b"\xff\xff" + _batch(["BlockStored", [7, 8], None, [1, 2], 1, None, "GPU", "lora", [["lora", "salt"], None]]),
    ],
    "peers": [b'{"v":1,"r":"a","l":{"e":[1,2,3]},"u":{"t":[1,2,3]},"p":{"e":"AAAAAAAAAAAAAAAAAAAAAA=="}}'],
}
TARGETS: dict[str, Callable[[bytes], None]] = {
    "safetensors": safetensors,
    "config": config,
    "trace": trace,
    "metrics": metrics,
    "kvevents": kvevents,
    "peers": peers,
}
FOUND: dict[str, list[bytes]] = {
    # What fuzzing found, each once an exception.
    "kvevents": [  # one name for two contents: the first stayed in the index for ever
        b"0\xff" + _batch(["BlockStored", [7, 7], None, [1, 2], 1, None, "GPU", "lora", [["lora"], None]]),
    ],
    "metrics": [
        b"vllm:num_requests_waiting 1e999\n",
        b"vllm:num_requests_running 1e308\n" * 2,
        b'vllm:cache_config_info{block_size="' + b"1" * 5000 + b'",num_gpu_blocks="1"} 1.0\n',
    ],
    "config": [  # heads of no size divided by it
        json.dumps({**_MOE, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0}).encode(),
    ],
    "peers": [b'{"v":"' + b"A" * 700 + b'"}'],  # the error repeated all of it
}
