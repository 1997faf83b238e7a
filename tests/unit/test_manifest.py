"""Signed manifests: what counts is what the author of the address has signed, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from public_runs import author, manifest, signed

from prime_p2p.errors import BadInput
from prime_p2p.network.identity import Identity
from prime_p2p.public.admission import MAX_PEERS
from prime_p2p.public.manifest import PROTOCOL, BadManifest, Manifest, Seal, SignedManifest, check_version


@pytest.fixture
def by(tmp_path: Path) -> Identity:
    return author(tmp_path)


def reopened(one: SignedManifest) -> SignedManifest:
    return SignedManifest.from_bytes(one.to_bytes(), one.manifest.run)


def test_a_manifest_is_read_as_it_was_signed(by: Identity) -> None:
    one = signed(by, changes=[{"at": 3, "values": {"inner.learning_rate": 0.001}}])
    assert reopened(one) == one
    assert reopened(one).manifest.terms.recipe_at(3).inner.learning_rate == 0.001


def test_a_changed_byte_is_found_wherever_it_is(by: Identity) -> None:
    data = signed(by).to_bytes()
    for index in range(0, len(data), 7):
        wrong = bytearray(data)
        wrong[index] ^= 1
        with pytest.raises(BadManifest):
            SignedManifest.from_bytes(bytes(wrong), signed(by).manifest.run)


def test_another_author_cannot_sign_for_the_run(by: Identity, tmp_path: Path) -> None:
    other = author(tmp_path, "other.key")
    run = signed(by).manifest.run
    forged = SignedManifest.sign(manifest(by), other)  # says that it is by the author
    with pytest.raises(BadManifest, match="not signed by the author"):
        SignedManifest.from_bytes(forged.to_bytes(), run)
    own = signed(other)
    with pytest.raises(BadManifest, match="not signed by the author"):
        SignedManifest.from_bytes(own.to_bytes(), run)


def test_a_manifest_of_another_run_of_the_author_does_not_count(by: Identity) -> None:
    recipe = manifest(by).recipe | {"run": {"name": "other", "seed": 1}}
    other = signed(by, name="other", recipe=recipe)
    with pytest.raises(BadManifest):
        SignedManifest.from_bytes(other.to_bytes(), signed(by).manifest.run)


def test_a_seal_does_not_fit_another_manifest(by: Identity) -> None:
    one, two = signed(by), signed(by, sequence=2)
    with pytest.raises(BadManifest, match="not what its author has signed"):
        SignedManifest.opened(two.body, one.seal, one.manifest.run)
    fields = one.seal.to_fields() | {"sequence": 2}
    assert Seal.from_fields(fields, one.manifest.run) is None
    assert Seal.from_fields(one.seal.to_fields(), one.manifest.run) == one.seal


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"changes": [{"at": 1, "values": {"model.layers": 3}}]}, "model.layers"),
        ({"changes": [{"at": 1, "values": {"inner.learning_rate": -1.0}}]}, "learning_rate"),
        ({"recipe": {"run": {"name": "tiny"}}}, "is missing"),
        ({"name": "other"}, "another name"),
    ],
)
def test_what_no_peer_could_go_by_is_refused_though_it_is_signed(
    changes: dict[str, Any], named: str, by: Identity
) -> None:
    one = signed(by, **changes)
    with pytest.raises(BadManifest, match=named):
        reopened(one)


def test_a_manifest_for_many_peers_fits_and_a_larger_one_is_refused(by: Identity) -> None:
    peers = [f"12D3KooW{number:044d}" for number in range(MAX_PEERS)]
    one = signed(by, admission={"rule": "allow", "peers": peers})
    assert reopened(one) == one
    assert len(msgpack.packb(one.seal.to_fields())) < 3000
    with pytest.raises(BadInput, match="shorten"):
        signed(by, admission={"rule": "allow", "peers": [peer + "12345678" for peer in peers], "banned": peers})


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=64),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(data=st.binary(max_size=400) | _JSON.map(lambda value: msgpack.packb(value)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_of_anybody_are_a_bad_manifest(data: bytes, by: Identity) -> None:
    with pytest.raises(BadManifest):
        SignedManifest.from_bytes(data, signed(by).manifest.run)


@given(field=st.sampled_from(sorted(Manifest.model_fields)), value=_JSON)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_field_of_any_type_is_read_or_a_bad_manifest(field: str, value: Any, by: Identity) -> None:
    """What the author's own program may have got wrong is signed as well."""
    body = msgpack.packb(manifest(by).model_dump() | {field: value})
    seal = Seal.of(body, manifest(by), by)
    try:
        SignedManifest.opened(body, seal, manifest(by).run)
    except BadManifest as error:
        assert "\n" not in str(error)  # noqa: PT017 - both outcomes are right


@given(fields=st.dictionaries(st.sampled_from(["author", "sequence", "parts", "signature", "more"]), _JSON))
def test_fields_of_anybody_are_no_seal(fields: dict[str, Any]) -> None:
    assert Seal.from_fields(fields, "tiny/abc") is None


def test_a_run_for_a_newer_program_says_what_to_upgrade(by: Identity) -> None:
    check_version(manifest(by))
    with pytest.raises(BadInput, match=r"asks for prime_p2p 99\.0 or newer"):
        check_version(manifest(by, minimum_version="99.0"))
    with pytest.raises(BadInput, match="upgrade prime_p2p"):
        check_version(manifest(by, protocol=PROTOCOL + 1))


def test_a_newer_program_s_recipe_is_kept_so_that_its_peers_can_have_it(by: Identity) -> None:
    one = signed(by, protocol=PROTOCOL + 1, recipe={"new": 1})
    assert reopened(one) == one
    assert replace(one.seal) == one.seal


@pytest.mark.parametrize(
    "values",
    [
        {"source": "text"},
        {"source": "hf:allenai/c4@1588ec4", "config": "en"},
        {"tokenizer": "words"},
        {"tokenizer": "hf:gpt2"},
    ],
)
def test_an_author_may_name_what_is_public_or_was_put_there_for_the_run(by: Identity, values: dict[str, str]) -> None:
    recipe = manifest(by).recipe
    one = signed(by, recipe=recipe | {"data": recipe["data"] | values})
    assert reopened(one) == one


@pytest.mark.parametrize(
    "place", ["/etc", "../keys", "a/../../b", "~/text", "hf:/etc", "hf:../x", "hf:a/b/../c", "hf:"]
)
@pytest.mark.parametrize("key", ["source", "tokenizer"])
def test_no_author_says_which_files_of_a_machine_are_read(by: Identity, key: str, place: str) -> None:
    recipe = manifest(by).recipe
    with pytest.raises(BadManifest, match=rf"^data.{key} "):
        reopened(signed(by, recipe=recipe | {"data": recipe["data"] | {key: place}}))


@pytest.mark.parametrize("key", ["mirror", "cache"])
def test_no_author_says_where_a_peer_has_a_mirror_or_a_cache(by: Identity, key: str) -> None:
    recipe = manifest(by).recipe
    with pytest.raises(BadManifest, match=rf"^data.{key}: is each peer's own choice"):
        reopened(signed(by, recipe=recipe | {"data": recipe["data"] | {"source": "hf:a/b", key: "x"}}))


@pytest.mark.parametrize("key", ["tensorboard", "wandb"])
def test_no_author_says_where_the_metrics_of_a_peer_go(by: Identity, key: str) -> None:
    recipe = manifest(by).recipe
    with pytest.raises(BadManifest, match=rf"^logging.{key}: is each peer's own choice"):
        reopened(signed(by, recipe=recipe | {"logging": {key: "x"}}))
