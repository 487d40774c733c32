"""Batch effects whose truth is known, planted in cells of one real batch."""

from .sets import KINDS, Kind, Planted, displacement_error, plant, possible, type_distance

__all__ = [
    "KINDS",
    "Kind",
    "Planted",
    "displacement_error",
    "plant",
    "possible",
    "type_distance",
]
