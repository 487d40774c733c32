"""Fits over sites that cannot share cells: they publish masked numbers that add up to sums over all sites."""
