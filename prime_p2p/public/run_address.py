"""The address of a public run: where to find it, its name, and whose word on it counts.

    /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW.../run/NAME/FINGERPRINT

The fingerprint is of the author's public key. So the address itself says whose signature to trust; whoever hands it on,
or runs the bootstrap node in it, can keep a run from being found, but cannot change what it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import base58
from blake3 import blake3

from prime_p2p.errors import BadInput
from prime_p2p.network.identity import is_peer_id
from prime_p2p.recipe import RUN_NAME

_FINGERPRINT = 16  # bytes: 128 bits, of which nobody finds another key's
_LONGEST = 512  # characters of an address
_FORM = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooW.../run/NAME/FINGERPRINT"


def fingerprint(author: str) -> str:
    """The fingerprint of an author, whose public key is given as a peer id."""
    return base58.b58encode(blake3(author.encode()).digest(_FINGERPRINT)).decode()


def run_id(name: str, author: str) -> str:
    """What a run is called among its peers: two authors may choose the same name. ``author`` is a fingerprint."""
    return f"{name}/{author}"


@dataclass(frozen=True)
class RunAddress:
    """A run, and a peer to find it by. ``author`` is the fingerprint of who signs for it."""

    bootstrap: str
    name: str
    author: str

    @property
    def run(self) -> str:
        return run_id(self.name, self.author)

    def __str__(self) -> str:
        return f"{self.bootstrap}/run/{self.name}/{self.author}"

    @classmethod
    def parse(cls, text: str) -> RunAddress:
        """Read an address as somebody has pasted it. Raises BadInput that says which part is wrong."""
        text = "".join(text.split())  # a line break from an e-mail
        shown = text if len(text) <= 120 else f"{text[:117]}..."
        if len(text) > _LONGEST:
            raise BadInput(f"run address {shown!r} is longer than {_LONGEST} characters; it looks like {_FORM}")
        bootstrap, separator, rest = text.partition("/run/")
        if not separator:
            raise BadInput(f"run address {shown!r} has no /run/ part; it looks like {_FORM}")
        name, _, author = rest.partition("/")
        if not bootstrap.startswith("/") or not is_peer_id(bootstrap.rpartition("/p2p/")[2]):
            raise BadInput(f"run address {shown!r} does not begin with the address of a peer; it looks like {_FORM}")
        if not re.fullmatch(RUN_NAME, name):
            raise BadInput(f"run address {shown!r} names no run after /run/; it looks like {_FORM}")
        if not _is_fingerprint(author):
            raise BadInput(
                f"run address {shown!r} is cut or mistyped: {author!r} is no fingerprint of an author's key; copy all "
                "of the address"
            )
        return cls(bootstrap, name, author)


def _is_fingerprint(text: str) -> bool:
    try:
        decoded = base58.b58decode(text)
    except ValueError:
        return False
    return len(decoded) == _FINGERPRINT and base58.b58encode(decoded).decode() == text
