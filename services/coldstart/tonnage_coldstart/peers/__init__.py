"""Nodes help each other: one download a fleet, the rest from the nearest node, nothing unverified on the way."""
