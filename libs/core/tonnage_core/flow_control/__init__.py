"""Admission, fairness, budgets and breakers: pure, with `now` (monotonic seconds) as an argument."""
