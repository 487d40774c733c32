"""The paper's numbers, copied from its tables: means, and standard deviations over 5 runs.

Figures 3 to 5 have no numbers to copy. The paper's scBatchProx uses Adam; its number of rounds is not
stated.
"""

from __future__ import annotations

__all__ = ["ABLATION", "CLASSIFY", "MOLECULES", "WALL_CLOCK", "original"]

#: Table 1: macro-F1, its spread, seconds, their spread, by data set, upstream and method.
CLASSIFY: dict[tuple[str, str, str], tuple[float, float, float, float]] = {
    ("pbmc4", "pca", "harmony"): (0.6633, 0.0044, 14.2332, 1.7650),
    ("pbmc4", "pca", "batchprox"): (0.7594, 0.0008, 5.3492, 0.9618),
    ("pbmc4", "scarches", "unrefined"): (0.4415, 0.0, 16.6963, 2.7281),
    ("pbmc4", "scvi", "harmony"): (0.7010, 0.0071, 7.1867, 0.9681),
    ("pbmc4", "scvi", "batchprox"): (0.7504, 0.0001, 0.5540, 0.1382),
    ("mhd6", "pca", "harmony"): (0.3829, 0.0023, 3.2045, 0.3022),
    ("mhd6", "pca", "batchprox"): (0.6567, 0.001, 1.98, 0.2187),
    ("mhd6", "scarches", "unrefined"): (0.1643, 0.0, 14.8221, 0.2786),
    ("mhd6", "scvi", "harmony"): (0.2683, 0.0051, 5.9330, 4.3050),
    ("mhd6", "scvi", "batchprox"): (0.4747, 0.0002, 18.4768, 0.6348),
    ("hpms2", "pca", "harmony"): (0.8706, 0.0007, 21.2656, 1.7654),
    ("hpms2", "pca", "batchprox"): (0.8710, 0.0010, 5.4333, 0.5713),
    ("hpms2", "scarches", "unrefined"): (0.7745, 0.0, 38.0826, 0.5940),
    ("hpms2", "scvi", "harmony"): (0.8502, 0.002, 12.0450, 1.7893),
    ("hpms2", "scvi", "batchprox"): (0.8613, 0.0002, 0.8574, 0.1798),
}

#: Table 2, QM8: macro-F1, its spread, seconds, their spread, by method.
MOLECULES: dict[str, tuple[float, float, float, float]] = {
    "harmony": (0.3065, 0.0108, 22.6302, 6.1664),
    "batchprox": (0.6996, 0.0, 8.29, 2.26),
}

#: Table 3: macro-F1 and its spread, by data set and variant.
ABLATION: dict[tuple[str, str], tuple[float, float]] = {
    ("pbmc4", "full"): (0.7585, 0.0009),
    ("mhd6", "full"): (0.6140, 0.0006),
    ("hpms2", "full"): (0.8725, 0.0005),
    ("pbmc4", "mean-only"): (0.7478, 0.0006),
    ("mhd6", "mean-only"): (0.6173, 0.0004),
    ("hpms2", "mean-only"): (0.8718, 0.0006),
    ("pbmc4", "w/o FedProx"): (0.7471, 0.0),
    ("mhd6", "w/o FedProx"): (0.6571, 0.0007),
    ("hpms2", "w/o FedProx"): (0.8741, 0.0011),
    ("pbmc4", "w/o identity"): (0.7577, 0.0),
    ("mhd6", "w/o identity"): (0.6121, 0.0011),
    ("hpms2", "w/o identity"): (0.8716, 0.0013),
}

#: Table 4, five-protocol pancreas, cumulative: seconds (run, total, cumulative) of steps 1 to 4, by order
#: ("forward" is the order of technology), upstream and method.
WALL_CLOCK: dict[tuple[str, str, str], tuple[tuple[float, float, float], ...]] = {
    ("forward", "pca", "unrefined"): (
        *((0.16, 154.91, 0.16), (0.24, 236.19, 0.41)),
        *((0.45, 320.40, 0.86), (0.72, 366.72, 1.58)),
    ),
    ("forward", "pca", "batchprox"): (
        *((3.35, 14.93, 3.35), (4.55, 18.24, 7.90)),
        *((3.20, 18.44, 11.10), (12.20, 18.04, 23.30)),
    ),
    ("forward", "scvi", "unrefined"): (
        *((154.54, 154.91, 154.54), (235.65, 236.19, 390.20)),
        *((319.61, 320.40, 709.81), (365.65, 366.72, 1075.45)),
    ),
    ("forward", "scvi", "batchprox"): (
        *((11.46, 14.93, 11.46), (13.58, 18.24, 25.04)),
        *((15.11, 18.44, 40.15), (5.71, 18.04, 45.86)),
    ),
    ("reverse", "pca", "unrefined"): (
        *((0.10, 94.20, 0.10), (0.16, 155.35, 0.26)),
        *((0.26, 185.90, 0.52), (0.78, 397.56, 1.31)),
    ),
    ("reverse", "pca", "batchprox"): (
        *((3.75, 9.08, 3.75), (5.80, 12.00, 9.55)),
        *((5.95, 10.70, 15.49), (11.14, 19.56, 26.63)),
    ),
    ("reverse", "scvi", "unrefined"): (
        *((93.98, 94.20, 93.98), (155.00, 155.35, 248.98)),
        *((185.44, 185.90, 434.42), (396.40, 397.56, 830.82)),
    ),
    ("reverse", "scvi", "batchprox"): (
        *((5.15, 9.08, 5.15), (6.08, 12.00, 11.22)),
        *((4.63, 10.70, 15.86), (8.25, 19.56, 24.10)),
    ),
}


def original(dataset: str) -> str:
    """Return the paper's name of a data set, or of the one that it simulates."""
    return dataset.removeprefix("sim_")
