"""Known batch effects, added to ("planted in") the cells of one real batch."""

from .sets import (
    KINDS,
    Kind,
    Planted,
    displacement_error,
    knowing_types,
    plant,
    possible,
    relative_error,
    type_distance,
)

__all__ = [
    "KINDS",
    "Kind",
    "Planted",
    "displacement_error",
    "knowing_types",
    "plant",
    "possible",
    "relative_error",
    "type_distance",
]
