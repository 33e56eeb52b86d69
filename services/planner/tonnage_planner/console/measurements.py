"""What was measured on GPUs, for the plan's roofline: from the library, else from the agents."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from tonnage_core.errors import TonnageError
from tonnage_core.hardware import find_gpu
from tonnage_core.planning.measured import measured_products
from tonnage_planner.console.documents import ConsoleRoofline, RooflinePoint
from tonnage_planner.console.parts import Parts, verdicts
from tonnage_planner.console.reading import mappings, number, text
from tonnage_planner.library import Library
from tonnage_planner.ports import ScrapeError, Scraper

PEAKS = {"bf16": "bf16_tflops", "fp16": "fp16_tflops", "fp8": "fp8_tflops", "int8": "int8_tops"}
WAIT_S = 0.5
KEPT_ROUNDS = 15
"""Samples between two looks into the library, whose profiles are large."""


class Measurements:
    """Profiles by the catalogue's name of their GPU."""

    def __init__(self, library: Library, parts: Parts, scraper: Scraper) -> None:
        self._library = library
        self._parts = parts
        self._scraper = scraper
        self._kept: dict[str, Mapping[str, Any]] = {}
        self._rounds = 0

    async def kept(self) -> Mapping[str, Mapping[str, Any]]:
        """The library's profiles without samples, by `node/index`, as of at most `KEPT_ROUNDS` calls ago."""
        if self._rounds % KEPT_ROUNDS == 0:
            held = await self._library.profiles()
            small = verdicts({"profiles": list(held.values())})["profiles"]
            self._kept = dict(zip(held, small, strict=True))
        self._rounds += 1
        return self._kept

    @staticmethod
    def name_of(profile: Mapping[str, Any]) -> str | None:
        """The catalogue's name of its GPU."""
        try:
            return find_gpu(str(profile.get("name") or profile.get("product") or "")).name
        except TonnageError:
            return None

    async def roofline(self, gpu: str) -> ConsoleRoofline:
        """What was measured on a GPU that the catalogue calls `gpu`."""
        profile = await self._profile(gpu)
        ceilings = profile.get("ceilings")
        rates: Mapping[str, Any] = ceilings if isinstance(ceilings, Mapping) else {}
        peaks = {name: value for name, field in PEAKS.items() if (value := number(rates.get(field))) is not None}
        products = measured_products(profile)
        return ConsoleRoofline(
            gpu=gpu,
            reference=f"{profile.get('node')}/{profile.get('index')}" if profile else None,
            measured_at=text(profile.get("measured_at")),
            hbm_gbps=number(rates.get("hbm_read_gbps")) or number(rates.get("hbm_copy_gbps")),
            peaks_tflops=peaks,
            points=[
                RooflinePoint(label=p.label, precision=p.precision, intensity=p.intensity, tflops=p.tflops)
                for p in products
            ],
        )

    async def _profile(self, gpu: str) -> Mapping[str, Any]:
        for profile in (await self._library.profiles()).values():
            if self.name_of(profile) == gpu:
                return profile
        await self._parts.refresh(WAIT_S)
        for url, document in self._parts.documents("agent", "/v1/profiles"):
            for one in mappings(document.get("profiles")):
                if self.name_of(one) == gpu and isinstance(one.get("uuid"), str):
                    return await self._of_agent(url, one["uuid"]) or one
        return {}

    async def _of_agent(self, url: str, uuid: str) -> Mapping[str, Any]:
        try:
            found = orjson.loads(await self._scraper.text(f"{url}/v1/profiles/{quote(uuid, safe='')}"))
        except (ScrapeError, orjson.JSONDecodeError):
            return {}
        return found if isinstance(found, Mapping) else {}
