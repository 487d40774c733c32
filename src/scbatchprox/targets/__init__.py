"""Targets: the positions that batches are moved to."""
