"""vLLM's HTTP API: request models, checks worded as vLLM's, answers and streams."""
