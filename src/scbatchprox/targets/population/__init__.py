"""The population target: batches registered to a consensus."""
