"""LoRA adapters of a local fleet: every simulated engine is to hold them, the new and the restarted ones too."""

import asyncio
from collections.abc import Callable, Sequence

from tonnage_loadgen.errors import TargetError
from tonnage_loadgen.plain_http import ask
from tonnage_loadgen.target import parse_target

LOOK_S = 1.0


async def missing(url: str, names: Sequence[str]) -> list[str]:
    """Those of `names` that the engine does not list; none while it does not answer."""
    try:
        found = (await ask(parse_target(url), "/v1/models", timeout_s=5.0)).document()
    except TargetError:
        return []
    cards = found.get("data") if isinstance(found, dict) else None
    if not isinstance(cards, list):
        return []
    listed = {card.get("id") for card in cards if isinstance(card, dict)}
    return [name for name in names if name not in listed]


async def load_missing(url: str, names: Sequence[str]) -> int:
    """Load what an engine lacks; how many it took. What fails is tried at the next look."""
    loaded = 0
    for name in await missing(url, names):
        body = {"lora_name": name, "lora_path": f"adapters/{name}"}
        try:
            loaded += (await ask(parse_target(url), "/v1/load_lora_adapter", body, timeout_s=30.0)).status == 200
        except TargetError:
            break
    return loaded


async def keep_loaded(urls: Callable[[], Sequence[str]], names: Sequence[str]) -> None:
    """Look at every engine, for ever."""
    while True:
        await asyncio.gather(*(load_missing(url, names) for url in urls()))
        await asyncio.sleep(LOOK_S)
