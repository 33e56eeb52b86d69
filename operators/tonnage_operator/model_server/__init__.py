"""ModelServer: one model served by replicas of an engine, and everything a cluster needs for it."""
