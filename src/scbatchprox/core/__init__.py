"""The corridor: cells become Moments, Moments and a Target a Problem, its Solution an Adapter."""
