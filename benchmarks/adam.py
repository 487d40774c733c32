"""The Adam solver against a plain torch version with DataLoader, autograd, torch.optim.Adam and FedAvg."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from scbatchprox import BatchProx, MomentTarget

from .measure import Row, cells, fastest

ROUNDS, EPOCHS, SIZE = 10, 3, 256


def torch_version(Z: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The paper's procedure, written in torch (lambda_target 0.5, mu 1e-3, lambda_id 1e-3)."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    n = np.bincount(codes)
    B, d = len(n), Z.shape[1]
    mean, std = Z.mean(0, dtype=float), Z.std(0, dtype=float)
    loaders = []
    for b in range(B):
        Zb = Z[codes == b]
        mean_b, std_b = Zb.mean(0, dtype=float), Zb.std(0, dtype=float)
        T = mean + (std + 1e-6) / (std_b + 1e-6) * (Zb - mean_b)
        data = TensorDataset(torch.from_numpy(Zb), torch.from_numpy(T.astype(np.float32)))
        shuffling = torch.Generator().manual_seed(b)
        loaders.append(DataLoader(data, SIZE, shuffle=True, generator=shuffling))
    scale, shift = torch.ones(B, d), torch.zeros(B, d)
    for _ in range(ROUNDS):
        copies = []
        for b, loader in enumerate(loaders):
            gamma = scale.clone().requires_grad_()
            beta = shift.clone().requires_grad_()
            optimiser = torch.optim.Adam([gamma, beta], lr=5e-2)
            for _ in range(EPOCHS):
                for z, t in loader:
                    fit = ((gamma[b] * z + beta[b] - t) ** 2).mean()
                    prox = ((gamma - scale) ** 2).sum() + ((beta - shift) ** 2).sum()
                    identity = ((gamma - 1) ** 2).mean() + (beta**2).mean()
                    loss = 0.5 * fit + 1e-3 * prox + 1e-3 * identity
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
            copies.append((gamma.detach(), beta.detach()))
        scale = sum(w * c[0] for w, c in zip(n / n.sum(), copies, strict=True))
        shift = sum(w * c[1] for w, c in zip(n / n.sum(), copies, strict=True))
    return scale.numpy(), shift.numpy()


def run() -> Iterator[Row]:
    import torch

    Z, batch = cells(100_000, 40, 4)
    model = BatchProx(solver="adam", rounds=ROUNDS, target="moment")
    (ours,) = fastest(lambda: model.fit_transform(Z, batch=batch), repeat=5)
    started = time.perf_counter()
    scale, shift = torch_version(Z, batch.cat.codes.to_numpy())
    plain = time.perf_counter() - started
    note = f"{plain:.1f} s / {ours * 1e3:.0f} ms, torch {torch.__version__}"
    yield Row(
        "plain torch / solver='adam', 100,000 x 40, 10 rounds", plain / ours, least=50, note=note
    )
    # Did both do the same work? Shuffling and precision differ, so results are close but not equal.
    target = MomentTarget()(model.moments_)
    spread = model.moments_.std
    difference = (scale - model.scale_) * model.moments_.mean + shift - model.shift_
    displacement = (target.center - target.mean) / spread
    yield Row("    distance between the two refined means / distance to the target",
              float(np.abs(difference / spread).mean() / np.abs(displacement).mean()), most=0.1)  # fmt: skip
