"""Outside systems: the queue, the workers' way back to the service, the run's own process, the planner."""
