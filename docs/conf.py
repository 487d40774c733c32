"""Settings of the documentation site: `make docs`.

The build needs no network. Tutorials and how-to pages that are notebooks run in it, and a warning or an
exception ends it.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from myst_nb.core import render

about = metadata("scbatchprox")
project = "scBatchProx"
author = "The scBatchProx authors"
copyright = author  # the name that Sphinx expects
version = release = about["Version"]

# Cells with `%%bash` call the command of the environment that builds the site.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["SCBATCHPROX_DOCS"] = str(Path(__file__).parent)  # files that a page shows and runs

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "generated/.*", "**/.*"]

# Pages
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # pages of results begin tables at the third level

# Notebooks
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm wants ipywidgets for its bars
# A profile of our own: what is in the user's does not change the pages.
profile = Path(__file__).parent / "_build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
os.environ["IPYTHONDIR"] = str(profile.parent)
(profile / "ipython_kernel_config.py").write_text(
    "c.IPKernelApp.log_level = 40\n"  # not that local ports are not encrypted
    # Jupyter asks commands for colours, and gets broken lines.
    'c.InteractiveShellApp.exec_lines = [\'import os; os.environ["FORCE_COLOR"] = ""\']\n'
)
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 180
nb_merge_streams = True
_merge = render.coalesce_streams


def _merge_parts(outputs: list[Any]) -> list[Any]:
    """Join what a command printed: it comes in parts, and myst-nb would end each with a new line."""
    joined: list[Any] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output["output_type"] == "stream" and last.get("name") == output["name"]:
            last["text"] += output["text"]
        else:
            joined.append(output)
    return list(_merge(joined))


render.coalesce_streams = _merge_parts

# Reference
templates_path = ["_templates"]
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_rtype = False
# As a list: attributes that are also properties are not described twice.
napoleon_custom_sections = [("Attributes", "params_style")]

# Look
html_theme = "sphinx_book_theme"
html_title = f"scBatchProx {release}"
html_theme_options = {
    "repository_url": "https://github.com/scbatchprox/scbatchprox",
    "use_repository_button": True,
    "show_navbar_depth": 1,
    "path_to_docs": "docs",
}
# Equations without a network. As an extension, the package would forbid to read pages in parallel.
html_static_path = [str(Path(import_module("sphinx-mathjax-offline").__file__).parent / "static")]
mathjax_path = "mathjax/tex-chtml.js"
html_copy_source = False
html_show_sphinx = False
pygments_style = "default"


def setup(app):
    """Leave out the methods that scikit-learn adds to an estimator to route metadata."""

    def added(app, what, name, obj, skip, options):
        return True if name.startswith("set_") and name.endswith("_request") else None

    app.connect("autodoc-skip-member", added)
    return {"parallel_read_safe": True}
