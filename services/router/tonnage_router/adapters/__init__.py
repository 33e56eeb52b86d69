"""The outside: engines' own HTTP endpoints, files, Kubernetes, Redis."""
