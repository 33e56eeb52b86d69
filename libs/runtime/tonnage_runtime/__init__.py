"""Shared I/O for every deployable: settings, logging, metrics, HTTP, stores, Kubernetes, clock."""
