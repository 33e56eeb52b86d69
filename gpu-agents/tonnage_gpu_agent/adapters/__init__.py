"""Adapters of the GPU agent's ports: NVML, fakes, the kubelet, the kernel log."""
