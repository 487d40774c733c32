"""Masks against an oracle in Python integers, written from the description of the protocol."""

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from scbatchprox.errors import BadValue
from scbatchprox.federated import WIDE, Card, FixedPoint, Plan
from scbatchprox.federated.keys import SiteKeys
from scbatchprox.federated.sums import masked


def keys_of(name, seed):
    """Keys that are the same in every run."""
    signing, masking = (
        hashlib.sha256(f"{what} {name} {seed}".encode()).digest() for what in ("s", "m")
    )
    return SiteKeys(
        "lung",
        name,
        Ed25519PrivateKey.from_private_bytes(signing),
        X25519PrivateKey.from_private_bytes(masking),
    )


def sites_of(n, seed=0):
    return [keys_of(f"site{i:02}", seed) for i in range(n)]


def plan_of(sites, **parameters):
    return Plan("lung", "refine", tuple(keys.card for keys in sites), parameters)


def values_of(fixed, n, seed=0):
    return fixed.encoded(np.random.default_rng(seed).normal(size=n))


# --- the oracle -----------------------------------------------------------------------------------


def hkdf(secret, salt, info):
    """32 bytes of HKDF-SHA256, RFC 5869: extract, then one block of expand."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def aes_ctr(key, n_bytes):
    """AES-256 of 0, 1, 2, ... as big-endian blocks."""
    blocks = b"".join(i.to_bytes(16, "big") for i in range(-(-n_bytes // 16)))
    aes = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    return (aes.update(blocks) + aes.finalize())[:n_bytes]


def oracle(integers, bits, own, cards, plan_hash, number, state):
    """What a site publishes, as unsigned integers."""
    salt = hashlib.sha256(f"{plan_hash} {number} {state}".encode()).digest()
    size, found = bits // 8, list(integers)
    for card in cards:
        if card.site == own.site:
            continue
        secret = own.masking.exchange(
            X25519PublicKey.from_public_bytes(bytes.fromhex(card.masking))
        )
        both = sorted([own.masking.public_key().public_bytes_raw().hex(), card.masking])
        key = hkdf(secret, salt, f"scbatchprox mask {both[0]} {both[1]}".encode())
        stream = aes_ctr(key, size * len(found))
        sign = 1 if own.site < card.site else -1
        for i in range(len(found)):
            found[i] += sign * int.from_bytes(stream[i * size : (i + 1) * size], "little")
    return [number % (1 << bits) for number in found]


def unsigned(fixed, limbs):
    return [number % (1 << fixed.bits) for number in fixed.integers(limbs)]


# --- tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed", [WIDE, FixedPoint(128, 72), FixedPoint(64, 20)], ids=str)
@pytest.mark.parametrize(("number", "state"), [(0, ""), (3, "ab" * 32)])
def test_masks_are_those_of_the_oracle(fixed, number, state):
    sites = sites_of(4)
    plan = plan_of(sites, a=1)
    for i, keys in enumerate(sites):
        limbs = values_of(fixed, 7, i)
        found = masked(limbs, fixed, keys, plan, number, state)
        expected = oracle(
            fixed.integers(limbs), fixed.bits, keys, plan.members, plan.hash, number, state
        )
        assert unsigned(fixed, found) == expected


@given(st.integers(3, 30), st.integers(0, 1000), st.sampled_from([WIDE, FixedPoint(64, 20)]))
@settings(max_examples=6)
def test_masks_cancel_over_any_number_of_sites(n, seed, fixed):
    sites = sites_of(n, seed)
    plan = plan_of(sites)
    total, expected = 0, 0
    for i, keys in enumerate(sites):
        limbs = values_of(fixed, 1, seed + i)
        expected += fixed.integers(limbs)[0]
        total += unsigned(fixed, masked(limbs, fixed, keys, plan, 0, ""))[0]
    assert total % (1 << fixed.bits) == expected % (1 << fixed.bits)


def test_all_but_one_site_do_not_cancel():
    sites = sites_of(5)
    plan = plan_of(sites)
    total = sum(
        unsigned(WIDE, masked(WIDE.encoded([1]), WIDE, keys, plan, 0, ""))[0] for keys in sites[:-1]
    )
    rest = total % (1 << WIDE.bits)
    assert min(rest, (1 << WIDE.bits) - rest).bit_length() > 350  # as large as random numbers are


def chi_square(raw):
    counts = np.bincount(np.frombuffer(raw, np.uint8), minlength=256)
    expected = len(raw) / 256
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("what", ["zeros", "constants", "moments"])
def test_one_message_looks_uniform(what):
    """Keys are fixed, so this passes always or never; the limits are beyond 5 standard deviations."""
    values = {
        "zeros": np.zeros(4000),
        "constants": np.full(4000, 1234.5),
        "moments": np.random.default_rng(0).normal(size=4000) ** 2,
    }[what]
    sites = sites_of(3)
    limbs = WIDE.encoded(values)
    raw = masked(limbs, WIDE, sites[1], plan_of(sites), 0, "").tobytes()
    deviation = np.sqrt(2 * 255)
    assert abs(chi_square(raw) - 255) < 5 * deviation
    assert chi_square(limbs.tobytes()) > 1e5  # what the test would find without masks
    ones = np.unpackbits(np.frombuffer(raw, np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(8 * len(raw))


def test_masks_differ_by_everything_that_they_are_salted_with():
    sites = sites_of(3)
    zeros = WIDE.encoded([0] * 50)
    plan, others = plan_of(sites), plan_of(sites, note=1)
    larger = plan_of(sites_of(4))
    found = [
        masked(zeros, WIDE, sites[0], plan, 0, ""),
        masked(zeros, WIDE, sites[0], plan, 1, ""),
        masked(zeros, WIDE, sites[0], plan, 0, "00"),
        masked(zeros, WIDE, sites[0], others, 0, ""),
        masked(zeros, WIDE, sites[0], larger, 0, ""),
        masked(zeros, WIDE, sites[1], plan, 0, ""),
        masked(zeros, WIDE, sites_of(3, seed=1)[0], plan_of(sites_of(3, seed=1)), 0, ""),
    ]
    numbers = [number for limbs in found for number in unsigned(WIDE, limbs)]
    assert len(set(numbers)) == len(numbers)
    # Nor does the difference of two of them, or their sum, reveal anything: it is as random.
    for i, a in enumerate(found):
        for b in found[:i]:
            for c in (WIDE.added(a, b), WIDE.added(a, WIDE.negated(b))):
                assert (c[:, -1] != 0).all()


#: Public keys whose shared secret is zero for every private key.
LOW_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


@pytest.mark.parametrize("key", LOW_ORDER)
def test_a_key_that_shares_no_secret_is_refused_in_a_sentence(key):
    sites = sites_of(3)
    card = sites[2].card
    bad = Card(card.study, card.site, card.signing, key)
    plan = Plan("lung", "refine", (sites[0].card, sites[1].card, bad), {})
    with pytest.raises(BadValue, match="on the card of site02, found one that shares no secret"):
        masked(WIDE.encoded([1]), WIDE, sites[0], plan, 0, "")
