"""A refinement and its diagnosis look at one sample of the cells, which is drawn once."""

import pytest

from report_cells import make_cells
from scbatchprox import refine, refine_file
from scbatchprox.core.sampling import Sample


@pytest.fixture
def drawn(monkeypatch):
    """The number of cells of each sample that is drawn."""
    sizes, of = [], Sample.of.__func__

    def counted(cls, Z, rows, keys, labels):
        sizes.append(len(rows))
        return of(cls, Z, rows, keys, labels)

    monkeypatch.setattr(Sample, "of", classmethod(counted))
    return sizes


def test_in_memory(drawn):
    refine(make_cells(), "batch")
    assert len(drawn) == 1


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_in_a_file(drawn, tmp_path, kind):
    path = tmp_path / f"cells.{kind}"
    getattr(make_cells(), f"write_{kind}")(path)
    refine_file(path, "batch")
    assert len(drawn) == 1
