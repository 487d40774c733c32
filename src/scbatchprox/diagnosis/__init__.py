"""The diagnosis: the effect of a refinement on each batch, with a verdict in words."""

from .verdict import Level

__all__ = ["Level"]
