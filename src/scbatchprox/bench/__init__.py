"""The paper's tables and figures: data sets, methods to compare with, experiments.

The command line runs it; no other part imports it.
"""
