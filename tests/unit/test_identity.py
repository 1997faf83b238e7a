"""Identities: the key file, the peer id in it, and signatures that only its owner can make."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import base58
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from prime_p2p.errors import BadInput
from prime_p2p.network.identity import Identity, is_peer_id, verify

# From the peer id specification: an Ed25519 private key as libp2p encodes it.
SPEC_KEY = bytes.fromhex(
    "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
)
SPEC_PUBLIC = bytes.fromhex("080112201ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return Identity.load_or_create(tmp_path_factory.mktemp("identity") / "key")


def test_the_key_of_the_specification_gives_its_peer_id(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(SPEC_KEY)
    assert base58.b58decode(Identity.load_or_create(path).peer_id) == b"\x00\x24" + SPEC_PUBLIC


def test_a_new_identity_is_kept_in_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "key"
    first = Identity.load_or_create(path)
    assert first.peer_id.startswith("12D3KooW")
    assert first.path == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["key"]
    assert Identity.load_or_create(path).peer_id == first.peer_id


def test_of_many_that_make_an_identity_at_once_all_get_the_same(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    found: list[str] = []

    def make() -> None:
        barrier.wait()
        found.append(Identity.load_or_create(tmp_path / "key").peer_id)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        SPEC_KEY[:-1],
        SPEC_KEY + b"\0",
        b"\x08\x00" + SPEC_KEY[2:],  # the tag of an RSA key
        SPEC_KEY[:36] + bytes(32),  # a public half that is not that of the private one
    ],
)
def test_a_file_that_is_no_identity_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="is not an Ed25519 key"):
        Identity.load_or_create(path)
    assert path.read_bytes() == content


def test_a_path_that_cannot_be_read_or_made_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"identity .*: Is a directory"):
        Identity.load_or_create(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadInput, match=r"identity .*file/key: (Not a directory|File exists)"):
        Identity.load_or_create(tmp_path / "file" / "key")
    with pytest.raises(BadInput, match=r"identity /proc/key"):
        Identity.load_or_create(Path("/proc/key"))


@given(data=st.binary(max_size=100), flip=st.integers(0, 511))
def test_a_signature_holds_for_its_data_and_its_peer_only(identity: Identity, data: bytes, flip: int) -> None:
    signature = identity.sign(data)
    assert len(signature) == 64
    assert verify(identity.peer_id, data, signature)
    assert not verify(identity.peer_id, data + b"\0", signature)
    broken = bytearray(signature)
    broken[flip // 8] ^= 1 << flip % 8
    assert not verify(identity.peer_id, data, bytes(broken))


def test_a_signature_of_one_peer_is_none_of_another(identity: Identity, tmp_path: Path) -> None:
    other = Identity.load_or_create(tmp_path / "other")
    assert not verify(other.peer_id, b"data", identity.sign(b"data"))


@given(peer_id=st.text(max_size=80) | st.binary(max_size=60).map(lambda raw: base58.b58encode(raw).decode()))
def test_a_malformed_peer_id_signs_nothing(peer_id: str) -> None:
    assert not verify(peer_id, b"data", bytes(64))


@given(signature=st.binary(max_size=100))
def test_a_malformed_signature_is_none(identity: Identity, signature: bytes) -> None:
    assert not verify(identity.peer_id, b"data", signature)


def test_a_peer_id_has_one_spelling(identity: Identity) -> None:
    assert is_peer_id(identity.peer_id)
    for other in (f"{identity.peer_id} ", f"{identity.peer_id}\n", f"1{identity.peer_id}", identity.peer_id[:-1], ""):
        assert not is_peer_id(other)
    assert not is_peer_id("QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC")


def test_the_signature_is_plain_ed25519(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(SPEC_KEY)
    key = Ed25519PrivateKey.from_private_bytes(SPEC_KEY[4:36])
    assert Identity.load_or_create(path).sign(b"data") == key.sign(b"data")


def test_a_locked_identity_is_refused_to_a_second_peer_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first, second = Identity.load_or_create(path), Identity.load_or_create(path)
    with first.lock(), pytest.raises(BadInput, match="in use by another peer"):
        second.lock()
    second.lock().close()


def test_a_locked_identity_is_free_again_when_its_process_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "key"
    identity = Identity.load_or_create(path)
    program = (
        "import sys, pathlib; from prime_p2p.network.identity import Identity;"
        "handle = Identity.load_or_create(pathlib.Path(sys.argv[1])).lock(); print('locked', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(BadInput, match="in use by another peer"):
            identity.lock()
        owner.kill()
    identity.lock().close()
