"""Slow, simple versions of the paper's method, computed from the cells in float64.

Nothing here uses moments, closed forms or the package under test. Every function computes one formula of
the paper (sections "Methodology" and "Experiments"), so that a test can compare the fast implementation
with it. Batches and rounds are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Array = NDArray[np.float64]
Codes = NDArray[np.integer]
Adapter = tuple[Array, Array]
"""Theta of the paper: (Gamma, Delta), both of shape (B, d)."""
Permutation = Callable[[int, int, int, int], NDArray[np.integer]]
"""permutation(b, t, e, n_b): the order in which client b visits its cells in round t, epoch e."""


# --- the data, the adapter ------------------------------------------------------------------------


def batch_count(codes: Codes) -> int:
    """B of the paper."""
    return int(np.max(codes)) + 1


def identity_adapter(codes: Codes, d: int) -> Adapter:
    """Return gamma_b = 1, beta_b = 0 (section "FiLM Adapter": the initial adapter)."""
    shape = (batch_count(codes), d)
    return np.ones(shape), np.zeros(shape)


def target_cells(
    Z: Array, codes: Codes, eps: float = 1e-6, variance_matching: bool = True
) -> Array:
    """Return t_i = mu + r_b * (z_i - mu_b) for every cell (definition "refinement target")."""
    Z = np.asarray(Z, dtype=np.float64)  # means of float32 cells must not be taken in float32
    mean, std = np.mean(Z, axis=0), np.std(Z, axis=0)
    T = np.empty_like(Z)
    for b in range(batch_count(codes)):
        z = Z[codes == b]
        mean_b, std_b = np.mean(z, axis=0), np.std(z, axis=0)
        r = (std + eps) / (std_b + eps) if variance_matching else np.ones_like(std)
        T[codes == b] = mean + r * (z - mean_b)
    return T


# --- the objectives -------------------------------------------------------------------------------


def squared_errors(theta: Adapter, b: int, Z: Array, codes: Codes, T: Array) -> float:
    """Return the sum over cells i of batch b of ||A_Theta(z_i, b) - t_i||^2."""
    Gamma, Delta = theta
    total = 0.0
    for i in np.flatnonzero(codes == b):
        refined = Gamma[b] * Z[i] + Delta[b]
        total += float(np.sum((refined - T[i]) ** 2))
    return total


def identity_penalty(theta: Adapter, lambda_id: float) -> float:
    """Return lambda_id/(B d) * (||Gamma - 1||_F^2 + ||Delta||_F^2), the identity term."""
    Gamma, Delta = theta
    B, d = Gamma.shape
    return float(lambda_id / (B * d) * (np.sum((Gamma - 1.0) ** 2) + np.sum(Delta**2)))


def central_objective(
    Theta: Adapter, Z: Array, codes: Codes, T: Array, lambda_target: float, lambda_id: float
) -> float:
    """Return F(Theta), the global objective (section "Latent Convex Refinement View")."""
    N, d = Z.shape
    fit = 0.0
    for b in range(batch_count(codes)):
        n_b = int(np.sum(codes == b))
        fit += n_b / N * (lambda_target / (n_b * d) * squared_errors(Theta, b, Z, codes, T))
    return fit + identity_penalty(Theta, lambda_id)


# --- exact minimisers -----------------------------------------------------------------------------


def design_matrix(z: Array) -> Array:
    """Return the rows x_ij = [z_ij, 1] of one coordinate j, so that A(z_i)_j = x_ij' theta_bj."""
    return np.column_stack([z, np.ones(len(z))])


def solve_row(
    X: Array, t: Array, theta_t: Array, weight: float, prox: float, identity: float
) -> Array:
    """Return argmin of L_b restricted to one (batch, coordinate): L_b is a sum over those.

    weight * ||X theta - t||^2 + prox * ||theta - theta_t||^2 + identity * ||theta - (1, 0)||^2.
    The unknown is the change from theta_t, so that the least-norm solution of a singular problem is
    the one that changes theta_t least.
    """
    eye = np.eye(2)
    A = np.vstack([np.sqrt(weight) * X, np.sqrt(prox) * eye, np.sqrt(identity) * eye])
    y = np.concatenate(
        [
            np.sqrt(weight) * (t - X @ theta_t),
            np.zeros(2),
            np.sqrt(identity) * (np.array([1.0, 0.0]) - theta_t),
        ]
    )
    if prox + identity > 0.0:
        # Unique minimiser (proposition "Well-posed local"). QR, because A'A would square the
        # condition number and an embedding far from the origin would lose precision.
        Q, R = np.linalg.qr(A)
        change: Array = np.linalg.solve(R, Q.T @ y)
    else:
        change = np.linalg.lstsq(A, y, rcond=None)[0]
    return theta_t + change


def client_solve(
    b: int,
    Theta_t: Adapter,
    Z: Array,
    codes: Codes,
    T: Array,
    lambda_target: float,
    mu: float,
    lambda_id: float,
) -> Adapter:
    """Return argmin L_b(.; Theta_t) over the full copy (proposition "Well-posed local").

    Where L_b has many minimisers (mu = lambda_id = 0), the one nearest to Theta_t.
    """
    B, d = Theta_t[0].shape
    Gamma, Delta = np.empty((B, d)), np.empty((B, d))
    z, t = Z[codes == b], T[codes == b]
    for row in range(B):
        for j in range(d):
            # Only the client's own row sees cells; prox and identity act on the full copy.
            X = design_matrix(z[:, j]) if row == b else np.empty((0, 2))
            y = t[:, j] if row == b else np.empty(0)
            theta_t = np.array([Theta_t[0][row, j], Theta_t[1][row, j]])
            Gamma[row, j], Delta[row, j] = solve_row(
                X, y, theta_t, lambda_target / (len(z) * d), mu, lambda_id / (B * d)
            )
    return Gamma, Delta


def federated_average(copies: list[Adapter], codes: Codes) -> Adapter:
    """Return sum_b n_b Theta_b / sum_b n_b (section "Federated Optimization Procedure")."""
    Gamma, Delta = np.zeros_like(copies[0][0]), np.zeros_like(copies[0][1])
    for b, (Gamma_b, Delta_b) in enumerate(copies):
        n_b = int(np.sum(codes == b))
        Gamma += n_b / len(codes) * Gamma_b
        Delta += n_b / len(codes) * Delta_b
    return Gamma, Delta


def federated_rounds(
    Z: Array,
    codes: Codes,
    rounds: int,
    *,
    lambda_target: float = 0.5,
    mu: float = 1e-3,
    lambda_id: float = 1e-3,
    eps: float = 1e-6,
    variance_matching: bool = True,
) -> list[Adapter]:
    """Return Theta after 0, 1, ..., rounds rounds in which every client solves L_b exactly."""
    T = target_cells(Z, codes, eps, variance_matching)
    history = [identity_adapter(codes, Z.shape[1])]
    for _ in range(rounds):
        copies = [
            client_solve(b, history[-1], Z, codes, T, lambda_target, mu, lambda_id)
            for b in range(batch_count(codes))
        ]
        history.append(federated_average(copies, codes))
    return history


def central_minimiser(
    Z: Array, codes: Codes, T: Array, lambda_target: float, lambda_id: float
) -> Adapter:
    """Return argmin F by least squares on the stacked residuals whose squared norm is F.

    F is a sum over coordinates, so there is one problem per coordinate j, with unknowns
    (gamma_0j, beta_0j, gamma_1j, ...). They are counted from the identity: where F has many
    minimisers (lambda_id = 0), the one nearest to the identity is returned.
    """
    N, d = Z.shape
    B = batch_count(codes)
    Gamma, Delta = identity_adapter(codes, d)
    for j in range(d):
        cells = np.zeros((N, 2 * B))
        for i in range(N):
            b = int(codes[i])
            cells[i, 2 * b : 2 * b + 2] = [Z[i, j], 1.0]
        # n_b/N * lambda_target/(n_b d): the same weight for every cell.
        weight = np.sqrt(lambda_target / (N * d))
        A = np.vstack([weight * cells, np.sqrt(lambda_id / (B * d)) * np.eye(2 * B)])
        y = np.concatenate([weight * (T[:, j] - Z[:, j]), np.zeros(2 * B)])
        # SciPy's default cutoff ignores the size of A and is too low to detect a singular A.
        cutoff = max(A.shape) * np.finfo(np.float64).eps
        change = scipy.linalg.lstsq(A, y, cond=cutoff)[0]
        Gamma[:, j] += change[0::2]
        Delta[:, j] += change[1::2]
    return Gamma, Delta


# --- the paper's optimiser ------------------------------------------------------------------------


def mini_batches(
    b: int, t: int, e: int, codes: Codes, batch_size: int, permutation: Permutation
) -> list[NDArray[np.integer]]:
    """Return the cells of client b in the order of round t, epoch e, cut into mini-batches."""
    cells = np.flatnonzero(codes == b)
    cells = cells[permutation(b, t, e, len(cells))]
    return [cells[start : start + batch_size] for start in range(0, len(cells), batch_size)]


def mini_batch_gradient(
    theta: Adapter,
    Theta_t: Adapter,
    b: int,
    z: Array,
    t: Array,
    lambda_target: float,
    mu: float,
    lambda_id: float,
) -> Adapter:
    """Return the gradient of L_b with its cells replaced by a mini-batch (z, t) of batch b.

    "The target-fitting term is computed as a mean squared error over cells and latent dimensions,
    while the FedProx and identity terms are applied to the full local adapter state."
    """
    Gamma, Delta = theta
    B, d = Gamma.shape
    grad_Gamma = 2.0 * mu * (Gamma - Theta_t[0]) + 2.0 * lambda_id / (B * d) * (Gamma - 1.0)
    grad_Delta = 2.0 * mu * (Delta - Theta_t[1]) + 2.0 * lambda_id / (B * d) * Delta
    error = Gamma[b] * z + Delta[b] - t
    grad_Gamma[b] += lambda_target * 2.0 * np.sum(error * z, axis=0) / (len(z) * d)
    grad_Delta[b] += lambda_target * 2.0 * np.sum(error, axis=0) / (len(z) * d)
    return grad_Gamma, grad_Delta


class Adam:
    """Algorithm 1 of Kingma & Ba (2015), with both bias corrections, for one array."""

    def __init__(self, lr: float, betas: tuple[float, float], adam_eps: float) -> None:
        """Start with zero moments and no step taken."""
        self.lr, self.betas, self.adam_eps = lr, betas, adam_eps
        self.m: Array | float = 0.0
        self.v: Array | float = 0.0
        self.steps = 0

    def step(self, parameter: Array, gradient: Array) -> Array:
        """Return the parameter after one step."""
        beta1, beta2 = self.betas
        self.steps += 1
        self.m = beta1 * self.m + (1.0 - beta1) * gradient
        self.v = beta2 * self.v + (1.0 - beta2) * gradient**2
        m_hat = self.m / (1.0 - beta1**self.steps)
        v_hat = self.v / (1.0 - beta2**self.steps)
        return parameter - self.lr * m_hat / (np.sqrt(v_hat) + self.adam_eps)


def textbook_adam(
    Z: Array,
    codes: Codes,
    rounds: int,
    permutation: Permutation,
    *,
    lambda_target: float = 0.5,
    mu: float = 1e-3,
    lambda_id: float = 1e-3,
    eps: float = 1e-6,
    variance_matching: bool = True,
    lr: float = 5e-2,
    local_epochs: int = 3,
    batch_size: int = 256,
    betas: tuple[float, float] = (0.9, 0.999),
    adam_eps: float = 1e-8,
) -> list[Adapter]:
    """Return Theta after 0, 1, ..., rounds rounds of the optimiser of section "Experiments"."""
    Z = np.asarray(Z, dtype=np.float64)
    T = target_cells(Z, codes, eps, variance_matching)
    history = [identity_adapter(codes, Z.shape[1])]
    for t in range(rounds):
        Theta_t = history[-1]
        copies = []
        for b in range(batch_count(codes)):
            Gamma, Delta = Theta_t[0].copy(), Theta_t[1].copy()
            # New in every round: a client's Adam state is discarded with its local copy.
            adam_Gamma, adam_Delta = Adam(lr, betas, adam_eps), Adam(lr, betas, adam_eps)
            for e in range(local_epochs):
                for cells in mini_batches(b, t, e, codes, batch_size, permutation):
                    grad_Gamma, grad_Delta = mini_batch_gradient(
                        (Gamma, Delta), Theta_t, b, Z[cells], T[cells], lambda_target, mu, lambda_id
                    )
                    Gamma = adam_Gamma.step(Gamma, grad_Gamma)
                    Delta = adam_Delta.step(Delta, grad_Delta)
            copies.append((Gamma, Delta))
        history.append(federated_average(copies, codes))
    return history


def torch_adam(
    Z: Array,
    codes: Codes,
    rounds: int,
    permutation: Permutation,
    *,
    lambda_target: float = 0.5,
    mu: float = 1e-3,
    lambda_id: float = 1e-3,
    eps: float = 1e-6,
    variance_matching: bool = True,
    lr: float = 5e-2,
    local_epochs: int = 3,
    batch_size: int = 256,
    betas: tuple[float, float] = (0.9, 0.999),
    adam_eps: float = 1e-8,
) -> list[Adapter]:
    """Return what textbook_adam returns, by autograd and torch.optim.Adam."""
    import torch  # here, because torch is optional and only this function needs it

    class FiLM(torch.nn.Module):
        """A_Theta(z, b) = gamma_b * z + beta_b."""

        def __init__(self, B: int, d: int) -> None:
            super().__init__()
            self.Gamma = torch.nn.Parameter(torch.ones(B, d, dtype=torch.float64))
            self.Delta = torch.nn.Parameter(torch.zeros(B, d, dtype=torch.float64))

        def forward(self, z: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            return self.Gamma[batch] * z + self.Delta[batch]

    Z = np.asarray(Z, dtype=np.float64)
    cells_z = torch.tensor(Z)
    cells_t = torch.tensor(target_cells(Z, codes, eps, variance_matching))
    cells_b = torch.tensor(np.asarray(codes, dtype=np.int64))
    B, d = batch_count(codes), Z.shape[1]
    server = FiLM(B, d)

    def snapshot() -> Adapter:
        # Copies, since .numpy() would share memory with the parameters.
        return server.Gamma.detach().numpy().copy(), server.Delta.detach().numpy().copy()

    history = [snapshot()]
    for t in range(rounds):
        received = {name: value.clone() for name, value in server.state_dict().items()}
        average = {name: torch.zeros_like(value) for name, value in received.items()}
        for b in range(B):
            client = FiLM(B, d)
            client.load_state_dict(received)
            adam = torch.optim.Adam(client.parameters(), lr=lr, betas=betas, eps=adam_eps)
            for e in range(local_epochs):
                for cells in mini_batches(b, t, e, codes, batch_size, permutation):
                    adam.zero_grad()
                    refined = client(cells_z[cells], cells_b[cells])
                    fit = torch.nn.functional.mse_loss(refined, cells_t[cells])
                    prox = sum(
                        ((p - received[name]) ** 2).sum() for name, p in client.named_parameters()
                    )
                    # A mean over the B d entries is the paper's 1/(B d).
                    identity = ((client.Gamma - 1.0) ** 2).mean() + (client.Delta**2).mean()
                    loss = lambda_target * fit + mu * prox + lambda_id * identity
                    loss.backward()
                    adam.step()
            share = int(np.sum(codes == b)) / len(codes)
            for name, value in client.state_dict().items():
                average[name] += share * value
        server.load_state_dict(average)
        history.append(snapshot())
    return history
