"""The drafter: its checkpoint, its layers, its memory of the context."""

from .cache import DrafterCache
from .checkpoint import load_drafter
from .config import DrafterConfig
from .model import Drafter

__all__ = ["Drafter", "DrafterCache", "DrafterConfig", "load_drafter"]
