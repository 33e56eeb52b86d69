"""The console: three pages over what the planner sees and what the other parts say, read-only without a token."""
