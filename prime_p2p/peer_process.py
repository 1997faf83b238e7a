"""A peer as a process of its own: its folder, its signals and its place in the network; what it trains is ``peer``'s.

Nothing heavy is imported before the network is joined: a taken port or a wrong address is said within a second or two.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prime_p2p.bulletin.bulletin import Bulletin
from prime_p2p.bulletin.serving import NewsServer
from prime_p2p.doctor.facts import Space
from prime_p2p.doctor.machine import memory
from prime_p2p.errors import BadInput
from prime_p2p.estimate import Estimate, check_memory
from prime_p2p.lifetime import StopSignals, noting_stop_signals, stop_with_parent
from prime_p2p.monitor import logs
from prime_p2p.monitor.loggers.reporter import open_loggers
from prime_p2p.monitor.metrics import FILE_NAME, MetricsLog
from prime_p2p.monitor.reporter import Reporter, bars_of, open_reporter
from prime_p2p.network.ports import PEER_PORT, everywhere
from prime_p2p.peer_folder import owned
from prime_p2p.public.public_run import PublicRun
from prime_p2p.recipe import Recipe
from prime_p2p.swarm.gathering import RoundPolicy
from prime_p2p.swarm.swarm import Leaving, Swarm, SwarmOptions
from prime_p2p.temporary import TemporaryFolder
from prime_p2p.terms import Course, Terms
from prime_p2p.training.ranks.launch import Launch

if TYPE_CHECKING:
    import torch

    from prime_p2p.training.ranks.trainer import ShardedTrainer
    from prime_p2p.training.trainer import Trainer

    TrainerOf = Callable[[Recipe, Path], Trainer | ShardedTrainer]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PeerOptions:
    """What a peer trains, whom it joins, and what it may use of this machine.

    ``directory`` keeps the peer's metrics, journal, checkpoints, the peers it has met and, unless ``swarm`` names
    another file, its identity.
    ``launch`` says how many processes train, each with a device of its own; this one is rank 0 of them.
    ``public`` is the public run that the recipe is from, if it is from one. ``metrics`` are a host and a port to serve
    some at for Prometheus.
    """

    recipe: Recipe
    bootstrap: tuple[str, ...]
    directory: Path
    swarm: SwarmOptions
    threads: int | None = None
    device: str = "auto"
    launch: Launch = field(default_factory=Launch)
    json: bool = False
    stop_with_parent: bool = False
    public: PublicRun | None = None
    metrics: tuple[str, int] | None = None


def run(options: PeerOptions) -> int:
    """Be a peer until the run ends or a signal says stop; returns the exit code, 0.

    Raises BadInput or Unreachable where the peer cannot join, PrimeError where it cannot go on.
    """
    if options.stop_with_parent:
        stop_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    options.launch.check(options.recipe.inner)
    logs.at(run=options.recipe.run.name)
    bulletin = Bulletin()
    with noting_stop_signals() as signals, suppress(Stopped):  # loggers take long to start, too
        signals.notify = partial(_leave_before_joining, signals)
        with owned(options.directory), _reporter(options, bulletin) as reporter:  # loggers write there, too
            try:
                _join_and_train(options, bulletin, reporter, signals)
            except Stopped:
                reporter.log("stopped before the peer had joined")
    return 0


def _join_and_train(options: PeerOptions, bulletin: Bulletin, reporter: Reporter, signals: StopSignals) -> None:
    with MetricsLog(options.directory / FILE_NAME) as metrics, _open_swarm(options) as swarm:
        logs.at(peer_id=swarm.peer_id)
        logger.info("joined; reachable at %s", " ".join(swarm.addresses))
        if options.public is not None:
            options.public.attach(swarm)
        swarm.call(NewsServer(swarm.node, swarm.run, bulletin).serve())
        reporter.ready(swarm.peer_id, swarm.addresses)
        _train(options, swarm, (reporter, metrics), signals)


@contextmanager
def _reporter(options: PeerOptions, bulletin: Bulletin) -> Iterator[Reporter]:
    with ExitStack() as owned:
        others = [bulletin, *owned.enter_context(open_loggers(options.recipe, options.directory))]
        if options.metrics is not None:
            from prime_p2p.monitor.prometheus import MetricsPage, PrometheusReporter, node_registry

            registry = node_registry(options.recipe.run.name, {})
            owned.enter_context(MetricsPage(registry, options.metrics))
            others.append(PrometheusReporter(registry))
        yield owned.enter_context(open_reporter(options.json, others))


def _train(options: PeerOptions, swarm: Swarm, news: tuple[Reporter, MetricsLog], signals: StopSignals) -> None:
    from prime_p2p.news import News
    from prime_p2p.peer import Peer

    course = Course(Terms(options.recipe)) if options.public is None else options.public.course
    with _trainers(options) as trainer_of:
        watch = bars_of(news[0], options.json)
        peer = Peer(course, options.directory, trainer_of, swarm, News(*news, watch))
        signals.notify = peer.leave
        peer.train(signals)


@contextmanager
def _trainers(options: PeerOptions) -> Iterator[TrainerOf]:
    """What makes the trainer of a recipe on the devices of this peer. The processes of the other ranks end with it."""
    import torch

    from prime_p2p.training.trainer import Trainer

    device, ranks = _device(options), options.launch.ranks
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if ranks == 1:
        yield lambda recipe, folder: Trainer(recipe, device, folder)
        return
    from prime_p2p.training.ranks.part import Place
    from prime_p2p.training.ranks.trainer import ShardedTrainer

    threads = max(1, torch.get_num_threads() // ranks)
    torch.set_num_threads(threads)
    with TemporaryFolder() as meeting, closing(options.launch.crew()) as crew:
        crew.on_loss = partial(os.kill, os.getpid(), signal.SIGTERM)  # to get out of whatever we wait for
        place = Place(0, ranks, device.type, meeting)
        try:
            yield lambda recipe, folder: ShardedTrainer(recipe, place, crew, threads, folder)
        except (Leaving, Stopped):
            crew.check()  # it may be a lost rank that we leave for
            raise


def _device(options: PeerOptions) -> torch.device:
    """That of this process. Raises BadInput where it, or one of the other ranks', cannot be used, or is too small."""
    import torch

    ranks = options.launch.ranks
    mps = ranks == 1 and torch.backends.mps.is_available()
    auto = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    try:
        device = torch.device(auto if options.device == "auto" else options.device)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"--device {options.device} cannot be used: {str(error).splitlines()[0]}") from None
    there = torch.cuda.device_count()
    if device.type == "cuda" and there < ranks:
        raise BadInput(f"--devices {ranks}: this machine has {there} GPUs; give --device cpu to train without")
    _check_memory(options.recipe, device, ranks)
    return device


def _check_memory(recipe: Recipe, device: torch.device, ranks: int) -> None:
    """Raises BadInput where what is free now is not enough to train in, as far as that can be told."""
    import torch

    gpu = device.type == "cuda"
    space = Space(*torch.cuda.mem_get_info(device)) if gpu else memory()
    if isinstance(space, Space):
        check_memory(Estimate(recipe, peers=1, gpu=gpu, devices=ranks if gpu else 1), space.free)


def check_device(device: str, ranks: int = 1) -> None:
    """Raises BadInput for a ``--device`` that is none, or one for many ranks; what is there is found out later."""
    if ranks > 1 and device not in ("auto", "cpu", "cuda"):
        raise BadInput(f"--device {device}: is one device; with --devices {ranks} it must be auto, cpu or cuda")
    if re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", device) is None:
        raise BadInput(f"--device {device}: must be auto, cpu, cuda, cuda:N or mps")


def place_of(
    identity: Path | None,
    hosts: Sequence[str] | None,
    port: int | None,
    announce: Sequence[str] | None,
    bandwidth: float,
    *,
    relayed: bool = False,
    quic: bool = False,
) -> SwarmOptions:
    """Where a peer is, from its options: without them at all addresses, and at the usual port or the next free one."""
    return SwarmOptions(
        identity,
        tuple(hosts or everywhere()),
        PEER_PORT if port is None else port,
        tuple(announce or ()),
        bandwidth,
        or_next=port is None,
        relayed=relayed,
        quic=quic,
    )


class Stopped(Exception):
    """A signal came while the peer was still joining."""


def _leave_before_joining(signals: StopSignals) -> None:
    if signals.count == 1:  # a second one must not break into the leaving
        raise Stopped


def _open_swarm(options: PeerOptions) -> Swarm:
    round_ = options.recipe.round
    policy = RoundPolicy(round_.patience, round_.grace, round_.stall_timeout, max_group=round_.max_group)
    identity = options.swarm.identity or options.directory / "identity.key"
    run = options.recipe.run.name if options.public is None else options.public.signed.manifest.run
    known, guarded = options.directory / "peers.json", options.public is not None
    swarm = replace(options.swarm, identity=identity, policy=policy, known=known, guarded=guarded)
    return Swarm(run, options.bootstrap, swarm)
