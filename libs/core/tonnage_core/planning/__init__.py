"""Plans: which GPUs, how many, set up how, to serve a traffic within an SLO at the least cost, and why."""
