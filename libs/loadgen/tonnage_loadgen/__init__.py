"""Load generation: trace replay, open and closed loops, reports."""
