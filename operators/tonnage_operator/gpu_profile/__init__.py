"""GpuProfile: what the operator makes of the agents' verdicts on nodes."""
