"""The pure part of the bench: arrivals, workloads, statistics of a run, the capacity search, the accuracy gate."""
