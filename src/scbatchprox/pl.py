"""Pictures of a refinement (extra ``report``): what cells, batches, scores and atlases look like.

Every function takes what you have at hand: an AnnData that :func:`scbatchprox.refine` wrote to, a fitted
:class:`scbatchprox.BatchProx`, or a table. It takes ``ax=``, ``show=`` and ``save=``, and returns axes.
"""

from .plots.atlas import atlas
from .plots.before_after import before_after
from .plots.refinement import adapter, diagnosis, history, movement
from .plots.scores import scores

__all__ = ["adapter", "atlas", "before_after", "diagnosis", "history", "movement", "scores"]
