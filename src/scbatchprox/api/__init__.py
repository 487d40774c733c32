"""What users call: BatchProx, refine, refine_file, diagnose."""
