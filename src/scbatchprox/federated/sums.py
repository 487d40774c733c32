r"""Masked sums over sites: exact numbers, the masks that hide them, and the rounds in which they are added.

Numbers are integers modulo :math:`2^{bits}`, in units of :math:`2^{-fraction}`. Sums of integers do not
depend on the order of the sites, do not cancel, and can be masked by random integers. An integer is stored as
64-bit limbs, the lowest first; negative ones as in two's complement.

Masks are random numbers that hide what a site adds, and that cancel in the sum over all sites. Every pair of
sites shares a secret (X25519). From it, the hash of the plan, the number of the round and the state that the
round starts from, both compute the same random numbers (HKDF, AES-CTR). One adds them, the other subtracts
them. So a message looks random, unless all other sites together reveal their secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import numpy as np

from ..errors import BadValue
from ..kernels.arrays import Floats
from .keys import Card, SiteKeys
from .plan import Plan

__all__ = ["WIDE", "AddUp", "Addends", "FixedPoint", "Kind", "Limbs", "Totals", "masked"]

#: (n, bits / 64) unsigned integers, the lowest first.
Limbs = np.ndarray

LIMB = 64


@dataclass(frozen=True)
class FixedPoint:
    """A format of fixed-point numbers.

    One site leaves ``spare`` bits of the range free, so that the sum of up to 2^spare sites is in range too.
    None are needed if the sum is known to be in range.
    """

    bits: int  # size of a number, a multiple of 64
    fraction: int  # bits after the binary point
    spare: int = 16

    def __post_init__(self) -> None:
        if (
            self.bits <= 0
            or self.bits % LIMB
            or not 0 <= self.fraction < self.bits - self.spare - 1
        ):
            raise BadValue(
                f"Expected a multiple of {LIMB} bits and fewer bits of fraction, found {self.bits} and "
                f"{self.fraction}."
            )

    @property
    def n_limbs(self) -> int:
        """64-bit limbs of a number."""
        return self.bits // LIMB

    @property
    def limit(self) -> float:
        """Numbers of one site must be smaller than this."""
        return float(2.0 ** (self.bits - 1 - self.spare - self.fraction))

    def encoded(self, values: Floats | Sequence[Fraction | int]) -> Limbs:
        """The nearest fixed-point numbers; an error beyond the range."""
        if isinstance(values, np.ndarray):
            return self._from_floats(values)
        scaled = [round(Fraction(value) * (1 << self.fraction)) for value in values]
        bound = 1 << (self.bits - 1 - self.spare)
        if any(not -bound < number < bound for number in scaled):
            raise self._out_of_range()
        size = self.bits // 8
        raw = b"".join((number % (1 << self.bits)).to_bytes(size, "little") for number in scaled)
        return np.frombuffer(raw, "<u8").reshape(-1, self.n_limbs).astype(np.uint64)

    def added(self, a: Limbs, b: Limbs) -> Limbs:
        """Sums modulo 2^bits."""
        out = np.empty_like(a)
        carry = np.zeros(len(a), np.uint64)
        for i in range(self.n_limbs):
            part = a[:, i] + b[:, i]
            over = part < a[:, i]
            out[:, i] = part + carry
            carry = (over | (out[:, i] < part)).astype(np.uint64)
        return out

    def negated(self, a: Limbs) -> Limbs:
        """Numbers of the other sign."""
        one = np.zeros_like(a)
        one[:, 0] = 1
        return self.added(~a, one)

    def integers(self, a: Limbs) -> list[int]:
        """Signed integers, in units of 2^-fraction."""
        size, raw = self.bits // 8, a.astype("<u8").tobytes()
        return [
            int.from_bytes(raw[at : at + size], "little", signed=True)
            for at in range(0, len(raw), size)
        ]

    def fractions(self, a: Limbs) -> list[Fraction]:
        """The exact values."""
        return [Fraction(number, 1 << self.fraction) for number in self.integers(a)]

    def floats(self, a: Limbs) -> Floats:
        """The values in double precision, correct to about its last bit."""
        negative = (a[:, -1] >> np.uint64(LIMB - 1)).astype(bool)
        size = np.where(negative[:, None], self.negated(a), a)
        out = np.zeros(len(a))
        # From the top: what is added is smaller than an ulp.
        for i in reversed(range(self.n_limbs)):
            out += np.ldexp(size[:, i].astype(np.float64), LIMB * i - self.fraction)
        return np.where(negative, -out, out)

    def _from_floats(self, values: Floats) -> Limbs:
        if not (np.abs(values) < self.limit).all():  # NaN is not smaller
            raise self._out_of_range()
        whole = np.rint(np.ldexp(values, self.fraction))
        rest = np.abs(whole)
        if (rest >= 2.0 ** (self.bits - 1 - self.spare)).any():  # by the rounding
            raise self._out_of_range()
        out = np.empty((values.size, self.n_limbs), np.uint64)
        for i in range(self.n_limbs - 1, 0, -1):  # from the top: what is left is exact
            out[:, i] = high = np.floor(np.ldexp(rest, -LIMB * i))
            rest -= np.ldexp(high, LIMB * i)
        out[:, 0] = rest
        return np.where((whole < 0)[:, None], self.negated(out), out)

    def _out_of_range(self) -> BadValue:
        return BadValue(
            f"Expected numbers below {self.limit:.3g} to add over sites, found larger ones, NaN or infinity."
        )


#: For moments: squares of coordinates up to 1e24 in size, of a trillion cells, exact to 1e-57.
WIDE = FixedPoint(384, 192)


T = TypeVar("T")


class Addends:
    """Numbers of one site, to be added to those of all others.

    ``values`` are doubles, which are rounded to the format, or exact numbers, or a function that computes
    doubles: a round whose sum is known does not need them. The format ``fixed`` must not depend on the
    site's data.
    """

    def __init__(
        self, values: Floats | Sequence[Fraction | int] | Callable[[], Floats], fixed: FixedPoint
    ) -> None:
        self._values, self.fixed = values, fixed

    @cached_property
    def values(self) -> Floats | Sequence[Fraction | int]:
        """The numbers."""
        return self._values() if callable(self._values) else self._values

    @property
    def limbs(self) -> Limbs:
        """The numbers in their format."""
        return self.fixed.encoded(self.values)


@dataclass(frozen=True, eq=False)
class Totals:
    """Exact sums over all sites."""

    fixed: FixedPoint
    limbs: Limbs

    def floats(self) -> Floats:
        """(n,) the sums in double precision."""
        return self.fixed.floats(self.limbs)

    def fractions(self) -> list[Fraction]:
        """The exact sums."""
        return self.fixed.fractions(self.limbs)


#: Takes what a site adds in a round, and returns the sums over all sites; it may raise to stop.
AddUp = Callable[[Addends], Totals]
#: A kind of sum: a computation of a site whose rounds are added up.
Kind = Callable[[AddUp], T]


def masked(
    limbs: Limbs, fixed: FixedPoint, keys: SiteKeys, plan: Plan, number: int, state: str
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


def _mask(keys: SiteKeys, other: Card, salt: bytes, fixed: FixedPoint, n: int) -> Limbs:
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
