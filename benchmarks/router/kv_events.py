"""CPU of exact prefix mode, in process: encoding, rendering, hashing, following events. Process CPU time, medians.

`python benchmarks/router/kv_events.py MODEL_DIR`, a directory with tokenizer.json and a chat template, prints JSON.
"""

import json
import random
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tonnage_core.prefix_index.block_hash import hash_bytes
from tonnage_core.prefix_index.exact_index import ExactIndex
from tonnage_core.prefix_index.kv_events import KvView
from tonnage_router.adapters.kv_codec import decode
from tonnage_router.adapters.tokenizer import PromptTokenizer

RUNS = 50
STORED, REMOVED, BLOCK = 64, 32, 16


def cpu_us(work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return round(statistics.median(times) * 1e6, 1)


def text(rng: random.Random, words: list[str]) -> str:
    return " ".join(rng.choice(words) for _ in range(900))[:4096]


def batches(count: int) -> list[bytes]:
    """Each stores 64 blocks and evicts half of them, an event a block, as vLLM does."""
    made = []
    for number in range(count):
        names = [(number * STORED + i).to_bytes(32, "big") for i in range(STORED)]
        stored = {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": None,
            "token_ids": [number] * STORED * BLOCK,
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * STORED,
        }
        gone = [{"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU"} for name in names[:REMOVED]]
        made.append(msgspec.msgpack.encode([0.0, [stored, *gone], 0]))
    return made


def main() -> None:
    tokenizer = PromptTokenizer(Path(sys.argv[1]), 32 << 20)
    rng = random.Random(1)
    words = ["".join(rng.choice("abcdefghij") for _ in range(rng.randrange(2, 9))) for _ in range(2000)]
    talk = [{"role": "user", "content": text(rng, words)} for _ in range(8)]
    template = tokenizer.template
    assert template is not None
    rendered = template.render({"messages": talk})
    assert rendered is not None
    pieces = tokenizer.pieces(rendered)
    tokenizer.remember(pieces, tokenizer.encode_pieces(pieces))
    index = ExactIndex()
    index.add_slot(0)
    view = KvView(index, 0, 64 << 20)
    waiting = iter(batches(RUNS))
    packed = struct.pack("<8192I", *range(8192))

    def known() -> bytes:
        again = tokenizer.pieces(rendered)
        return tokenizer.joined(again, tokenizer.known(again), special=False)

    def follow() -> None:
        for event in decode(next(waiting)).events:
            view.apply(event)

    figures = {
        "schema": "tonnage.bench_kv_events/1",
        "encode_new_4_kib_us": cpu_us(lambda: tokenizer.encode_pieces([text(rng, words)])),
        "encode_known_32_kib_us": cpu_us(known),
        "render_8_messages_us": cpu_us(lambda: template.render({"messages": talk})),
        "hash_8192_tokens_us": cpu_us(lambda: hash_bytes(b"x" * 16, packed, 4 * BLOCK)),
        "follow_64_stored_32_removed_us": cpu_us(follow),
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
