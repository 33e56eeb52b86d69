"""Traces of requests: the context in headers, which requests are sampled, and spans as collectors read them."""
