"""The paper's tables and figures, and ours: data sets, methods to compare with, planted effects, experiments.

Run them from a checkout, ``pip install -e '.[bench]'``: ``python -m research --help``. The installed package
has none of this, and does not import it.
"""
