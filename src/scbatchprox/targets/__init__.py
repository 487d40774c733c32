"""Targets: where batches should go."""
