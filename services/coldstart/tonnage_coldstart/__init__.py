"""The cold-start service: weights staged into a verified node cache and onto the GPU."""
