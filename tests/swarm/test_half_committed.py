"""A member of a group that is lost when a part of the group has committed, among real nodes."""

from __future__ import annotations

import asyncio

import nodes
import pytest
from round_peers import FIRST, ROUND, group_of, one_round, round_peers, state_after

from prime_p2p.network.frames import Message
from prime_p2p.swarm.messages import Vote

pytestmark = pytest.mark.timeout(180)


def test_when_one_has_committed_and_a_voter_is_lost_the_others_commit_the_same_at_the_first_attempt() -> None:
    async def test(swarm: nodes.Swarm) -> None:
        *survivors, dies = peers = await round_peers(swarm, 4)
        hears = survivors[0]
        send = dies.runner.links.send

        def send_one_vote(peer: str, message: Message) -> None:
            if not isinstance(message, Vote) or peer == hears.peer_id:
                send(peer, message)

        dies.runner.links.send = send_one_vote  # type: ignore[method-assign]
        try:
            for peer in peers:
                peer.hold(FIRST, peers)
            attempts = [asyncio.ensure_future(peer.make_round()) for peer in peers]
            first = await asyncio.wait_for(asyncio.shield(attempts[0]), ROUND)
            assert first.group is not None
            assert len(first.group.members) == 4
            assert not any(attempt.done() for attempt in attempts[1:3])  # they miss a vote
            await dies.runner.close()
            await dies.node.close()
            results = await asyncio.gather(*attempts[:3])
            assert [result.group for result in results] == [first.group] * 3
            assert [result.attempts for result in results] == [1, 1, 1]
            for result in results:  # those who heard of it have the signatures that the one has counted
                assert result.certificate is not None
                result.certificate.check()
            assert len({result.update.digest() for result in results if result.update is not None}) == 1

            again = await one_round(survivors, state_after(first.group))
            assert set(group_of(again).peer_ids) == {peer.peer_id for peer in survivors}
        finally:
            await asyncio.gather(*(peer.runner.close() for peer in survivors))

    nodes.run(test)
