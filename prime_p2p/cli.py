"""The commands of prime-p2p. Each imports what it needs when it runs, so that ``--help`` stays fast."""

import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from prime_p2p.bench.commands import app as bench
from prime_p2p.contributions.command import app as contributions
from prime_p2p.doctor.commands import app as doctor
from prime_p2p.errors import PrimeError
from prime_p2p.monitor import logs
from prime_p2p.monitor.bars import on_standard_error
from prime_p2p.monitor.text import visible
from prime_p2p.options import (
    LOOPBACK,
    AnnounceOption,
    BandwidthOption,
    BootstrapOption,
    DeviceOption,
    DevicesOption,
    DirArgument,
    DirectoryOption,
    EventsOption,
    HostOption,
    IdentityOption,
    LocationOption,
    LogFormatOption,
    LogLevelOption,
    MetricsHostOption,
    MetricsPortOption,
    ParentOption,
    PeerNameOption,
    PortOption,
    QuicOption,
    RecipeOption,
    RelayedOption,
    SetOption,
    ThreadsOption,
    VerboseOption,
    metrics_at,
)
from prime_p2p.public.commands import app as public
from prime_p2p.watching.commands import app as watching

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Peer-to-peer training over the internet, with no server in the middle.",
)

app.add_typer(bench, name="bench")
app.add_typer(doctor)
app.add_typer(public)
app.add_typer(watching)
app.add_typer(contributions)


@app.command()
def swarm(
    peers: Annotated[int, typer.Option(min=1, max=256, help="How many peers.")] = 4,
    recipe: RecipeOption = "peers/tiny.toml",
    outer_steps: Annotated[int | None, typer.Option(min=1, metavar="K", help="Outer steps to make.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Seed of the run.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write to.", show_default="runs/NAME")
    ] = None,
    sets: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")] = False,
) -> int:
    """Run a whole swarm on this machine: a bootstrap node and peers that train together."""
    from prime_p2p.builtin_recipes import find_recipe
    from prime_p2p.local_swarm import swarm as local_swarm
    from prime_p2p.monitor.report import summary

    overrides = list(sets or [])
    overrides += [f"run.outer_steps={outer_steps}"] if outer_steps is not None else []
    overrides += [f"run.seed={seed}"] if seed is not None else []
    options = local_swarm.SwarmOptions(find_recipe(recipe), peers, tuple(overrides), out)
    report = local_swarm.run(options)
    print(json.dumps(report, indent=2) if as_json else summary(report))
    if report["failure"]:
        print(f"prime-p2p: {report['failure']}", file=sys.stderr)
    return int(report["exit_code"])


@app.command()
def bootstrap(
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="TCP port; 0 takes a free one.")] = 31337,
    host: HostOption = None,
    quic: QuicOption = False,
    identity: Annotated[Path, typer.Option(metavar="FILE", help="Private key, made when missing.")] = Path(
        "identity.key"
    ),
    announce: AnnounceOption = None,
    others: Annotated[
        list[str] | None,
        typer.Option("--bootstrap", metavar="MADDR", help="Address of another bootstrap node; may be repeated."),
    ] = None,
    relay_peers: Annotated[
        int, typer.Option(min=0, max=4096, metavar="N", help="Peers behind NAT to relay for at a time.")
    ] = 128,
    relay_gigabytes: Annotated[
        int, typer.Option(min=1, max=10**6, metavar="GB", help="To relay each way before a connection is made anew.")
    ] = 64,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = LOOPBACK,
    watch_parent: ParentOption = False,
    log_level: LogLevelOption = logs.LogLevel.WARNING,
    log_format: LogFormatOption = logs.LogFormat.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Serve as the address that peers find each other by. Prints one line: the multiaddress to give to them."""
    from prime_p2p import bootstrap_node
    from prime_p2p.network.daemon_config import RelayLimits
    from prime_p2p.network.node import NodeConfig
    from prime_p2p.network.ports import everywhere

    logs.set_up(logs.LogLevel.DEBUG if verbose else log_level, log_format)
    config = NodeConfig(
        identity=identity,
        bootstrap=tuple(others or ()),
        hosts=tuple(host or everywhere()),
        port=port,
        announce=tuple(announce or ()),
        relay=RelayLimits(relay_peers, gigabytes=relay_gigabytes),
        may_be_first=True,
        quic=quic,
    )
    metrics = metrics_at(metrics_host, metrics_port)
    bootstrap_node.run(config, lambda address: print(address, flush=True), metrics, watch_parent=watch_parent)
    return 0


@app.command()
def peer(
    bootstrap: BootstrapOption,
    recipe: RecipeOption,
    directory: DirectoryOption = None,
    name: PeerNameOption = "",
    location: LocationOption = None,
    identity: IdentityOption = None,
    host: HostOption = None,
    port: PortOption = None,
    announce: AnnounceOption = None,
    relayed: RelayedOption = False,
    quic: QuicOption = False,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    devices: DevicesOption = 0,
    bandwidth: BandwidthOption = 100.0,
    sets: SetOption = None,
    init: Annotated[
        bool, typer.Option("--init", help="Begin the run if nobody holds a state of it, whatever the recipe says.")
    ] = False,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = LOOPBACK,
    as_json: EventsOption = False,
    watch_parent: ParentOption = False,
    log_level: LogLevelOption = logs.LogLevel.WARNING,
    log_format: LogFormatOption = logs.LogFormat.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Join a run and train in it."""
    from prime_p2p.builtin_recipes import find_recipe
    from prime_p2p.peer_process import PeerOptions, check_device, place_of, run
    from prime_p2p.recipe import Recipe
    from prime_p2p.training.ranks.launch import Launch

    logs.set_up(logs.LogLevel.DEBUG if verbose else log_level, log_format)
    launch = Launch.of(devices)
    if launch.rank:
        return launch.serve()
    overrides = [*(sets or ()), *(["run.start=anyone"] if init else [])]
    loaded = Recipe.load(find_recipe(recipe), overrides, on_standard_error())
    check_device(device, launch.ranks)
    return run(
        PeerOptions(
            recipe=loaded,
            bootstrap=tuple(bootstrap),
            directory=directory or Path("runs") / loaded.run.name,
            swarm=replace(
                place_of(identity, host, port, announce, bandwidth, relayed=relayed, quic=quic),
                name=name,
                location=location,
            ),
            threads=threads,
            device=device,
            launch=launch,
            json=as_json,
            stop_with_parent=watch_parent,
            metrics=metrics_at(metrics_host, metrics_port),
        )
    )


@app.command()
def export(
    directory: DirArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New or empty folder.", show_default=False)],
) -> int:
    """Write the model of a peer's newest checkpoint as a Hugging Face folder, with its tokenizer."""
    from transformers.utils import logging

    from prime_p2p.training.export import export as write
    from prime_p2p.training.saved_model import newest_checkpoint, saved_model, saved_tokenizer

    logging.disable_progress_bar()
    with on_standard_error()("exporting the newest checkpoint", unit=""):
        checkpoint = newest_checkpoint(directory)
        write(saved_model(checkpoint), out, saved_tokenizer(directory, checkpoint))
    print(f"the model after outer step {checkpoint.outer.step} of run {checkpoint.run} is in {out}")
    return 0


@app.command()
def generate(
    directory: DirArgument,
    text: Annotated[str, typer.Argument(help="What the text begins with.", show_default=False)],
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, metavar="N", help="Tokens to add, at most.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, max=100, metavar="T", help="0 takes the likeliest token.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, metavar="S", help="Another seed, another text.")] = 0,
) -> int:
    """Complete a text with the model of a peer's newest checkpoint."""
    from prime_p2p.training.generate import complete
    from prime_p2p.training.saved_model import newest_checkpoint, saved_model, saved_tokenizer

    watch = on_standard_error()
    with watch("reading the newest checkpoint", unit=""):
        checkpoint = newest_checkpoint(directory)
        model, tokenizer = saved_model(checkpoint), saved_tokenizer(directory, checkpoint)
    with watch("writing", tokens, "tokens") as advance:
        added = complete(model, text, tokens, temperature, seed, tokenizer, advance)
    print(text + added)
    return 0


@app.command()
def coverage(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of peers.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say what of the training text peers have read together: sequences read, skipped, and read twice."""
    from prime_p2p.monitor import samples

    found = samples.coverage({str(folder): samples.read_samples(folder) for folder in folders})
    print(json.dumps(found, indent=2) if as_json else samples.coverage_table(found))
    return 0


@app.command()
def verify(directory: DirArgument) -> int:
    """Check a peer's checkpoints, and make the outer steps of its journal again to confirm their digests."""
    from prime_p2p.audit import Audit
    from prime_p2p.public.public_run import load

    kept = load(directory)
    wrong: list[str] = []

    def complain(line: str) -> None:
        wrong.append(line)
        _complain(line)

    Audit(directory, print, complain, kept.manifest.terms if kept else None, on_standard_error()).run()
    return 1 if wrong else 0


@app.command()
def plan(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a built-in recipe.", show_default=False)
    ],
    peers: Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Peers of the run.")] = 8,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Of each peer, both ways: 500Mbit, 4Gbit, or a number of Mbit/s.")
    ] = None,
    step_time: Annotated[float | None, typer.Option(metavar="S", help="Seconds of an inner step.")] = None,
    gpu_memory: Annotated[float | None, typer.Option(metavar="GB", help="Memory of a GPU, to say what fits.")] = None,
    devices: Annotated[int, typer.Option(min=1, max=64, metavar="K", help="GPUs of each peer.")] = 1,
    sets: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say what a peer of a recipe needs (memory, disk, traffic) and how long a round takes; nothing is started."""
    from prime_p2p.bandwidth import parse_bandwidth
    from prime_p2p.builtin_recipes import find_recipe
    from prime_p2p.estimate import Estimate
    from prime_p2p.monitor.needs import Machine, needs_json, needs_text
    from prime_p2p.recipe import Recipe
    from prime_p2p.training.ranks.launch import Launch

    loaded = Recipe.load(find_recipe(recipe), sets or ())
    Launch(devices).check(loaded.inner)
    estimate = Estimate(loaded, peers, devices=devices)
    rate = None if bandwidth is None else parse_bandwidth(bandwidth)
    machine = Machine(rate, step_time, None if gpu_memory is None else gpu_memory * 1e9)
    print(json.dumps(needs_json(estimate, machine), indent=2) if as_json else needs_text(estimate, machine))
    return 0


# typer has this class from click or within itself, depending on its release; all errors of usage derive from it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run the command line. Whatever a user can cause ends in one line on standard error, without a traceback."""
    _hold_standard_descriptors()
    arguments = sys.argv[1:] or ["--help"]
    try:
        code = app(arguments, prog_name="prime-p2p", standalone_mode=False)
    except PrimeError as error:
        _complain(str(error))
        code = error.exit_code
    except OSError as error:  # a full disk, say: of the machine, not of the code
        _complain(str(error))
        code = 1
    except _UsageError as error:
        _complain(error.format_message())  # type: ignore[attr-defined]
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)


def _complain(text: str) -> None:
    with suppress(OSError):  # nobody reads it
        print(f"prime-p2p: {visible(' '.join(text.split()))}", file=sys.stderr)


def _hold_standard_descriptors() -> None:
    """Where one of the three was closed, put one there that takes everything: a file that is opened later must not get
    its number, and with it whatever is printed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


if __name__ == "__main__":
    main()
