"""One entry of the replicas' stream: a report, and prefix blocks by endpoint."""

import binascii
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from tonnage_core.flow_control.peers import Load, Report, Use
from tonnage_core.prefix_index.block_hash import DIGEST_BYTES
from tonnage_router.errors import PeerEntryError

VERSION = 1
MAX_ENTRY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """What one replica told at one time. `blocks` are block hashes by endpoint key."""

    report: Report
    blocks: Mapping[str, list[bytes]]


def encode(entry: Entry) -> bytes:
    """The entry's bytes."""
    report = entry.report
    document = {
        "v": VERSION,
        "r": report.replica,
        "l": {key: (x.requests, x.prefill_tokens, x.decode_tokens) for key, x in report.loads.items()},
        "u": {name: (x.tokens, x.requests, x.held) for name, x in report.uses.items()},
        "p": {key: binascii.b2a_base64(b"".join(b), newline=False).decode() for key, b in entry.blocks.items()},
    }
    return orjson.dumps(document)


def decode(data: bytes) -> Entry:
    """The entry; `PeerEntryError` for anything that is none of this version's."""
    if len(data) > MAX_ENTRY_BYTES:
        raise PeerEntryError(f"an entry of {len(data)} bytes")
    try:
        found = orjson.loads(data)
        if found["v"] != VERSION or type(found["r"]) is not str:
            raise PeerEntryError(
                f"an entry of version {str(found['v'])[:40]!r}: run one version of the router in a fleet"
            )
        report = Report(
            found["r"],
            {key: Load(*_three(values)) for key, values in found["l"].items()},
            {name: Use(*_three(values)) for name, values in found["u"].items()},
        )
        return Entry(report, {key: _blocks(text) for key, text in found["p"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PeerEntryError(f"not an entry of a router: {data[:80]!r}") from error


def _three(values: object) -> tuple[int, int, int]:
    if type(values) is not list or len(values) != 3 or any(type(value) is not int for value in values):
        raise ValueError("three integers are expected")
    return values[0], values[1], values[2]


def _blocks(text: str) -> list[bytes]:
    raw = binascii.a2b_base64(text)
    if len(raw) % DIGEST_BYTES:
        raise ValueError("whole hashes are expected")
    return [raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)]
