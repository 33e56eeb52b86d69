"""The dense peak a product of some storage format runs at."""

from tonnage_core.hardware.spec import GpuSpec
from tonnage_core.quantization.formats import WeightFormat


def peak_tflops(gpu: GpuSpec, stored: WeightFormat) -> float:
    """Dense peak of the precision the products run in; the next wider one where the GPU lacks it."""
    if stored.activation_bits > 16:
        return gpu.fp32_tflops or gpu.bf16_tflops
    eight = gpu.int8_tops if stored.name == "w8a8" else gpu.fp8_tflops
    if stored.activation_bits == 4:
        return gpu.fp4_tflops or eight or gpu.bf16_tflops
    if stored.activation_bits == 8:
        return eight or gpu.bf16_tflops
    return gpu.bf16_tflops
