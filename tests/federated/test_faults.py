"""Cells that cannot be used: others learn a code, and no more."""

import json
import shutil

import numpy as np
import pytest

from federated_study import (
    Study,
    answer_file,
    numbers,
    own_of,
    run,
    write_cells,
)
from scbatchprox import Pooled
from scbatchprox.errors import BadValue, InputError
from scbatchprox.federated import WIDE, Message, MessageFolder, Site, Waiting
from scbatchprox.federated.messages import MAGIC, as_bytes

pytestmark = pytest.mark.usefixtures("no_power_failure")


def bad_cells(what, rng):
    """Cells with a fault, and some values and names that nobody else may see."""
    n = 19 if what == "few cells" else 60
    Z = rng.normal(size=(n, 4 if what == "wrong width" else 3)) + 31.4159
    labels = np.array(["patient-4711"] * n)
    if what == "NaN":
        Z[7, 1] = np.nan
    if what == "infinity":
        Z[7, 1] = -np.inf
    if what == "out of range":
        Z[7, 1] = 1e60
    return Z, labels


@pytest.mark.parametrize("what", ["NaN", "infinity", "wrong width", "few cells", "out of range"])
def test_others_learn_a_code_only(study, tmp_path, rng, what):
    plan = study.plan()
    Z, labels = bad_cells(what, rng)
    file = write_cells(tmp_path / "secret-ward.h5ad", Z, labels)
    before = {path: path.read_bytes() for path in study.shared.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as caught:
        answer_file(study.sites["east"], plan, file)
    new = {p: p.read_bytes() for p in study.shared.rglob("*") if p.is_file() and p not in before}
    assert [path.relative_to(study.shared).as_posix() for path in new] == [
        f"codes/{plan.id}/east.code"
    ]
    (raw,) = new.values()
    # Every byte of it is known beforehand, but for the signature.
    header = {"type": "code", "site": "east", "plan": plan.hash, "code": "cells"}
    assert raw[:-64] == MAGIC + as_bytes(header) + b"\n"
    for word in (
        "4711",
        "secret",
        "ward",
        str(tmp_path),
        "31.4",
        str(len(Z)),
        str(caught.value)[:20],
    ):
        if word not in ("60", "19"):  # digits that a hash may have
            assert word.encode() not in raw
    assert {path: path.read_bytes() for path in before} == before
    # The ledger has no answer: correct cells can still be given.
    good = write_cells(tmp_path / "good.h5ad", rng.normal(size=(60, 3)), np.array(["a"] * 60))
    assert isinstance(answer_file(study.sites["east"], plan, good), Waiting)


def test_a_plan_cannot_lower_the_number_of_cells(study, tmp_path, rng):
    plan = study.plan(min_cells=1)
    file = write_cells(tmp_path / "cells.h5ad", rng.normal(size=(19, 3)), np.array(["a"] * 19))
    with pytest.raises(BadValue, match="Expected at least 20 cells in every batch"):
        answer_file(study.sites["east"], plan, file)
    assert isinstance(answer_file(study.sites["east"], plan, file, min_cells=5), Waiting)
    # Finishing with the default is an error, but no code: the site has answered.
    codes = list((study.shared / "codes").rglob("*.code"))
    with pytest.raises(BadValue, match="Expected at least 20 cells in every batch"):
        answer_file(study.sites["east"], plan, file)
    assert list((study.shared / "codes").rglob("*.code")) == codes
    # A plan may ask for more.
    more = study.plan(min_cells=50)
    file = write_cells(tmp_path / "more.h5ad", rng.normal(size=(49, 3)), np.array(["a"] * 49))
    with pytest.raises(BadValue, match="Expected at least 50 cells in every batch"):
        answer_file(study.sites["north"], more, file)


def test_a_fit_under_another_name(study, tmp_path, rng):
    """A plan for a PCA with the parameters of a fit would be entered as a PCA."""
    plan = study.plan(kind="pca")
    file = write_cells(tmp_path / "cells.h5ad", rng.normal(size=(60, 3)), np.array(["a"] * 60))
    with pytest.raises(BadValue, match="Expected a plan for a fit"):
        answer_file(study.sites["east"], plan, file)


def test_numbers_out_of_range_leave_nothing(study, moments):
    plan = study.plan()
    kind = numbers([2.0**200], WIDE)
    with pytest.raises(BadValue, match="Expected numbers below"):
        study.sites["east"].run(plan, kind, own_of(moments["east"]), confirmed=plan.fingerprint)
    assert not study.sum_path(plan, "east").exists()
    assert study.sites["east"].ledger.answers() == []


def test_separate_boxes(tmp_path, moments):
    """Inbox and outbox of a courier: own messages are never taken from the inbox alone."""
    study = Study.make(tmp_path)
    plan = study.plan()
    outbox = tmp_path / "outbox"
    outbox.mkdir()
    east = study.sites["east"]
    split = Site(east.private, MessageFolder(study.shared, outbox), east.keys)
    run(split, plan, moments["east"])
    sent = outbox / "sums" / plan.id / "0000" / "east.sum"
    for name in ("north", "south"):
        run(study.sites[name], plan, moments[name])
    assert isinstance(run(split, plan, moments["east"]), Pooled)
    assert not study.sum_path(plan, "east").exists()
    shutil.copy(sent, study.sum_path(plan, "east"))
    assert isinstance(run(study.sites["north"], plan, moments["north"]), Pooled)
    assert json.loads(as_bytes(Message.read(sent).header)) == Message.read(sent).header


@pytest.mark.parametrize("there", [b"junk", "folder", "another code"])
def test_the_operator_sees_why_whatever_the_folder_holds(study, tmp_path, rng, there):
    plan, east = study.plan(), study.sites["east"]
    path = study.shared / "codes" / plan.id / "east.code"
    path.parent.mkdir(parents=True)
    if there == "folder":
        path.mkdir()
    elif there == "another code":
        east.refuse(plan, "refused")
    else:
        path.write_bytes(there)
    Z, labels = bad_cells("wrong width", rng)
    with pytest.raises(BadValue, match="Expected 3 coordinates, as in the plan, found 4"):
        answer_file(east, plan, write_cells(tmp_path / "cells.h5ad", Z, labels))
