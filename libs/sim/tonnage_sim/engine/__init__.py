"""The engine model run in real time: its clock, its loop, what it generates, what it counts."""
