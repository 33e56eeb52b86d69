"""The router: prefix- and LoRA-aware, in front of vLLM and SGLang endpoints."""
