"""The bench service: load jobs with progress and stored results."""
