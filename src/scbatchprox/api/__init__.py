"""The doors: BatchProx, refine, refine_file."""
