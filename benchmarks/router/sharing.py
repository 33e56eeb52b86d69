"""CPU that sharing between replicas adds to a request: telling its prefix blocks, and hearing a peer's.

`python benchmarks/router/sharing.py`: process CPU time, medians of 9 interleaved rounds of 2,000 requests of 4 KiB (8
blocks each, all new: the dearest case), four endpoints. The round trips of the store are no request's and not in here.
"""

import json
import statistics
import sys
import time

from tonnage_core.flow_control.peers import Load, Report
from tonnage_core.prefix_index.block_hash import hash_bytes, seed_hash
from tonnage_core.prefix_index.index import PrefixIndex
from tonnage_router.share_codec import Entry, decode, encode
from tonnage_router.shared_index import SharedIndex

REQUESTS, ROUNDS, BLOCKS, ENDPOINTS = 2000, 9, 8, 4
REPORT = Report("r1", {f"e{n}": Load(3, 4000, 9000) for n in range(ENDPOINTS)})


def chains(start: int) -> list[list[bytes]]:
    """Block hashes of prompts that nobody has seen."""
    seed = seed_hash("m", None, None)
    return [hash_bytes(seed, n.to_bytes(8, "big") * (BLOCKS * 64), 512) for n in range(start, start + REQUESTS)]


def index() -> PrefixIndex:
    """An empty index of the router's default size."""
    made = PrefixIndex()
    for slot in range(ENDPOINTS):
        made.add_slot(slot, 8 << 20)
    return made


def inserted(into: PrefixIndex, made: list[list[bytes]]) -> float:
    """CPU microseconds a request."""
    begun = time.process_time()
    for number, chain in enumerate(made):
        into.insert(chain, number % ENDPOINTS)
    return (time.process_time() - begun) / REQUESTS * 1e6


def told(teller: SharedIndex) -> tuple[float, list[bytes]]:
    """CPU microseconds a request to write entries as rounds do, and the entries."""
    begun, entries = time.process_time(), []
    while pieces := teller.drain(8192):
        named: dict[str, list[bytes]] = {}
        for slot, blocks in pieces:
            named.setdefault(f"e{slot}", []).extend(blocks)
        entries.append(encode(Entry(REPORT, named)))
    return (time.process_time() - begun) / REQUESTS * 1e6, entries


def heard(hearer: SharedIndex, entries: list[bytes]) -> float:
    """CPU microseconds a peer's request."""
    begun = time.process_time()
    for data in entries:
        for key, blocks in decode(data).blocks.items():
            hearer.learn(blocks, int(key[1:]))
    return (time.process_time() - begun) / REQUESTS * 1e6


def main() -> int:
    """Print the medians as JSON."""
    plain, teller, hearer = index(), SharedIndex(index()), SharedIndex(index())
    columns: dict[str, list[float]] = {"insert_alone_us": [], "insert_shared_us": [], "tell_us": [], "hear_us": []}
    for number in range(ROUNDS):
        made = chains(number * REQUESTS)
        columns["insert_alone_us"].append(inserted(plain, made))
        columns["insert_shared_us"].append(inserted(teller, made))
        spent, entries = told(teller)
        columns["tell_us"].append(spent)
        columns["hear_us"].append(heard(hearer, entries))
    medians = {name: round(statistics.median(values), 2) for name, values in columns.items()}
    shape = {"requests": REQUESTS, "rounds": ROUNDS, "blocks": BLOCKS, "endpoints": ENDPOINTS}
    document = {"schema": "tonnage.bench_sharing/1", "version": "0.1.0", "settings": shape, "cpu_a_request": medians}
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
