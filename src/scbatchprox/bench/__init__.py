"""The paper's tables and figures: data sets, methods to compare with, experiments.

Only the command line imports this package.
"""
