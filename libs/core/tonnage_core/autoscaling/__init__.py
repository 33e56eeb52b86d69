"""How many replicas a pool should have: what engines report, what it means, and the decision with its reasons.

Pure: `(state, observations, now) -> (state, target, reasons)`. The planner service scrapes and publishes.
"""
