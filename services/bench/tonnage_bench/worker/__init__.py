"""The worker of the queue: `python -m tonnage_bench.worker.main`."""
