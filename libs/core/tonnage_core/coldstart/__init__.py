"""Cold start, decided in pure code: what to fetch, in which ranges, what the cache keeps, what each phase took."""
