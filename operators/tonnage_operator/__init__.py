"""The operators: one folder per custom resource."""
