"""Hours of a trace through an autoscaled fleet: a lean engine, starts and drains, policies, an oracle, the score."""
