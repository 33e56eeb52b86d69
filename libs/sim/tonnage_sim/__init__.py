"""The simulated engine: vLLM's HTTP API and metrics over the engine model in core."""
