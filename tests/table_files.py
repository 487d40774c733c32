"""Cells as tables and arrays in files, for tests of all their kinds."""

import csv
import gzip
import io

import numpy as np
import pandas as pd
import pytest

from scbatchprox import BatchProx, InputError, refine_file

TEXT = ["csv", "tsv", "csv.gz", "tsv.gz"]
TABLES = [*TEXT, "parquet"]
KINDS = [*TABLES, "npy", "npz"]
D = 3
PCS = [f"PC{j + 1}" for j in range(D)]


def expected(Z, batch, **params):
    """Refine in memory."""
    return BatchProx(**{"target": "moment"} | params).fit_transform(Z, batch=batch)


def save(frame, folder, kind, name="cells"):
    """Write the table, or its arrays, as a kind of file."""
    path = folder / f"{name}.{kind}"
    if kind == "npy":
        np.save(path, frame[PCS].to_numpy())
    elif kind == "npz":
        labels = {key: frame[key].to_numpy() for key in frame if key not in PCS}
        labels = {k: v.astype(str) if v.dtype == object else v for k, v in labels.items()}
        np.savez_compressed(path, X_pca=frame[PCS].to_numpy(), **labels)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if "tsv" in kind else ",", index=False)
    return path


def load(path):
    """Read the coordinates, or the result, of a file."""
    name = path.name
    if name.endswith(".npy"):
        return np.load(path)
    if name.endswith(".npz"):
        with np.load(path) as arrays:
            return arrays["X_pca_batchprox"]
    if name.endswith(".parquet"):
        return pd.read_parquet(path)[PCS].to_numpy()
    sep = "\t" if "tsv" in name else ","
    return pd.read_csv(path, sep=sep)[PCS].to_numpy()


def options_for(frame, folder, kind):
    """Return the options that a kind of file needs: a prefix of columns, or a file of labels."""
    args = {"use_rep": "PC"} if kind in TABLES else {}
    if kind == "npy":
        args["labels"] = save(frame, folder, "csv", "labels")
    return args


def fields(path):
    """Read all fields of a text table as strings."""
    packed = path.name.endswith(".gz")
    text = (gzip.decompress(path.read_bytes()) if packed else path.read_bytes()).decode()
    sep = "\t" if "tsv" in path.name else ","
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=sep))


def check_only(folder, *paths):
    """Check that a folder has only these files: nothing half-written is left."""
    assert sorted(p.name for p in folder.iterdir()) == sorted({p.name for p in paths})


def check_refused(path, key, message, **args):
    """Refining raises one sentence and changes no file."""
    before = sorted((p, p.read_bytes()) for p in path.parent.iterdir())
    with pytest.raises(InputError, match=message) as error:
        refine_file(path, key, **args)
    assert "\n" not in str(error.value)
    assert sorted((p, p.read_bytes()) for p in path.parent.iterdir()) == before
