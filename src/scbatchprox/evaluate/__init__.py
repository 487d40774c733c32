"""Simulated data with known batch and cell-type structure, for evaluating refinements."""

from .compositions import COMPOSITIONS, Composition, get_composition
from .simulate import simulate

__all__ = ["COMPOSITIONS", "Composition", "get_composition", "simulate"]
