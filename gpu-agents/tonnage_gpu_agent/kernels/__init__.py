"""Triton kernels: the ones whose speed decides how fast an LLM is served, and streams that measure memory."""
