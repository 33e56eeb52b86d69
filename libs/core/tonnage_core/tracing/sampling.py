"""Which requests are traced: the samplers of OpenTelemetry, by their standard names."""

from dataclasses import dataclass
from enum import StrEnum

from tonnage_core.tracing.context import TraceContext

_LOW = (1 << 64) - 1


class Rule(StrEnum):
    """`parentbased_*` do as the caller did, and what follows for a request that begins a trace."""

    ALWAYS_ON = "always_on"
    ALWAYS_OFF = "always_off"
    TRACEIDRATIO = "traceidratio"
    PARENTBASED_ALWAYS_ON = "parentbased_always_on"
    PARENTBASED_ALWAYS_OFF = "parentbased_always_off"
    PARENTBASED_TRACEIDRATIO = "parentbased_traceidratio"


@dataclass(frozen=True, slots=True)
class Sampler:
    """A rule; `ratio`, 0 to 1, is of traces, for the two rules that have one."""

    rule: Rule
    ratio: float = 1.0

    def samples(self, trace_id: int, caller: TraceContext | None) -> bool:
        """Whether to record. By the lower 8 bytes of the trace id, as OpenTelemetry's SDKs do: parts with one ratio
        agree on a trace, and those with a higher ratio record what those with a lower one do."""
        rule = self.rule
        if caller is not None and rule.startswith("parentbased"):
            return caller.sampled
        if rule.endswith("traceidratio"):
            return trace_id & _LOW < round(self.ratio * (_LOW + 1))
        return rule.endswith("always_on")
