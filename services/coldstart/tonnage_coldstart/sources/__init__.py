"""Sources behind one port: where weights come from."""
