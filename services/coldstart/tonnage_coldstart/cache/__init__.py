"""The node cache: a snapshot is there whole and verified, or not there at all."""
