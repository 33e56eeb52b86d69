"""The limit of request bodies, shared by the services."""

from tonnage_runtime.body_limit import BodyLimit, BodyTooLargeError

__all__ = ["BodyLimit", "BodyTooLargeError"]
