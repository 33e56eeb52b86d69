"""The limit of open files: one socket is one file, and a process begins with a soft limit of often 1024."""

import contextlib
import resource


def raise_open_file_limit() -> None:
    """Take all that the system allows without asking (the hard limit); a refusal changes nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
