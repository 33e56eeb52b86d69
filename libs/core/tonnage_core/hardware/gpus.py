"""GPU facts: vendor data sheets, dense figures, memory as CUDA reports it. A row's source stands in its last field.

Order of the figures: memory GiB, HBM GB/s, bf16, fp8, int8, fp4 and fp32 TFLOPS, NVLink GB/s, PCIe GB/s, watts.
"""

from tonnage_core.hardware.spec import GpuSpec

# fmt: off
GPUS: tuple[GpuSpec, ...] = (
    GpuSpec(
        "H100-SXM-80GB",
        ("H100", "H100-80GB", "H100-SXM", "H100-SXM5", "h100_sxm", "NVIDIA H100 80GB HBM3",
         "NVIDIA-H100-80GB-HBM3"),
        79.19, 3350, 989, 1979, 1979, None, 67, 450, 64, 700,
        "NVIDIA data sheet H100 SXM; memory as CUDA reports it (boot logs)",
    ),
    GpuSpec(
        "H200-SXM-141GB",
        ("H200", "H200-SXM", "H200-141GB", "h200_sxm", "NVIDIA H200"),
        139.8, 4800, 989, 1979, 1979, None, 67, 450, 64, 700,
        "NVIDIA data sheet H200 SXM; memory as CUDA reports it",
    ),
    GpuSpec(
        "H800",
        ("H800-SXM", "H800-SXM-80GB", "NVIDIA H800"),
        79.19, 3350, 989, 1979, 1979, None, 67, 200, 64, 700,
        "H100 SXM silicon with NVLink at 400 GB/s in total",
    ),
    GpuSpec(
        "H20",
        ("H20-96GB", "H20-SXM-96GB", "NVIDIA H20"),
        95.58, 4000, 148, 296, 296, None, 44, 450, 64, 400,
        "published H20 figures (no public NVIDIA data sheet)",
    ),
    GpuSpec(
        "H20-141GB",
        ("H20-3e", "NVIDIA H20-3e"),
        139.8, 4800, 148, 296, 296, None, 44, 450, 64, 400,
        "published H20-3e figures (no public NVIDIA data sheet)",
    ),
    GpuSpec(
        "GH200",
        ("GH200-96GB", "GH200-480GB", "NVIDIA GH200 480GB"),
        95, 4000, 989, 1979, 1979, None, 67, 450, 450, 1000,
        "NVIDIA data sheet GH200 (96 GB HBM3); pcie column = NVLink-C2C to the CPU",
    ),
    GpuSpec(
        "B200-SXM-180GB",
        ("B200", "B200-SXM", "B200-180GB", "b200_sxm", "NVIDIA B200"),
        178.35, 8000, 2250, 4500, 4500, 9000, 75, 900, 64, 1000,
        "NVIDIA data sheet HGX/DGX B200; memory as CUDA reports it",
    ),
    GpuSpec(
        "B300",
        ("B300-SXM", "B300-SXM-288GB", "b300_sxm", "NVIDIA B300 SXM6 AC"),
        268.6, 8000, 2250, 4500, 154, 14000, 75, 900, 128, 1100,
        "NVIDIA data sheet HGX B300",
    ),
    GpuSpec(
        "GB200",
        ("GB200-NVL72", "NVIDIA GB200"),
        185, 8000, 2500, 5000, 5000, 10000, 80, 900, 450, 1200,
        "NVIDIA data sheet GB200 NVL72, per GPU; pcie column = NVLink-C2C",
    ),
    GpuSpec(
        "GB300",
        ("GB300-NVL72", "NVIDIA GB300"),
        277.5, 8000, 2500, 5000, 165, 15000, 80, 900, 450, 1400,
        "NVIDIA data sheet GB300 NVL72, per GPU; pcie column = NVLink-C2C",
    ),
    GpuSpec(
        "A100-SXM-80GB",
        ("A100", "A100-80GB", "A100-SXM", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        79.25, 2039, 312, None, 624, None, 19.5, 300, 32, 400,
        "NVIDIA data sheet A100 SXM",
    ),
    GpuSpec(
        "A100-SXM-40GB",
        ("A100-40GB", "A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        39.39, 1555, 312, None, 624, None, 19.5, 300, 32, 400,
        "NVIDIA data sheet A100 SXM",
    ),
    GpuSpec(
        "A10",
        ("A10-24GB", "A10G", "NVIDIA A10", "NVIDIA A10G"),
        22.07, 600, 125, None, 250, None, 31.2, None, 32, 150,
        "NVIDIA data sheet A10",
    ),
    GpuSpec(
        "L4",
        ("L4-24GB", "NVIDIA L4"),
        22.05, 300, 121, 242, 242, None, 30.3, None, 32, 72,
        "NVIDIA data sheet L4",
    ),
    GpuSpec(
        "L40S",
        ("L40S-48GB", "NVIDIA L40S"),
        44.4, 864, 362, 733, 733, None, 91.6, None, 32, 350,
        "NVIDIA data sheet L40S",
    ),
    GpuSpec(
        "T4",
        ("T4-16GB", "Tesla T4", "Tesla-T4", "NVIDIA T4"),
        14.58, 320, 65, None, 130, None, 8.1, None, 16, 70,
        "NVIDIA data sheet T4; fp16 figure, no bf16 units",
    ),
    GpuSpec(
        "RTX-A4000",
        ("RTX A4000", "A4000", "RTX-A4000-16GB", "NVIDIA RTX A4000"),
        15.7, 448, 76.7, None, 153, None, 19.2, None, 32, 140,
        "NVIDIA data sheet RTX A4000",
    ),
    GpuSpec(
        "RTX-A6000",
        ("RTX A6000", "A6000", "RTX-A6000-48GB", "NVIDIA RTX A6000"),
        47.53, 768, 155, None, 310, None, 38.7, 56, 32, 300,
        "NVIDIA data sheet RTX A6000",
    ),
    GpuSpec(
        "RTX-6000-Ada",
        ("RTX 6000 Ada", "RTX-6000-Ada-48GB", "NVIDIA RTX 6000 Ada Generation"),
        47.5, 960, 364, 729, 729, None, 91.1, None, 32, 300,
        "NVIDIA data sheet RTX 6000 Ada",
    ),
    GpuSpec(
        "RTX-PRO-6000-Blackwell",
        ("RTX PRO 6000", "RTX-PRO-6000", "RTX PRO 6000 Blackwell", "RTX-PRO-6000-96GB",
         "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        94.97, 1792, 504, 1008, 1008, 2015, 126, None, 64, 600,
        "NVIDIA RTX Blackwell PRO architecture paper",
    ),
    GpuSpec(
        "RTX-3090",
        ("RTX 3090", "3090", "RTX-3090-24GB", "NVIDIA GeForce RTX 3090"),
        23.58, 936, 71, None, 284, None, 35.6, 56, 32, 350,
        "NVIDIA GA102 architecture paper; bf16 with fp32 accumulate",
    ),
    GpuSpec(
        "RTX-4060",
        ("RTX 4060", "4060", "RTX-4060-8GB", "NVIDIA GeForce RTX 4060"),
        8, 272, 30, 60, 121, None, 15.1, None, 16, 115,
        "NVIDIA Ada architecture paper, scaled by units and clock; fp32 accumulate",
    ),
    GpuSpec(
        "RTX-4090",
        ("RTX 4090", "4090", "RTX-4090-24GB", "NVIDIA GeForce RTX 4090"),
        23.52, 1008, 165, 330, 661, None, 82.6, None, 32, 450,
        "NVIDIA Ada architecture paper; bf16 and fp8 with fp32 accumulate",
    ),
    GpuSpec(
        "RTX-5070-Ti",
        ("RTX 5070 Ti", "5070 Ti", "NVIDIA GeForce RTX 5070 Ti"),
        15.5, 896, 88, 176, 352, 703, 43.9, None, 64, 300,
        "NVIDIA RTX Blackwell architecture paper, scaled; fp32 accumulate",
    ),
    GpuSpec(
        "RTX-5090",
        ("RTX 5090", "5090", "RTX-5090-32GB", "RTX 5090D", "NVIDIA GeForce RTX 5090"),
        31.36, 1792, 210, 419, 838, 1676, 105, None, 64, 575,
        "NVIDIA RTX Blackwell architecture paper; bf16 and fp8 with fp32 accumulate",
    ),
    GpuSpec(
        "GB10",
        ("DGX Spark", "GB10-128GB", "NVIDIA GB10"),
        119.7, 273, 125, 250, 250, 500, 31, None, None, 140,
        "NVIDIA DGX Spark page (1 PFLOPS sparse FP4), lower precisions halved; unified memory",
    ),
)
# fmt: on
