"""What a site does with its counts for a plan: choose genes, or fit a PCA, with all other sites."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadValue, Parameter
from ..progress import Progress, silent
from ..upstream.components import N_HVGS
from ..upstream.counts import Counts
from ..upstream.on_disk import open_counts
from ..upstream.pca import PCAUpstream
from .kinds.genes import VariableGenes, gene_list, genes
from .kinds.pca import SharedPCA, check_published, pca
from .ledger import Own
from .messages import Message
from .plan import MIN_CELLS, Plan
from .rounds import Kind
from .site import Site, Waiting

__all__ = ["CountsFile", "contribute_counts", "counts_parameters", "shared_upstream"]


@dataclass(frozen=True)
class CountsFile:
    """A file with the counts of a site."""

    path: Path
    batch_key: str | Sequence[str] | None = None
    layer: str | None = None
    fractional: bool = False


def counts_parameters(
    names: Sequence[str],
    *,
    n_hvgs: int = N_HVGS,
    n_components: int | None = None,
    min_cells: int = MIN_CELLS,
) -> dict[str, Any]:
    """The parameters of a plan for genes, or for a PCA of ``n_components`` coordinates.

    ``names`` is a public list of genes, which all sites have.
    """
    found: dict[str, Any] = {
        "genes": gene_list(names).tolist(),
        "n_hvgs": n_hvgs,
        "min_cells": min_cells,
    }
    return found if n_components is None else found | {"n_components": n_components}


def contribute_counts(
    site: Site,
    plan: Plan,
    file: CountsFile,
    *,
    confirmed: str | None = None,
    min_cells: int | None = None,
    permitted: bool = False,
    progress: Progress = silent,
    wait: Callable[[Waiting], bool] = lambda _: False,
) -> VariableGenes | SharedPCA | Waiting:
    """Answer the rounds of a plan with the counts of a file; return the result if all are known.

    ``min_cells`` is the least number of cells in a batch, and of cells with a gene: by default what the plan
    says, and at least 20. The other parameters are those of :meth:`Site.run`.
    """
    if plan.kind not in ("genes", "pca"):
        raise BadValue(f"Expected a plan for counts, found plan {plan.id} for {plan.kind}.")
    site.check(plan, confirmed)  # before any count is read
    with open_counts(
        file.path, layer=file.layer, batch_key=file.batch_key, fractional=file.fractional
    ) as counts:
        batch = np.full(counts.n_cells, "all") if counts.batch is None else counts.batch
        sizes = pd.Series(batch).astype(str).value_counts().sort_index()
        # The bytes of an answer are in the ledger, so counts are not read once more to recognise them.
        own = Own.of(sizes.index.tolist(), sizes.to_numpy())
        least = max(MIN_CELLS, _number(plan, "min_cells")) if min_cells is None else min_cells
        if sizes.min() < least:
            site.tell(plan, "cells")  # others learn that, and no more
            raise BadValue(
                f"Expected at least {least} cells in every batch, found {sizes.min()} in "
                f"{sizes.idxmin()!r}: leave this batch out, or lower ", Parameter("min_cells"), ".",
            )  # fmt: skip
        return site.run(
            plan,
            _kind(plan, counts, least, progress),
            own,
            confirmed=confirmed,
            permitted=permitted,
            progress=progress,
            wait=wait,
        )


def shared_upstream(site: Site, plan: Plan, found: SharedPCA) -> PCAUpstream | Waiting:
    """The PCA of a plan in the form that all sites use, so that they have one fingerprint.

    The last digits of eigenvectors differ between machines. So the first site of the plan publishes what it
    has computed, and the others use it after they have compared it with their own.
    """
    publisher = plan.members[0]
    place = f"results/{plan.id}/{publisher.site}.result"
    expected = {"type": "result", "site": publisher.site, "plan": plan.hash}
    if site.name == publisher.site and site.folder.find(place) is None:
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder) / "pca.safetensors"
            found.upstream.save(saved)
            message = Message.signed(site.keys.signing, expected, saved.read_bytes())
        site.folder.publish(place, message)
    path = site.folder.find(place)
    if path is None:
        return Waiting(-1, (publisher.site,))
    message = Message.read(path).check(bytes.fromhex(publisher.signing), path, **expected)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "pca.safetensors"
        copy.write_bytes(message.body)
        published = PCAUpstream.load(copy)
    check_published(found.upstream, published)
    return published


def _kind(
    plan: Plan, counts: Counts, min_cells: int, progress: Progress
) -> Kind[VariableGenes] | Kind[SharedPCA]:
    names, n_hvgs = plan.parameters.get("genes"), _number(plan, "n_hvgs")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _unknown(plan)
    listed = np.array(names, dtype=object)
    if plan.kind == "genes":
        return partial(genes, counts, listed, n_hvgs=n_hvgs, min_cells=min_cells, progress=progress)
    return partial(
        pca,
        counts,
        listed,
        n_components=_number(plan, "n_components"),
        n_hvgs=n_hvgs,
        min_cells=min_cells,
        progress=progress,
    )


def _number(plan: Plan, name: str) -> int:
    """A parameter of a plan, which another site has written."""
    found = plan.parameters.get(name)
    if type(found) is not int or not 0 < found < 1 << 31:
        raise _unknown(plan)
    return found


def _unknown(plan: Plan) -> BadValue:
    return BadValue(
        f"Expected parameters that this version knows in plan {plan.id}, found others: update scbatchprox "
        f"at all sites to one version."
    )
