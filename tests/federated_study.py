"""Studies of several sites in one process, for tests."""

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import make_cells
from scbatchprox import BatchProx, Moments
from scbatchprox.federated import (
    Addends,
    CellsFile,
    Message,
    MessageFolder,
    OwnNumbers,
    Plan,
    Site,
    contribute,
    refine_parameters,
)
from scbatchprox.federated.fit import pooled_moments

NAMES = ("east", "north", "south")
D = 3


@dataclass
class Study:
    """Sites that trust each other, and the folder that they share."""

    shared: Path
    sites: dict[str, Site]

    @classmethod
    def make(cls, place: Path, names=NAMES, study="lung"):
        shared = place / "shared"
        shared.mkdir(parents=True)
        folder = MessageFolder(shared, shared)
        made = {name: Site.create(place / f"private-{name}", folder, study, name) for name in names}
        for site in made.values():
            for other in made.values():
                site.trust(other.name, other.keys.card.fingerprint)
        return cls(shared, made)

    def plan(self, names=None, kind="refine", note="", **parameters):
        """A plan that the first of some sites has published."""
        chosen = [self.sites[name] for name in sorted(names or self.sites)]
        given = refine_parameters(BatchProx(target="moment"), D, "an embedding") | parameters
        cards = tuple(site.keys.card for site in chosen)
        plan = Plan(chosen[0].keys.study, kind, cards, given, note)
        chosen[0].publish_plan(plan)
        return plan

    def sum_path(self, plan, site, number=0):
        return self.shared / "sums" / plan.id / f"{number:04}" / f"{site}.sum"

    def answer(self, plan, moments, **options):
        """Each site answers in turn; return what every one has found."""
        return {name: run(self.sites[name], plan, own, **options) for name, own in moments.items()}


def own_of(moments):
    return OwnNumbers.of(moments.batches.tolist(), moments.n, moments.mean, moments.m2)


def run(site, plan, moments, rounds=1, confirmed=True, **options):
    """One site answers a plan; the sums of moments, repeated in every round."""

    def kind(add_up):
        for _ in range(rounds):
            pooled = pooled_moments(moments, add_up)
        return pooled

    confirmed = plan.fingerprint if confirmed is True else confirmed
    return site.run(plan, kind, own_of(moments), confirmed=confirmed, **options)


def numbers(values, fixed):
    """A kind of one round that adds some numbers."""
    return lambda add_up: add_up(Addends(values, fixed))


def own_moments(rng, names=NAMES, sizes=(40, 25), d=D):
    """Moments of two batches at every site."""
    found = {}
    for name in names:
        c = make_cells(rng, sizes, d)
        labels = np.array([f"{name}/a", f"{name}/b"])[c.codes]
        found[name] = Moments.of(c.Z, labels)
    return found


def write_cells(path, Z, labels):
    import anndata as ad  # here, since many processes import this file
    import pandas as pd

    adata = ad.AnnData(obs=pd.DataFrame({"donor": labels}, index=[f"c{i}" for i in range(len(Z))]))
    adata.obsm["X_pca"] = Z
    adata.write_h5ad(path)
    return CellsFile(path, "donor", "X_pca")


def answer_file(site, plan, file, **options):
    return contribute(site, plan, file, confirmed=plan.fingerprint, **options)


def forged(site, path, change=None, body=None):
    """Write the message at a path anew, signed by a site, with another header or body."""
    message = Message.read(path)
    header = message.header | (change or {})
    raw = Message.signed(site.keys.signing, header, message.body if body is None else body).raw
    path.write_bytes(raw)


def within(seconds, call):
    """The error of a call (or its result), which must end within some seconds."""
    found = []

    def work():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs"
    return found[0]


def finish(study, plan, moments, name="east", **options):
    return run(study.sites[name], plan, moments[name], **options)
