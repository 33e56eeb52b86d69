"""Models as data: layers, weight inventory and what each layer caches, read from a published config.json."""

from tonnage_core.models.config import shape_from_config
from tonnage_core.models.fields import ConfigError, UnknownArchitectureError
from tonnage_core.models.shape import ModelShape

__all__ = ["ConfigError", "ModelShape", "UnknownArchitectureError", "shape_from_config"]
