"""The engine in real time, on a made-up clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import pytest

from tonnage_core.engine.batch import Batch
from tonnage_core.engine.engine import Engine
from tonnage_core.engine.types import EngineConfig, EngineRequest
from tonnage_core.errors import BadInputError
from tonnage_sim.engine.clock import EngineClock
from tonnage_sim.engine.loop import EngineLoop
from tonnage_sim.engine.observer import Observer
from tonnage_sim.engine.outbox import Outbox
from tonnage_sim.engine.output import Output
from tonnage_sim.engine.sample import Parent, Sample
from tonnage_sim.metric_types import Families
from tonnage_sim.metrics import SimMetrics

pytestmark = pytest.mark.looptime
IDS = count()


class LoopClock:
    """The running loop's time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self.monotonic()


class TenthSteps:
    """Every step takes 0.1 engine seconds."""

    def seconds(self, batch: Batch) -> float:
        return 0.1

    def swap_seconds(self, tokens: int) -> float:
        return 0.0


@dataclass(eq=False)
class Heard:
    """When tokens came and samples ended, in loop time."""

    tokens_s: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def tokens(self, sample: Sample, count: int) -> None:
        self.tokens_s.append(asyncio.get_running_loop().time())

    def ended(self, sample: Sample, reason: str) -> None:
        self.ends.append(reason)


@asynccontextmanager
async def looped(scale: float = 1.0) -> AsyncIterator[EngineLoop]:
    config = EngineConfig(num_blocks=100, max_model_len=1000, max_num_seqs=8)
    metrics = SimMetrics(Families(), model="m", max_model_len=1000, max_loras=0, cache={})
    loop = EngineLoop(
        lambda: Engine(config, TenthSteps()), EngineClock(LoopClock(), scale), Observer(metrics), Outbox(0.0)
    )
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def said(tokens: int) -> Output:
    return Output(tokens, lambda: (300,) * tokens, visible=6 * tokens, finish_reason="length")


def submit(loop: EngineLoop, tokens: int) -> tuple[Heard, str]:
    heard, name = Heard(), str(next(IDS))
    request = EngineRequest(request_id=name, prompt_tokens=4, output_tokens=tokens, tail=(1, 2, 3, 4))
    sample = Sample(name, 0, 4, said(tokens), heard, Parent(1, 1))
    loop.submit([(request, sample)])
    return heard, name


async def test_a_token_comes_at_the_end_of_its_step() -> None:
    async with looped() as loop:
        heard, _ = submit(loop, 3)
        await loop.drained()
        assert heard.tokens_s == pytest.approx([0.1, 0.2, 0.3])
        assert heard.ends == ["length"]


async def test_the_scale_divides_wall_time() -> None:
    async with looped(scale=4.0) as loop:
        heard, _ = submit(loop, 3)
        await loop.drained()
        assert heard.tokens_s == pytest.approx([0.025, 0.05, 0.075])


async def test_a_late_request_joins_the_next_step() -> None:
    async with looped() as loop:
        first, _ = submit(loop, 4)
        await asyncio.sleep(0.15)
        second, _ = submit(loop, 1)
        await loop.drained()
        assert second.tokens_s == pytest.approx([0.3])
        assert first.tokens_s == pytest.approx([0.1, 0.2, 0.3, 0.4])


async def test_an_idle_engine_starts_when_work_comes() -> None:
    async with looped() as loop:
        await asyncio.sleep(5.03)
        heard, _ = submit(loop, 1)
        await loop.drained()
        assert heard.tokens_s == pytest.approx([5.13])


async def test_an_aborted_sample_says_no_more() -> None:
    async with looped() as loop:
        heard, name = submit(loop, 100)
        await asyncio.sleep(0.25)
        loop.abort([name, "unknown"])
        assert not loop.busy
        await asyncio.sleep(1)
        assert heard.tokens_s == pytest.approx([0.1, 0.2])
        assert heard.ends == []


async def test_samples_ended_from_outside_say_why() -> None:
    async with looped() as loop:
        heard, _ = submit(loop, 100)
        await asyncio.sleep(0.25)
        loop.end_all("abort")
        assert heard.ends == ["abort"]
        assert not loop.busy


async def test_a_held_engine_starts_nothing_and_goes_on_from_where_it_is() -> None:
    async with looped() as loop:
        loop.hold(True)
        heard, _ = submit(loop, 2)
        await asyncio.sleep(3)
        assert heard.tokens_s == []
        loop.hold(False)
        await loop.drained()
        assert heard.tokens_s == pytest.approx([3.1, 3.2])


async def test_a_frozen_engine_does_not_catch_up() -> None:
    async with looped() as loop:
        heard, _ = submit(loop, 3)
        await asyncio.sleep(0.15)
        loop.freeze(True)
        await asyncio.sleep(2)
        loop.freeze(False)
        await loop.drained()
        assert heard.tokens_s == pytest.approx([0.1, 2.15, 2.25])


async def test_the_cache_is_forgotten_only_when_nobody_holds_blocks() -> None:
    async with looped() as loop:
        submit(loop, 2)
        assert not loop.reset_prefix_cache()
        await loop.drained()
        assert loop.reset_prefix_cache()


async def test_a_refused_batch_leaves_nothing_behind() -> None:
    async with looped() as loop:
        good, bad = Heard(), Heard()
        pairs = [
            (
                EngineRequest(request_id=name, prompt_tokens=4, output_tokens=tokens, tail=(1, 2, 3, 4)),
                Sample(name, 0, 4, said(tokens), heard, Parent(1, 1)),
            )
            for name, tokens, heard in (("good", 1, good), ("bad", 5000, bad))
        ]
        with pytest.raises(BadInputError, match="maximum context length"):
            loop.submit(pairs)
        assert not loop.busy
        assert loop.stats.waiting == 0


def test_a_scale_of_nothing_is_refused() -> None:
    with pytest.raises(BadInputError, match="time scale 0"):
        EngineClock(LoopClock(), 0)


class Frames:
    """A stream that counts its writes."""

    def __init__(self) -> None:
        self.writes = 0

    def flush(self) -> None:
        self.writes += 1


def test_urgent_streams_are_written_with_their_step() -> None:
    outbox, urgent, other = Outbox(0.002), Frames(), Frames()
    outbox.send(10.0, 10.0)
    outbox.add(other, urgent=False)
    outbox.add(urgent, urgent=False)
    outbox.add(urgent, urgent=True)
    outbox.send_urgent()
    assert (urgent.writes, other.writes) == (1, 0)


def test_tokens_of_quick_steps_share_a_write_and_none_waits_longer_than_the_interval() -> None:
    outbox, stream = Outbox(0.002), Frames()
    for step in range(8):
        outbox.add(stream, urgent=False)
        outbox.send(10 + step * 0.0005, 10 + (step + 1) * 0.0005)
    assert stream.writes == 3


def test_an_idle_engine_holds_nothing_back() -> None:
    outbox, stream = Outbox(1.0), Frames()
    outbox.add(stream, urgent=False)
    outbox.send(0.0, float("inf"))
    assert stream.writes == 1
