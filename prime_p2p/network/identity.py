"""The identity of a peer: an Ed25519 key, whose public half is its libp2p peer id."""

import fcntl
import functools
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from prime_p2p.errors import BadInput

# libp2p's protobuf messages around an Ed25519 key, and the identity multihash around the public one.
# https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md
_PRIVATE = b"\x08\x01\x12\x40"
_PEER_ID = b"\x00\x24\x08\x01\x12\x20"
_KEY = 32
_LONGEST_PEER_ID = 64  # characters; an Ed25519 one has 52


class Identity:
    """A private key, and the file it was read from."""

    def __init__(self, key: Ed25519PrivateKey, path: Path) -> None:
        self._key = key
        self.path = path
        self.peer_id = base58.b58encode(_PEER_ID + key.public_key().public_bytes_raw()).decode()

    @classmethod
    def load_or_create(cls, path: Path) -> "Identity":
        """Read the key at `path`, in the form libp2p gives it; make one first if there is none (mode 0600).

        Raises:
            BadInput: the file cannot be read or written, or holds something else.
        """
        try:
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                data = _create(path)
        except OSError as error:
            raise BadInput(f"identity {path}: {error.strerror}") from None
        return cls(_parse(data, path), path)

    def sign(self, data: bytes) -> bytes:
        """Return the signature of `data`, 64 bytes."""
        return self._key.sign(data)

    def lock(self) -> BinaryIO:
        """Return a handle that keeps other processes of this machine from being the same peer until it is closed.

        Raises:
            BadInput: one of them is.
        """
        handle = self.path.open("rb")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            raise BadInput(
                f"identity {self.path} is in use by another peer; start this one in a folder of its own"
            ) from None
        return handle


def verify(peer_id: str, data: bytes, signature: bytes) -> bool:
    """Whether the peer of that id signed `data`. False for anything malformed."""
    public = _public_key(peer_id)
    return public is not None and is_signed_by(public, data, signature)


def is_signed_by(public: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the holder of a public key (32 bytes) signed `data`. False for anything malformed."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_peer_id(text: str) -> bool:
    """Whether `text` is a peer id of the one kind used here."""
    return _public_key(text) is not None


def _public_key(peer_id: str) -> bytes | None:
    return _decoded(peer_id) if len(peer_id) <= _LONGEST_PEER_ID else None


@functools.lru_cache(4096)
def _decoded(peer_id: str) -> bytes | None:
    """`_public_key`, done once for a peer that signs much: it takes nearly as long as checking a signature."""
    try:
        decoded = base58.b58decode(peer_id)
    except ValueError:
        return None
    if len(decoded) != len(_PEER_ID) + _KEY or not decoded.startswith(_PEER_ID):
        return None
    if base58.b58encode(decoded).decode() != peer_id:  # the decoder also takes, for example, trailing spaces
        return None
    return decoded[len(_PEER_ID) :]


def _create(path: Path) -> bytes:
    """Write a new key and return its file's bytes; the bytes of another process that was faster, if one was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    data = _PRIVATE + key.private_bytes_raw() + key.public_key().public_bytes_raw()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
    return path.read_bytes()


def _parse(data: bytes, path: Path) -> Ed25519PrivateKey:
    if len(data) == len(_PRIVATE) + 2 * _KEY and data.startswith(_PRIVATE):
        seed, public = data[len(_PRIVATE) : -_KEY], data[-_KEY:]
        key = Ed25519PrivateKey.from_private_bytes(seed)
        if key.public_key().public_bytes_raw() == public:
            return key
    raise BadInput(f"identity {path} is not an Ed25519 key of libp2p; move it away to have a new one made")
