"""What peers have read of the training text: an account in each one's folder, and what they have read together.

A line of ``samples.jsonl`` is written after each outer step, made or missed. Its ranges are positions in the stream of
``training.data.assignment``, of which ``sequences`` make an epoch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prime_p2p.errors import BadInput
from prime_p2p.monitor.metrics import remove_cut_line

logger = logging.getLogger(__name__)

FILE_NAME = "samples.jsonl"


@dataclass(frozen=True)
class Stream:
    """What positions are of: another text, or another number of ``sequences`` an epoch, is another stream.

    Attributes:
        order: "shared", or "random": then each peer has a stream of its own.
        text: Fingerprint of the training text.
        sequences: Sequences of an epoch; 0 where it has none.
    """

    order: str
    text: str
    sequences: int


@dataclass(frozen=True)
class Samples:
    """What a peer read on the way to the state that it holds at ``outer_step``.

    Attributes:
        digest: Of that state, in hex.
        group: The peers that have made its last outer step; none where this peer was not one of them.
        front: Sequences that were contributed to the state: all before had their turn.
        ranges: First position read, and the one after the last.
    """

    stream: Stream
    outer_step: int
    digest: str
    group: Sequence[str]
    front: int
    ranges: Sequence[Sequence[int]]


class SamplesLog:
    """The account of a peer, which it appends to while it is entered: then it owns the open file.

    It knows who has made the last outer step, also after a restart.
    """

    def __init__(self, folder: Path) -> None:
        """Raises BadInput where an account in the peer's folder cannot be read."""
        self._path = folder / FILE_NAME
        known = read_samples(folder) if self._path.exists() else []
        self._made = {samples.digest: tuple(samples.group) for samples in known if samples.group}

    def __enter__(self) -> SamplesLog:
        try:
            remove_cut_line(self._path)
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"cannot write to {self._path}: {error.strerror}; choose another folder") from None
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # what a full disk did not take has been said
            self._file.close()

    def group_of(self, digest: bytes) -> tuple[str, ...]:
        """The peers that came to this state with us; none where it was reached without us."""
        return self._made.get(digest.hex(), ())

    def append(self, samples: Samples) -> None:
        """Write one line and flush it to the operating system."""
        if samples.group:
            self._made = {samples.digest: tuple(samples.group)}
        try:
            self._file.write(json.dumps(asdict(samples)) + "\n")
            self._file.flush()
        except OSError as error:  # a full disk is no reason to stop training
            logger.warning("what was read cannot be written down: %s", error)


def read_samples(folder: Path) -> list[Samples]:
    """The account in a peer's folder. Raises BadInput where there is none, or a line is not of one."""
    path = folder / FILE_NAME
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # a last line without its newline was cut by a crash
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; give the folder of a peer that has trained") from None
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _parse(line: bytes, where: str) -> Samples:
    try:
        fields = json.loads(line)
        samples = Samples(Stream(**fields.pop("stream")), **fields)
        if not all(0 <= first < after for first, after in samples.ranges):
            raise ValueError("ranges")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise BadInput(f"{where} is no line of an account of samples ({error!r}); remove the line") from None
    return samples


def coverage(accounts: dict[str, list[Samples]]) -> dict[str, Any]:
    """What peers, by name, have read together, in sequences.

    ``skipped`` and ``read_twice`` (in one epoch) are None where each peer draws at random, or their texts differ.
    """
    every = [samples for account in accounts.values() for samples in account]
    streams = {samples.stream for samples in every}
    shared = all(stream.order == "shared" for stream in streams)
    result: dict[str, Any] = {
        "peers": {name: {"read": _size(_ranges(account))} for name, account in accounts.items()},
        "read": _size(_ranges(every)),
        "texts": len(streams),
        "order": "shared" if shared else "random",
        "epochs": None,
        "skipped": None,
        "read_twice": None,
    }
    if shared and len(streams) == 1:
        once = _union(_ranges(every))
        front = max(samples.front for samples in every)
        before = sum(min(after, front) - first for first, after in once if first < front)
        result |= {
            "epochs": round(front / every[0].stream.sequences, 4),
            "skipped": front - before,
            "read_twice": result["read"] - _size(once),
        }
    return result


def coverage_table(found: dict[str, Any]) -> str:
    """The same as lines to read."""
    width = max(len(name) for name in found["peers"])
    lines = [f"{name:{width}}  {peer['read']:>14,} sequences read" for name, peer in found["peers"].items()]
    lines.append(f"{'together':{width}}  {found['read']:>14,}")
    if found["read_twice"] is None:
        why = "each peer draws at random" if found["order"] == "random" else f"they hold {found['texts']} other texts"
        return "\n".join([*lines, f"What is skipped or read twice cannot be said: {why}."])
    lines += [f"{'skipped':{width}}  {found['skipped']:>14,}", f"{'read twice':{width}}  {found['read_twice']:>14,}"]
    return "\n".join([*lines, f"{'epochs':{width}}  {found['epochs']:>14,.2f}"])


def _ranges(account: Iterable[Samples]) -> list[tuple[int, int]]:
    return [(first, after) for samples in account for first, after in samples.ranges]


def _size(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(after - first for first, after in ranges)


def _union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same positions in ranges that do not overlap, in order."""
    joined: list[tuple[int, int]] = []
    for first, after in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], after)
        else:
            joined.append((first, after))
    return joined
