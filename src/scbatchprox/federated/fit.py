r"""A federated fit: the rows of a site's own batches, equal to those of a fit to the cells of all sites.

A site reads its cells, answers the rounds of a plan, and writes the result. The first round gives the moments
of all cells of all sites, all that the moment target needs of other sites. A site adds
:math:`(n, B, \sum z, \sum z^2)` as exact integers. For embeddings far from the origin the variance is a
difference of large numbers, so it is computed as an exact fraction before it is rounded.

With the population target, every sum of the registration is one more round. A site finds the populations of
its own batches, with the settings of a fit in one place. Those with few cells are dissolved. What is added
over sites:

- to seed centres, cells, positions and their squares, :math:`1 + d + d^2` numbers; then for each region of
  space, and twice for each of K centres, the cells of its populations and the sum of their positions;
- in a round, for each centre, the weight of the populations there and their weighted positions, once for
  weights and once for the nearest centre, :math:`2 K (d + 1)` numbers, and four for the trace;
- to look for evidence, the cells at each centre, the shifts of batches, and squares within regions and
  within batches, :math:`K + 1 + d + 2 d^2` numbers, then up to d sums of third powers;
- a few scalars, by which all sites decide the same.

A region or centre with one population shows its mean to all who can read the sums: see
:func:`.plan.disclosed`.

Positions are relative to the mean of all cells, in units of about the spread within populations, or of that
of all cells if it is a billion times larger. The largest numbers are sums of squares over cells: up to 1e18
times the number of cells and coordinates. A site's numbers are exact to :math:`2^{-80}`, and larger ones than
:math:`2^{95}`, about 4e28, are an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from ..api.estimator import BatchProx
from ..api.record import record_of
from ..cells.file import Job, open_job
from ..cells.keys import as_keys
from ..cells.reading import LocalCells
from ..core.checks import some_of
from ..core.labels import Labels
from ..core.moments import Moments, Pooled
from ..errors import BadValue, InputError, Parameter
from ..io.model_file import params_as_json, params_from_json
from ..kernels.arrays import Floats
from ..progress import Progress, silent
from ..targets.method import method_of, solver_of, target_of
from ..targets.population.find import dissolved
from ..targets.population.target import PopulationTarget
from ..upstream.on_disk import recorded
from .ledger import OwnNumbers
from .messages import as_bytes
from .plan import MIN_CELLS, Plan
from .site import Site, Terms, Waiting
from .sums import WIDE, Addends, AddUp, FixedPoint

__all__ = ["ROUND", "CellsFile", "contribute", "pooled_moments", "refine", "refine_parameters"]


def pooled_moments(own: Moments, add_up: AddUp) -> Pooled:
    """The moments of all sites together, one round."""
    own, d = own.by_batch, own.n_dims
    first, second = [Fraction(0)] * d, [Fraction(0)] * d
    for n, mean, m2 in zip(own.n.tolist(), own.mean.tolist(), own.m2.tolist(), strict=True):
        for j in range(d):
            first[j] += n * Fraction(mean[j])
            second[j] += Fraction(m2[j]) + n * Fraction(mean[j]) ** 2
    totals = add_up(Addends([own.n_cells, own.batches.size, *first, *second], WIDE))
    n, B, *sums = totals.fractions()
    if n.denominator != 1 or n < 1 or B.denominator != 1 or not 1 <= B <= n:
        raise BadValue("Expected whole numbers of cells and batches in the sum, found others.")
    m2 = [square - total * total / n for total, square in zip(sums[:d], sums[d:], strict=True)]
    return Pooled(
        int(n),
        int(B),
        np.array([float(total / n) for total in sums[:d]]),
        np.array([float(max(value, Fraction(0))) for value in m2]),
    )


#: The format of the sums of a registration.
ROUND = FixedPoint(192, 80)


def refine(
    own: Moments, model: BatchProx, add_up: AddUp, *, min_cells: int = MIN_CELLS
) -> BatchProx:
    """Fit a model to the batches of this site, given sums over those of all sites.

    Populations with fewer than ``min_cells`` cells are dissolved first.
    """
    own = dissolved(own, min_cells)

    def exchange(sums: Floats) -> Floats:
        # Fixed-point numbers: to the bit the same at all sites.
        return add_up(Addends(sums, ROUND)).floats()

    return model.fit_pooled(own, pooled_moments(own, add_up), exchange)


@dataclass(frozen=True)
class CellsFile:
    """A file with the cells of a site, and where the result goes.

    ``out`` is the path of a copy with the result; ``None`` writes into the file itself.
    """

    path: Path
    batch_key: str | Sequence[str]
    use_rep: str | None = None
    key_added: str | None = None
    out: Path | None = None
    labels: Path | None = None
    population_key: str | None = None


def refine_parameters(
    model: BatchProx, n_dims: int, embedding: str, min_cells: int = MIN_CELLS
) -> dict[str, Any]:
    """The parameters of a plan for a federated fit.

    ``embedding`` is the fingerprint of the upstream that made the embedding, or a text that names it.
    """
    target = target_of(model.target)
    if isinstance(target, PopulationTarget):  # the plan has all settings, not the name of defaults
        model = BatchProx(**model.get_params(deep=False) | {"target": target})
    if solver_of(model.solver).needs_cells:
        raise BadValue(
            "Expected ", Parameter("solver='exact'"), f" for a federated fit, found {model.solver!r}: it has "
            f"the same fixed point, and needs one sum instead of many rounds.",
        )  # fmt: skip
    if not isinstance(embedding, str) or not embedding.isprintable():
        raise BadValue(f"Expected a line of text that names the embedding, found {embedding!r}.")
    if n_dims < 1 or min_cells < 1:
        raise BadValue(f"Expected positive numbers, found {n_dims} coordinates, {min_cells} cells.")
    return {
        "model": params_as_json(model.get_params(deep=False)),
        "n_dims": n_dims,
        "embedding": embedding,
        "min_cells": min_cells,
    }


def contribute(
    site: Site,
    plan: Plan,
    file: CellsFile,
    *,
    min_cells: int | None = None,
    write: bool = False,
    **terms: Unpack[Terms],
) -> BatchProx | Waiting:
    """Answer the rounds of a plan with the cells of a file; return the fitted model if all are known.

    ``min_cells`` is the least number of cells in a batch: by default what the plan says, and at least 20.
    Only the site itself can lower it. With ``write``, the refined cells are written when the model is
    fitted. ``terms`` are those of :meth:`Site.run`; progress is also called after every chunk of rows.
    """
    if plan.kind != "refine":  # or the ledger would hold the sums of a fit under another name
        raise BadValue(f"Expected a plan for a fit, found plan {plan.id} for {plan.kind}.")
    # Before any cell is read.
    site.check(
        plan, terms.get("confirmed"), accepted=terms.get("accepted", False),
        settings=terms.get("settings"),
    )  # fmt: skip
    model, progress = _model(plan), terms.get("progress", silent)
    with _opened(site, plan, file) as job:
        try:
            own = _own(job, plan, model, min_cells, progress)
        except InputError:
            if not site.ledger.has(plan):
                site.tell(plan, "cells")  # others learn that, and no more
            raise
        hashes = OwnNumbers.of(own.by_batch.batches.tolist(), own.by_batch.n, own.mean, own.m2)
        kind = partial(refine, own, model, min_cells=plan.least(min_cells))
        found = site.run(plan, kind, hashes, **terms)
        if write and isinstance(found, BatchProx):
            rep = file.use_rep or job.file.default_rep
            found.provenance_ = {
                "source": file.path.name,
                "batch_key": as_keys(file.batch_key),
                "use_rep": rep,
                "key_added": job.key,
                "n_cells": own.n_cells,
                "study": plan.study,
                "plan": plan.hash,
            }
            refined = LocalCells(job, silent).mapped(found.adapter_, "apply", job.labels)
            job.write(refined, record_of(found), progress)
    return found


def _model(plan: Plan) -> BatchProx:
    """The unfitted model of a plan, which another site has written."""
    try:
        model = BatchProx(**params_from_json(plan.parameters["model"]))
        again = refine_parameters(
            model, *(plan.parameters[name] for name in ("n_dims", "embedding", "min_cells"))
        )
        method = method_of(model)  # an error now, not after the sum
        float(method.rounds or 0)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        again = {}
    if as_bytes(again) != as_bytes(plan.parameters):
        raise plan.unknown()
    return model


@contextmanager
def _opened(site: Site, plan: Plan, file: CellsFile) -> Iterator[Job]:
    """Open the cells of a site; its batches are named SITE/BATCH."""
    with open_job(**vars(file)) as job:
        wanted = plan.parameters["embedding"]
        upstream = recorded(job.file, file.use_rep or job.file.default_rep)
        if upstream is not None and upstream != wanted:
            raise BadValue(
                f"Expected the embedding of the plan, {wanted}, found one of {upstream} in "
                f"{file.path.name}."
            )
        yield replace(job, labels=_of_site(job.labels, site.name))


def _of_site(labels: Labels, site: str) -> Labels:
    """Labels with the name of the site: one name at two sites means two batches."""
    names = np.array([f"{site}/{label}" for label in labels.batches.tolist()])
    order = np.argsort(names)  # numbers are not sorted as text is
    position = np.empty(order.size, np.int32)
    position[order] = np.arange(order.size)
    return Labels(position[labels.codes], names[order])


def _own(
    job: Job, plan: Plan, model: BatchProx, min_cells: int | None, progress: Progress
) -> Moments:
    """The moments of this site's batches, if they meet the conditions of the plan."""
    n_dims = plan.parameters["n_dims"]
    if job.rows.shape[1] != n_dims:
        raise BadValue(f"Expected {n_dims} coordinates, as in the plan, found {job.rows.shape[1]}.")
    least = plan.least(min_cells)
    small = job.labels.batches[job.labels.n < least].tolist()
    if small:
        raise BadValue(
            f"Expected at least {least} cells in every batch, found fewer in {some_of(small)}: the sums of "
            f"few cells reveal them; leave these batches out, or lower ", Parameter("min_cells"), ".",
        )  # fmt: skip
    return model.describe(LocalCells(job, progress), job.population)
