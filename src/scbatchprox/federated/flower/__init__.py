"""Flower as a courier: it carries signed files between sites, and never looks inside.

Of this package, only what Flower needs is imported here: no arrays, no cells, no keys of a study.
"""
