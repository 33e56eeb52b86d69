"""RFC 3339 times as objects carry them."""

from datetime import UTC, datetime


def stamp(seconds: float) -> str:
    """Seconds since the epoch, UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float | None:
    """Seconds since the epoch; None for no time, or one that cannot be read."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None
