"""The fetch: parallel ranges, each checked, written and journaled."""
