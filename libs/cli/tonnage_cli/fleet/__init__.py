"""The local fleet of `tonnage up`: which processes, on which ports, supervised, replayed, reported."""
