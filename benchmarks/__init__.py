"""Benchmarks of speed and memory, as ratios measured in one run: ratios vary less than times."""
