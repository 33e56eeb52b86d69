"""Probes: GPU microbenchmarks as plugins. Here only their names; a module is imported when its probe runs.

A plugin is one file with an object `probe` (see `probes.probe.Probe`) and a line in `PROBES`, or a package that
registers the entry point group `tonnage.probes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tonnage_gpu_agent.errors import UnknownProbeError

QUICK, FULL = "quick", "full"
SUITES = (QUICK, FULL)


@dataclass(frozen=True, slots=True)
class ProbeEntry:
    """A registered probe: its module, and whether the quick suite has it (the full suite has all)."""

    name: str
    module: str
    quick: bool
    summary: str


def _entry(name: str, quick: bool, summary: str) -> ProbeEntry:
    return ProbeEntry(name, f"{__name__}.{name}", quick, summary)


PROBES: tuple[ProbeEntry, ...] = (_entry("hbm_copy", True, "device memory copied to device memory"),)
"""In the order they run."""


def select(suite: str, only: Sequence[str] = (), entries: Sequence[ProbeEntry] = PROBES) -> list[ProbeEntry]:
    """The probes of a suite, or those named; `UnknownProbeError` lists the known ones."""
    known = {entry.name: entry for entry in entries}
    for name in only:
        if name not in known:
            raise UnknownProbeError(f"no probe {name!r}; known: {', '.join(sorted(known))}")
    if only:
        return [entry for entry in entries if entry.name in only]
    return [entry for entry in entries if entry.quick or suite == FULL]
