"""Damaged files for every loader: each must be read correctly, or refused in one sentence."""
