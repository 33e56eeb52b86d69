"""Outside systems: the endpoints' HTTP servers and the endpoints file."""
