"""How a model is spread over GPUs: tensor, pipeline, expert and data parallel sizes, and what each rank keeps."""

from dataclasses import dataclass

from tonnage_core.errors import BadInputError


class LayoutError(BadInputError):
    """Parallel sizes that an engine refuses for this model."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes. `tp` is that of attention, `dp` the data-parallel size of attention; GPUs = tp x pp x dp.

    Experts are split over `ep` ranks and the remaining tp x dp / ep ranks split each expert.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "dp"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
                raise LayoutError(f"{name} is {str(value)[:40]}; it must be a whole number from 1 to 4096")
        if (self.tp * self.dp) % self.ep:
            raise LayoutError(f"ep {self.ep} does not divide tp x dp = {self.tp * self.dp}; use a divisor of it")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that split one expert."""
        return self.tp * self.dp // self.ep


def pipeline_stages(layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage as vLLM cuts them: what does not divide goes to the stages before the last.

    Source: vLLM `distributed/utils.py` get_pp_indices (Apache-2.0), facts only.
    """
    if pp > layers:
        raise LayoutError(f"pp {pp} is more than the model's {layers} layers; use at most {layers}")
    stages = [layers // pp] * pp
    for index in range(2, layers % pp + 2):
        stages[-index] += 1
    return tuple(stages)


def local_heads(heads: int, tp: int) -> int:
    """Heads on one rank; with fewer heads than ranks each rank keeps a copy of one."""
    return max(1, heads // tp)
