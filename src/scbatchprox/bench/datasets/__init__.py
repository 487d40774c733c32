"""Data to evaluate on: simulated sets, files of a data folder, public originals, anyone's file.

``load("sim_pbmc4")`` and ``load("my.h5ad", batch_key="donor", label_key="annotation")`` give the same
thing: a :class:`Dataset`, with ``obs["batch"]`` and ``obs["cell_type"]``, counts or an embedding.
"""

from .dataset import Dataset
from .folder import data_folder
from .molecules import molecules
from .preprocess import preprocess
from .presets import PRESETS, load

__all__ = ["PRESETS", "Dataset", "data_folder", "load", "molecules", "preprocess"]
