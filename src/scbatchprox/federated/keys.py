"""The keys of a site in a study, and the card that tells other sites its public keys."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadFile, BadValue, MissingExtra
from ..io.atomic import kind_at, replacing
from .messages import MOST_BYTES, Message, as_bytes, check_name, grouped, shown

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

__all__ = ["OWNER_ONLY", "Card", "SiteKeys"]

KEYS_FILE = "keys.json"
#: The mode of files in a private folder. One that is changed later comes too late: who has opened the file
#: until then reads whatever is written to it.
OWNER_ONLY = 0o600


def _key_types() -> tuple[type[Ed25519PrivateKey], type[X25519PrivateKey]]:
    """The classes of keys, or an error that names the extra if their package is not installed."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError:
        raise MissingExtra("the package cryptography for federated fits", "federated") from None
    return Ed25519PrivateKey, X25519PrivateKey


@dataclass(frozen=True)
class Card:
    """A site's name and public keys in a study, in hexadecimal."""

    study: str
    site: str
    signing: str  # Ed25519, for signatures
    masking: str  # X25519, for the masks that pairs of sites share

    def __post_init__(self) -> None:
        check_name("study", self.study)
        check_name("site", self.site)
        for key in (self.signing, self.masking):
            if not isinstance(key, str) or len(key) != 64 or set(key) - set("0123456789abcdef"):
                raise BadValue(
                    f"Expected public keys of 64 hexadecimal digits, found {shown(key)} of {self.site}."
                )

    @classmethod
    def from_json(cls, stored: Any) -> Card:
        """The card from the result of :meth:`to_json`."""
        names = {"study", "site", "signing", "masking"}
        if not isinstance(stored, dict) or set(stored) != names:
            raise BadValue(f"Expected a card with {', '.join(sorted(names))}, found another.")
        return cls(**stored)

    def to_json(self) -> dict[str, str]:
        """The card as JSON types."""
        return dict(vars(self))

    @property
    def fingerprint(self) -> str:
        """A hash of the card, for people to compare by telephone or in person."""
        return grouped(hashlib.sha256(as_bytes(self.to_json())).hexdigest())

    @classmethod
    def read(cls, path: Path) -> Card:
        """Read a card and verify that its site signed it."""
        return cls.of(Message.read(path, most_body=0), path)

    @classmethod
    def of(cls, message: Message, path: Path) -> Card:
        """The card in a message, if its site signed it."""
        card = cls.from_json(message.header.get("card"))
        card.check(message, path, type="card")
        if path.stem != card.site:
            raise BadValue(
                f"Expected the card of {path.stem} at {path}, found that of {card.site}."
            )
        return card

    def message(self, path: Path, most_body: int = MOST_BYTES, **expected: Any) -> Message:
        """Read a message, and verify that this site signed it, with these entries in its header."""
        return self.check(Message.read(path, most_body), path, **expected)

    def check(self, message: Message, path: Path, **expected: Any) -> Message:
        """Verify that this site signed a message, with these entries in its header; return it."""
        return message.check(bytes.fromhex(self.signing), path, **expected)


@dataclass(frozen=True, eq=False, repr=False)
class SiteKeys:
    """The private keys of a site in a study. They never leave its private folder."""

    study: str
    site: str
    signing: Ed25519PrivateKey
    masking: X25519PrivateKey

    @classmethod
    def create(cls, folder: Path, study: str, site: str) -> SiteKeys:
        """Make new keys and save them, readable by this account only."""
        signing, masking = _key_types()
        check_name("study", study)
        check_name("site", site)
        path = folder / KEYS_FILE
        if path.exists():
            raise BadValue(
                f"Expected no keys in {folder}, found some; a site has one pair per study."
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_closed(folder)
        keys = cls(study, site, signing.generate(), masking.generate())
        secret = {
            "study": study,
            "site": site,
            "signing": keys.signing.private_bytes_raw().hex(),
            "masking": keys.masking.private_bytes_raw().hex(),
        }
        with replacing(path, mode=OWNER_ONLY) as temporary:
            temporary.write_bytes(as_bytes(secret))
        return keys

    @classmethod
    def known(cls, folder: Path, study: str, site: str) -> SiteKeys | None:
        """The keys of this very site, made by a process that ended before it published the card."""
        if not (folder / KEYS_FILE).exists():
            return None
        keys = cls.load(folder)
        return keys if (keys.study, keys.site) == (study, site) else None

    @classmethod
    def load(cls, folder: Path) -> SiteKeys:
        """Load the keys of a site."""
        signing, masking = _key_types()
        path = folder / KEYS_FILE
        try:
            if kind_at(path) not in (None, "file"):
                raise BadValue(f"Expected keys in {path}, found a {kind_at(path)}.")
            if os.name == "posix" and path.stat().st_mode & 0o077:
                raise BadValue(
                    f"Expected keys that only their owner can read, found others at {path}; chmod 600 it, "
                    f"and make new keys if someone may have read them."
                )
            _check_closed(folder)
            stored = json.loads(path.read_bytes())
            return cls(
                check_name("study", stored["study"]),
                check_name("site", stored["site"]),
                signing.from_private_bytes(bytes.fromhex(stored["signing"])),
                masking.from_private_bytes(bytes.fromhex(stored["masking"])),
            )
        except FileNotFoundError:
            raise BadFile(
                f"Expected the keys of a site in {folder}, found none; make them with scbatchprox "
                f"federated keys."
            ) from None
        except BadValue:
            raise
        except (KeyError, TypeError, ValueError):
            raise BadValue(f"Expected keys in {path}, found a damaged file.") from None

    @property
    def card(self) -> Card:
        """The public part."""
        public = (key.public_key().public_bytes_raw().hex() for key in (self.signing, self.masking))
        return Card(self.study, self.site, *public)

    def card_message(self) -> Message:
        """The card as a message."""
        return Message.signed(self.signing, {"type": "card", "card": self.card.to_json()})


def _check_closed(folder: Path) -> None:
    """Raise an error if other accounts may enter, list or write to a private folder."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise BadValue(
            f"Expected a private folder that only its owner can use, found mode {mode:04o} of {folder}, with "
            f"which other accounts can enter it or write to it; chmod 700 it."
        )
