"""LoraAdapter: an adapter that is loaded into some replicas of a ModelServer, and follows them."""
