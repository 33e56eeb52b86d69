"""The tonnage command: the only package that imports several deployables."""
