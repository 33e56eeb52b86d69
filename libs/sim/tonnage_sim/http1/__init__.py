"""A small HTTP/1.1 server: llhttp parsing, keep-alive, and streams that the engine's step writes to without a task."""
