"""The report of an AnnData or of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..api.anndata import check_options
from ..api.estimator import BatchProx
from ..cells.keys import as_names
from ..choices import Views
from ..core.checks import one_of
from ..diagnosis.table import sample_sizes
from ..errors import BadValue, MissingExtra
from ..io.atomic import check_place, replacing
from ..kernels.arrays import Ints
from ..options import takes_options
from ..progress import Progress, silent
from ..targets.method import target_of

if TYPE_CHECKING:
    import anndata as ad
    import mudata

__all__ = ["report"]


@takes_options
def report(
    data: ad.AnnData | mudata.MuData | str | Path,
    batch_key: str | Sequence[str],
    *,
    label_key: str | None = None,
    keep: str | Sequence[str] | None = None,
    use_rep: str | None = None,
    key_added: str | None = None,
    out: str | Path | None = None,
    labels: str | Path | None = None,
    population_key: str | None = None,
    view: str = "auto",
    seed: int = 0,
    progress: Progress = silent,
    call: str | None = None,
    **params: Any,
) -> str | Path:
    """Show what a refinement does to each batch, in one HTML file that can be sent to others.

    If the data have a refined embedding with its record, as :func:`scbatchprox.refine` writes them, this is
    shown. Otherwise the cells are refined for the report. The data are never changed.

    Parameters
    ----------
    data
        An AnnData or MuData, or the path of a file that :func:`scbatchprox.refine_file` can refine. A file is
        read in parts.
    batch_key
        Column with the batch of each cell; several columns mean their combination.
    label_key
        Column with the type of each cell, for colours, compositions and scores.
    keep
        Columns whose differences should survive (condition, tissue): the report says whether they can be
        told apart from the batches.
    use_rep, key_added
        Names of the unrefined and the refined embedding. By default those of the record that
        :func:`scbatchprox.refine` wrote to an AnnData, if ``key_added`` is its name, or if there is no
        ``X_pca`` and only one record; otherwise ``X_pca``.
    out
        Path of the report, an ``.html`` file. Without it the HTML is returned.
    labels
        A second file with the labels, for a file without.
    population_key
        Column with the population of each cell, as for :func:`scbatchprox.refine`.
    view
        ``"umap"``, ``"pca"``, or ``"auto"``: the UMAPs ``X_umap`` and ``X_umap_batchprox`` of the data if
        both are there, else a UMAP of a sample if umap-learn is installed, else two principal axes.
    seed
        Seed of the samples.
    progress
        Called after every chunk of rows of a file, and when cells are scored and drawn.
    call
        What the report says that it was made by.
    params
        Parameters of the :class:`scbatchprox.BatchProx` to fit. With any of them, or with populations, a
        stored refined embedding is not used.

    Returns
    -------
    ``out`` as a path, or the HTML.

    Examples
    --------
    >>> import anndata as ad
    >>> import numpy as np
    >>> import pandas as pd
    >>> from scbatchprox import report
    >>> rng = np.random.default_rng(0)
    >>> obs = pd.DataFrame({"batch": np.repeat(["a", "b"], 150)}, index=[str(i) for i in range(300)])
    >>> adata = ad.AnnData(obs=obs, obsm={"X_pca": rng.normal(size=(300, 5))})
    >>> page = report(adata, "batch", view="pca")
    >>> "</html>" in page
    True
    """
    check_options(params, report)
    one_of("view", view, tuple(Views))
    if out is not None:
        out = _checked(Path(out))
    _check_installed()
    # Imported when they are used: the scores need scikit-learn's classifiers.
    from .contents import gather
    from .page import page
    from .source import opened

    kept = as_names(keep)
    named = (label_key, population_key, *kept)
    columns = list(dict.fromkeys(name for name in named if name is not None))
    rule = target_of(BatchProx(**params).target)

    def sizes(n_cells: Ints) -> Ints | None:
        return sample_sizes(rule, True, n_cells)

    with opened(data, batch_key, columns, use_rep, key_added, labels, progress, sizes) as source:
        options = {"label_key": label_key, "keep": kept, "population_key": population_key} | params
        facts = gather(
            source, batch_key, label_key, kept, params, population=population_key, view=view,
            seed=seed, call=call or _call(source.name, batch_key, options), progress=progress,
        )  # fmt: skip
    html = page(facts)
    if out is None:
        return html
    with replacing(out) as temporary:
        temporary.write_text(html, encoding="utf-8")
    return out


def _checked(out: Path) -> Path:
    """Check the place of the report before the cells are read."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise BadValue(f"Expected a report that ends in .html, found {out.name!r}.")
    check_place(out)
    if not out.resolve().parent.is_dir():
        raise BadValue(f"Expected a folder for the report, found none at {out.parent}.")
    return out


def _check_installed() -> None:
    try:
        import bokeh  # noqa: F401
    except ImportError:
        raise MissingExtra("bokeh to make a report with", "report") from None


def _call(name: str, batch_key: Any, options: dict[str, Any]) -> str:
    """Return the call in Python, as far as it changes what is shown."""
    what = repr(name) if "." in name else "adata"
    given = [f"{key}={value!r}" for key, value in options.items() if value]
    return f"scbatchprox.report({', '.join([what, repr(batch_key), *given])})"
