"""The GPU agent: telemetry, probes and verdicts for every GPU of a node."""
