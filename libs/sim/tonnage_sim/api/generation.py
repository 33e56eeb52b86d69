"""From checked prompts to samples in the engine."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from tonnage_core.engine.errors import EngineError
from tonnage_core.engine.types import EngineRequest, OutputToken
from tonnage_core.prefix_index.block_hash import chain, hash_bytes, seed_hash
from tonnage_sim.engine.loop import EngineLoop
from tonnage_sim.engine.output import LengthDraw, Output, StopRules, draw_output
from tonnage_sim.engine.sample import Parent, Sample, Sink
from tonnage_sim.errors import ApiError

_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Ask:
    """What to generate for one prompt."""

    prompt: Sequence[int]
    rules: StopRules
    n: int = 1
    adapter: str | None = None
    salt: str | None = None
    seed: int | None = None
    priority: int = 0


class Generator:
    """Makes samples and their engine requests; as in vLLM, `n` samples are `n` requests that share prompt blocks."""

    def __init__(
        self,
        loop: EngineLoop,
        *,
        model: str,
        block_size: int,
        seed: int,
        lengths: LengthDraw,
        keep_prompts: bool = False,
    ) -> None:
        self._loop = loop
        self._model = model
        self._block_bytes = block_size * _TOKEN_BYTES
        self.block_size = block_size
        self._seed = str(seed).encode()
        self._lengths = lengths
        self._ids = count()
        self._keep_prompts = keep_prompts

    def prepare(self, asks: Sequence[Ask], sink: Sink) -> list[tuple[EngineRequest, Sample]]:
        """The samples of every prompt, in the order of their choices; nothing is queued yet."""
        made: list[tuple[EngineRequest, Sample]] = []
        for ask in asks:
            made += self._samples(ask, sink, len(made))
        return made

    def submit(self, prepared: Sequence[tuple[EngineRequest, Sample]]) -> None:
        """Queue prepared samples; raises `ApiError` when the engine refuses them."""
        try:
            self._loop.submit(prepared)
        except EngineError as error:
            raise ApiError(str(error)) from error

    def abort(self, prepared: Sequence[tuple[EngineRequest, Sample]]) -> None:
        """Drop what of `prepared` is still in the engine."""
        self._loop.abort(sample.request_id for _, sample in prepared)

    def block_keys(self, ask: Ask) -> tuple[bytes, ...]:
        """Chained keys of the full blocks of its prompt."""
        seed = seed_hash(self._model, ask.adapter, ask.salt)
        return tuple(hash_bytes(seed, array("I", ask.prompt).tobytes(), self._block_bytes))

    def _samples(self, ask: Ask, sink: Sink, first_index: int) -> list[tuple[EngineRequest, Sample]]:
        ids = ask.prompt if isinstance(ask.prompt, array) else array("I", ask.prompt)
        packed = ids.tobytes()
        seed = seed_hash(self._model, ask.adapter, ask.salt)
        hashes = tuple(hash_bytes(seed, packed, self._block_bytes))
        tail = tuple(ask.prompt[len(hashes) * self.block_size :])
        key = chain(chain(seed, packed), self._seed + b":" + str(ask.seed).encode())
        parent = Parent(ask.n, unfinished=ask.n)
        made = []
        for number in range(ask.n):
            output = draw_output(key, number, ask.rules, self._lengths)
            request_id = str(next(self._ids))
            request = EngineRequest(
                request_id=request_id,
                prompt_tokens=len(ask.prompt),
                block_hashes=hashes,
                tail=tail,
                output_tokens=output.length,
                finish_reason=output.finish_reason,
                priority=ask.priority,
                adapter=ask.adapter,
                salt=ask.salt,
                output_token=_teller(output),
            )
            sample = Sample(
                request_id=request_id,
                index=first_index + number,
                prompt_tokens=len(ask.prompt),
                output=output,
                sink=sink,
                parent=parent,
                adapter=ask.adapter,
                max_tokens=ask.rules.max_tokens,
                salt=ask.salt,
                prompt=ids if self._keep_prompts else (),
            )
            made.append((request, sample))
        return made


def _teller(output: Output) -> OutputToken:
    def tell(_: int, index: int) -> int:
        return output.token_ids[index]

    return tell
