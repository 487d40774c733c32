"""Masks: random numbers that hide what a site adds, and that cancel in the sum over all sites.

Every pair of sites shares a secret (X25519). From it, the hash of the plan, the number of the round and the
state that the round starts from, both compute the same random numbers (HKDF, AES-CTR). One adds them, the
other subtracts them. So a message looks random, unless all other sites together reveal their secrets.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ..errors import BadValue
from .fixed import Fixed, Limbs
from .keys import Card, SiteKeys
from .plan import Plan

__all__ = ["masked"]


def masked(
    limbs: Limbs, fixed: Fixed, keys: SiteKeys, plan: Plan, number: int, state: str
) -> Limbs:
    """The numbers of a site with the masks that it shares with every other site of a plan."""
    salt = hashlib.sha256(f"{plan.hash} {number} {state}".encode()).digest()
    for other in plan.members:
        if other.site == keys.site:
            continue
        mask = _mask(keys, other, salt, fixed, len(limbs))
        # Both agree on who adds: the site whose name comes first.
        limbs = fixed.added(limbs, mask if keys.site < other.site else fixed.negated(mask))
    return limbs


def _mask(keys: SiteKeys, other: Card, salt: bytes, fixed: Fixed, n: int) -> Limbs:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        secret = keys.masking.exchange(
            X25519PublicKey.from_public_bytes(bytes.fromhex(other.masking))
        )
    except ValueError:  # one of the few keys whose secrets everyone knows
        raise BadValue(
            f"Expected a public key for masks on the card of {other.site}, found one that shares no "
            f"secret with any site."
        ) from None
    pair = " ".join(sorted((keys.card.masking, other.masking)))
    key = HKDF(SHA256(), 32, salt, f"scbatchprox mask {pair}".encode()).derive(secret)
    # The key is used once, so the counter may start at zero.
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    raw = stream.update(bytes(8 * n * fixed.n_limbs)) + stream.finalize()
    return np.frombuffer(raw, "<u8").reshape(n, fixed.n_limbs).astype(np.uint64)
