"""Who is not admitted to a run is not seen, not waited for and not talked to, by any of its peers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from node_process import DATA, ECHO, echo
from nodes import echoes

from prime_p2p.errors import BadInput
from prime_p2p.network import clock
from prime_p2p.network.identity import Identity
from prime_p2p.network.streams import StreamError
from prime_p2p.network.version import PROTOCOL
from prime_p2p.public.admission import Admission, Invitation
from prime_p2p.public.manifest import Manifest, SignedManifest
from prime_p2p.public.public_run import PublicRun
from prime_p2p.recipe import Recipe
from prime_p2p.swarm.location import Location
from prime_p2p.swarm.swarm import Swarm, SwarmOptions

RECIPE = Path(__file__).parents[2] / "peers" / "tiny.toml"
SOON = 30.0
OPEN = "test/open"  # what is served to all
PLACE = Location(53, 13)


class Run:
    """A run on loopback, its author, and its peers."""

    def __init__(self, folder: Path, opened: ExitStack, admission: Admission) -> None:
        self._folder = folder
        self._opened = opened
        self.author = Identity.load_or_create(folder / "author.key")
        self.manifest = Manifest(
            name="tiny",
            author=self.author.peer_id,
            sequence=1,
            issued_at=0.0,
            recipe=Recipe.load(RECIPE).model_dump(mode="json"),
            initial_state=bytes(32),
            admission=admission,
        )
        self._bootstrap: tuple[str, ...] = ()

    @property
    def signed(self) -> SignedManifest:
        return SignedManifest.sign(self.manifest, self.author)

    def swarm(self, name: str, guarded: bool = True) -> Swarm:
        """On the network, and not yet in the run."""
        folder = self._folder / name
        folder.mkdir()
        options = SwarmOptions(folder / "identity.key", name=name, location=PLACE, guarded=guarded)
        swarm = Swarm(self.manifest.run, self._bootstrap, options)
        self._opened.callback(swarm.close)
        swarm.call(swarm.node.serve(ECHO, DATA, echo))
        self._bootstrap = self._bootstrap or tuple(swarm.addresses)
        return swarm

    def peer(self, name: str, invitation: Invitation | None = None) -> Swarm:
        return self.attached(name, invitation)[0]

    def attached(self, name: str, invitation: Invitation | None = None) -> tuple[Swarm, PublicRun]:
        swarm, public = self.swarm(name), PublicRun(self.signed, self._folder / name, invitation)
        public.attach(swarm)
        swarm.enter(b"description")
        return swarm, public

    def invitation(self, seconds: float = 3600.0) -> Invitation:
        return Invitation.make(self.manifest.run, clock.now() + seconds, self.author)


async def is_heard(swarm: Swarm, other: Swarm) -> bool:
    """Whether the other one takes a stream of ours."""
    try:
        return await echoes(swarm.node, other.peer_id)
    except StreamError:
        return False


def sees(swarm: Swarm, *others: Swarm) -> bool:
    wanted = {other.peer_id for other in others}
    return swarm.wait_for(lambda seen: seen.keys() >= wanted, SOON)


def test_an_invited_peer_takes_part_and_one_that_is_not_does_not_exist(tmp_path: Path) -> None:
    with ExitStack() as opened:
        run = Run(tmp_path, opened, Admission(rule="token"))
        first = run.peer("first", run.invitation())
        second = run.peer("second", run.invitation())
        assert sees(first, second)
        assert sees(second, first)
        assert second.call(is_heard(second, first))
        assert [(beat.name, beat.location) for beat in second.others().values()] == [("first", PLACE)]

        first.call(first.node.serve(OPEN, DATA, echo, to_all=True))
        stranger = run.swarm("stranger", guarded=False)
        stranger.enter(b"description")  # without a guard: it admits everybody, and shows nothing
        assert sees(stranger, first, second)
        assert not stranger.call(is_heard(stranger, first))
        assert stranger.call(echoes(stranger.node, first.peer_id, protocol=OPEN))
        assert stranger.peer_id not in first.others(refresh=True)
        with pytest.raises(BadInput, match="is invited"):
            run.peer("uninvited")
        with pytest.raises(BadInput, match="another run"):
            run.peer("late", run.invitation(seconds=-1.0))


def test_an_invitation_that_ends_puts_its_peer_out_and_one_given_before_it_was_asked_for_counts(tmp_path: Path) -> None:
    with ExitStack() as opened:
        run = Run(tmp_path, opened, Admission())
        first, _ = run.attached("first", run.invitation())
        second, seconds = run.attached("second", run.invitation(seconds=20.0))
        assert sees(first, second)
        run.manifest = run.manifest.model_copy(update={"admission": Admission(rule="token"), "sequence": 2})
        third = run.peer("third", run.invitation())
        assert first.wait_for(lambda seen: any(beat.manifest == 2 for beat in seen.values()), SOON)
        assert sees(third, first)  # which is invited, though nobody asked for that when it came
        assert first.wait_for(lambda seen: second.peer_id not in seen and third.peer_id in seen, SOON)
        assert not second.call(is_heard(second, first))
        with seconds.terms.changed:
            assert seconds.terms.changed.wait_for(lambda: seconds.terms.refusal is not None, SOON)
        assert "--token" in str(seconds.terms.refusal)


def test_a_peer_that_is_banned_is_cut_off_by_all_others(tmp_path: Path) -> None:
    with ExitStack() as opened:
        run = Run(tmp_path, opened, Admission())
        first, second = run.peer("first"), run.peer("second")
        assert sees(first, second)
        assert second.call(is_heard(second, first))
        banned: dict[str, Any] = {"admission": Admission(banned=[second.peer_id]), "sequence": 2}
        run.manifest = run.manifest.model_copy(update=banned)
        third = run.peer("third")  # brings the newer manifest with it: the first hears of it from the third's heartbeat
        assert first.wait_for(lambda seen: second.peer_id not in seen and third.peer_id in seen, SOON)
        assert not second.call(is_heard(second, first))
        with pytest.raises(BadInput, match="banned"):
            PublicRun(run.signed, tmp_path / "second").attach(second)


def test_a_peer_that_speaks_an_older_protocol_than_all_others_says_what_to_upgrade(tmp_path: Path) -> None:
    with ExitStack() as opened:
        run = Run(tmp_path, opened, Admission())
        newer, older = run.swarm("newer"), run.swarm("older", guarded=False)
        newer.guard(PublicRun(run.signed, tmp_path / "newer"), protocol=PROTOCOL + 1)
        newer.enter(b"description")
        older.enter(b"description")
        assert older.others(refresh=True) == {}
        with pytest.raises(BadInput, match=f"speaks protocol {PROTOCOL + 1} and this program protocol {PROTOCOL}"):
            older.check_protocol()
