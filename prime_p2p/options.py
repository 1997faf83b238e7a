"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from prime_p2p.monitor import logs
from prime_p2p.network.ports import PEER_PORT
from prime_p2p.swarm.location import Location

RecipeOption = Annotated[
    str,
    typer.Option("--recipe", metavar="FILE", help="What the run is: a TOML file, or the name of a built-in recipe."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe, as in inner.learning_rate=0.001."),
]


def _of_a_peer(addresses: Sequence[str] | None) -> list[str]:
    """Without the run that an address may be of: what is pasted is often that."""
    return [address.partition("/run/")[0] for address in addresses or ()]


def _can_be_told(name: str) -> str:
    if name:
        from prime_p2p.swarm.membership import first_heartbeat

        first_heartbeat(b"", name, [])
    return name


BootstrapOption = Annotated[
    list[str],
    typer.Option(
        "--bootstrap",
        metavar="MADDR",
        help="Address of a bootstrap node, any peer, or a run; may be repeated.",
        callback=_of_a_peer,
    ),
]
BootstrapOrNoneOption = Annotated[
    list[str] | None,
    typer.Option(
        "--bootstrap",
        metavar="MADDR",
        help="Address of a bootstrap node, any peer, or a run; may be repeated.",
        show_default=False,
    ),
]
RunOrNoneArgument = Annotated[
    str | None, typer.Argument(metavar="RUN-ADDRESS", help="Of a public run.", show_default=False)
]
RunNameOption = Annotated[
    str | None,
    typer.Option("--run", metavar="NAME", help="Which run, where several are known there.", show_default=False),
]
AnnounceOption = Annotated[
    list[str] | None,
    typer.Option("--announce", metavar="MADDR", help="Address to tell others instead of the local one; repeatable."),
]
ParentOption = Annotated[bool, typer.Option("--stop-with-parent", help="Stop when standard input closes.")]
DirectoryOption = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="State, metrics and identity.", show_default="runs/NAME")
]
DirArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a peer, as its --dir.", show_default=False)]
PeerNameOption = Annotated[
    str,
    typer.Option(
        "--name", metavar="NAME", help="What this peer is called where the run is shown.", callback=_can_be_told
    ),
]
LocationOption = Annotated[
    Location | None,
    typer.Option(
        "--location",
        metavar="LAT,LON",
        help="Where to show this peer on the map of the run, in degrees, as in 52.5,13.4. Others are told the nearest "
        "whole degrees, so to about 100 km.",
        show_default="told to nobody",
        parser=Location.of,
    ),
]
IdentityOption = Annotated[
    Path | None,
    typer.Option("--identity", metavar="FILE", help="Private key.", show_default="identity.key in the folder"),
]
HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="ADDRESS", help="IP address to listen at; repeatable.", show_default="all of them"),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=0,
        max=65535,
        metavar="N",
        help="TCP port; 0 takes any free one.",
        show_default=f"{PEER_PORT}, or the next free one",
    ),
]
RelayedOption = Annotated[
    bool, typer.Option("--relayed", help="Be reached through relays; by default only where others cannot dial us.")
]
QuicOption = Annotated[
    bool, typer.Option("--quic", help="Listen on QUIC too, at the UDP port of the same number; slower than TCP.")
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, metavar="N", help="CPU threads.", show_default="all cores")
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:N or mps.")]
DevicesOption = Annotated[
    int,
    typer.Option("--devices", min=0, max=64, metavar="K", help="Share the model among so many GPUs, a process each."),
]
BandwidthOption = Annotated[
    float,
    typer.Option(
        "--bandwidth", min=0, max=1e9, metavar="MBIT", help="Mbit/s that this peer can send; its share of the reducing."
    ),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", min=0, max=65535, metavar="N", help="Serve /metrics for Prometheus there.", show_default="off"
    ),
]
MetricsHostOption = Annotated[
    str, typer.Option("--metrics-host", metavar="ADDRESS", help="IP address that /metrics is served at.")
]
LOOPBACK = "127.0.0.1"
EventsOption = Annotated[bool, typer.Option("--json", help="Print events as JSON lines on standard output.")]
LogLevelOption = Annotated[
    logs.LogLevel, typer.Option("--log-level", help="What is worth a line of the log, on standard error.")
]
LogFormatOption = Annotated[
    logs.LogFormat, typer.Option("--log-format", help="Lines for people, or a JSON object a line.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="The same as --log-level debug.")]


def metrics_at(host: str, port: int | None) -> tuple[str, int] | None:
    """Where to serve metrics; None where they were not asked for."""
    return None if port is None else (host, port)


def run_of(address: str | None, bootstrap: Sequence[str] | None, run: str | None) -> tuple[tuple[str, ...], str | None]:
    """Where to look for a run, and its name where that was given: by itself, or in an address.

    Raises BadInput, or BadParameter where both or neither of an address and bootstraps were given.
    """
    from prime_p2p.public.run_address import RunAddress

    if (address is None) is not bool(bootstrap) or (address is not None and run is not None):
        raise typer.BadParameter("give either a RUN-ADDRESS, or --bootstrap and perhaps --run")
    if address is not None:
        parsed = RunAddress.parse(address)
        return (parsed.bootstrap,), parsed.run
    places = bootstrap or ()
    named = [] if run else sorted({RunAddress.parse(place).run for place in places if "/run/" in place})
    if len(named) > 1:
        raise typer.BadParameter(f"the addresses are of several runs, name one of them with --run: {', '.join(named)}")
    return tuple(_of_a_peer(places)), named[0] if named else run
