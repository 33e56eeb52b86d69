"""Weight formats, quantisation configs and which projection they reach."""
