"""A discrete-event model of a vLLM-class inference engine: pure, deterministic, quick."""
