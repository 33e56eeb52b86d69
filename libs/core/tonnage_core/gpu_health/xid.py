"""XID codes by whom they blame. Source: NVIDIA's XID catalogue (docs.nvidia.com, "XID Errors") and the lists that
public node monitors act on (k8s-device-plugin's skipped list, eks-node-monitoring-agent, azurehpc-health-checks)."""

import re
from dataclasses import dataclass
from enum import StrEnum


class XidClass(StrEnum):
    """`application`: a program's fault, not counted; `hardware`: the GPU's; `suspect`: either; `unlisted`: neither."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    SUSPECT = "suspect"
    UNLISTED = "unlisted"


APPLICATION = frozenset({6, 8, 11, 12, 13, 25, 31, 32, 43, 45, 68, 69, 109, 126})
HARDWARE = frozenset({46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158})
SUSPECT = frozenset({38, 56, 57, 58, 61, 63, 65, 73, 80, 81, 92, 94, 121, 137, 144, 145, 146, 147, 148, 149, 150, 154})


@dataclass(frozen=True, slots=True)
class XidPolicy:
    """An operator's own lists, before the catalogue's: codes that never count, and codes that fail the GPU."""

    ignored: frozenset[int] = frozenset()
    hardware: frozenset[int] = frozenset()

    def classify(self, code: int) -> XidClass:
        """The class of a code under this policy."""
        if code in self.ignored:
            return XidClass.APPLICATION
        return XidClass.HARDWARE if code in self.hardware else classify(code)


def classify(code: int) -> XidClass:
    """The class of an XID code."""
    if code in APPLICATION:
        return XidClass.APPLICATION
    if code in HARDWARE:
        return XidClass.HARDWARE
    return XidClass.SUSPECT if code in SUSPECT else XidClass.UNLISTED


def label(code: int) -> str:
    """A metric label from a closed set: the code when it is listed, else `other`."""
    return "other" if classify(code) is XidClass.UNLISTED else str(code)


_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)")


def parse_kernel_line(line: str) -> tuple[str, int] | None:
    """The PCI address (`0000:3b:00`, lower case, no function) and the code of a kernel log line, or None."""
    found = _LINE.search(line)
    if found is None:
        return None
    return pci_key(found.group(1)), int(found.group(2))


def pci_key(address: str) -> str:
    """A PCI address as `dddd:bb:dd`: NVML writes an eight-digit domain and a function, the kernel does not."""
    parts = address.lower().split(".")[0].split(":")
    if len(parts) < 3:
        parts = ["0", *parts]
    return f"{int(parts[0], 16):04x}:{int(parts[1], 16):02x}:{int(parts[2], 16):02x}"
