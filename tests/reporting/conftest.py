import pytest

from report_cells import make_cells
from scbatchprox import report


@pytest.fixture(scope="session")
def html():
    """A report of cells with hostile names."""
    keep = ["condition", "sex"]
    return report(
        make_cells(), "batch", label_key="type", keep=keep, view="pca", target="population"
    )
