"""Fits over sites that cannot share cells: only sums over all sites are ever known."""
