"""The operator's ways to the cluster, the engines, the planner and the cold-start services."""
