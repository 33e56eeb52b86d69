"""Prefix caches seen from outside: block hash chains, and an index of which endpoint holds which blocks."""
