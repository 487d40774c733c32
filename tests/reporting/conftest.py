import pytest

from report_cells import make_cells
from scbatchprox import report


@pytest.fixture(scope="session")
def html():
    """A report of cells with hostile names."""
    return report(
        make_cells(), "batch", label_key="type", keep="sex", view="pca", target="population"
    )
