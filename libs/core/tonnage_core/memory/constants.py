"""The fitted constants: what no tensor's size explains. Everything else in `memory` is arithmetic.

Each is fitted on published boot logs (rows of the truth file named below), and `memory.leave_out` refits them without a
model to show how far they carry.
"""

from dataclasses import dataclass

from tonnage_core.units import MIB


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """Constants in use.

    `activation_fixed`: bytes of the matrix library's workspace (32 MiB) and the runner's input buffers: the median of
    what the named tensors leave on the dense boots of vLLM 0.19.0 (LDP002 to LDP074: 42 to 61 MiB).
    `graph_*`: GiB, GiB a layer and GiB a chosen expert of an expert layer, least relative squares over the 24 boots of
    vLLM 0.19.0 with a logged graph pool. `graph_transient`: share of the forward peak that releases from 0.26 book as
    graph memory on recurrent layers, from the pools of vllm#52872 (0.89 and 0.52 GiB at 8,192 and 4,096 tokens).
    `non_torch`, `non_torch_group`: GiB that replace the release's own when set.
    """

    activation_fixed: float = 52 * MIB
    graph_base: float = 0.307
    graph_layer: float = 0.0160
    graph_choice: float = 0.00433
    graph_transient: float = 0.5
    non_torch: float | None = None
    non_torch_group: float | None = None


FITTED = FittedConstants()
