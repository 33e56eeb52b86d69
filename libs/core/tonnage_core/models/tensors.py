"""The weight inventory: every tensor of a layer with its shape and with how parallel ranks split it."""

from dataclasses import dataclass
from enum import Enum


class Split(Enum):
    """How tensor and expert parallelism divide a tensor."""

    NONE = "none"
    """Every rank holds it whole."""
    ROWS = "rows"
    """Output rows over the tensor-parallel ranks."""
    COLUMNS = "columns"
    """Input columns over the tensor-parallel ranks."""
    HEADS = "heads"
    """Whole heads over the ranks; with fewer heads than ranks each rank keeps one."""
    VOCABULARY = "vocabulary"
    """Rows padded to a multiple of 64, then over the ranks."""
    EXPERT_ROWS = "expert_rows"
    """Copies over expert-parallel ranks, rows over the tensor-parallel ranks that remain."""
    EXPERT_COLUMNS = "expert_columns"
    """Copies over expert-parallel ranks, columns over the tensor-parallel ranks that remain."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight of `rows` x `columns` elements, `copies` times (experts).

    `linear`: a projection that quantisation may store in fewer bits; other tensors keep `element_bytes`, or the model's
    dtype when that is None. `unit`: rows of one head for `Split.HEADS`. `derived`: made while loading (absorbed
    projections), in memory but not a parameter.
    """

    name: str
    rows: int
    columns: int = 1
    copies: int = 1
    split: Split = Split.NONE
    unit: int = 1
    linear: bool = True
    element_bytes: int | None = None
    derived: bool = False

    @property
    def parameters(self) -> int:
        """Elements over all copies; derived tensors count none."""
        return 0 if self.derived else self.rows * self.columns * self.copies


def vector(name: str, rows: int, split: Split = Split.NONE, unit: int = 1, element_bytes: int | None = None) -> Tensor:
    """A bias, norm or gain: never quantised."""
    return Tensor(name, rows, split=split, unit=unit, linear=False, element_bytes=element_bytes)
