import os

import pytest

from federated_study import Study, own_moments


@pytest.fixture
def no_power_failure(monkeypatch):
    """Nothing here is about power failures, and waiting for disks takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def study(tmp_path):
    return Study.make(tmp_path)


@pytest.fixture
def moments(rng):
    return own_moments(rng)


@pytest.fixture
def answered(study, moments):
    """A study in which all sites have answered; returns the plan."""
    plan = study.plan()
    study.answer(plan, moments)
    return plan
