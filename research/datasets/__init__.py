"""Data sets for experiments: simulated ones, files of the data folder, the paper's public ones, any file.

``load("sim_pbmc4")`` and ``load("my.h5ad", batch_key="donor", label_key="annotation")`` both
return a :class:`Dataset`, with ``obs["batch"]``, ``obs["cell_type"]``, and counts or an embedding.
"""

from .dataset import Dataset
from .folder import data_folder
from .molecules import molecules
from .preprocess import preprocess
from .presets import PRESETS, load

__all__ = ["PRESETS", "Dataset", "data_folder", "load", "molecules", "preprocess"]
