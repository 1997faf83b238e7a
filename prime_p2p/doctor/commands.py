"""The command ``doctor``."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from prime_p2p.network.ports import PEER_PORT
from prime_p2p.options import AnnounceOption, HostOption, PortOption

app = typer.Typer()


@app.command()
def doctor(
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN-ADDRESS]", help="Of a public run, to compare this machine with.", show_default=False
        ),
    ] = None,
    bootstrap: Annotated[
        list[str] | None,
        typer.Option("--bootstrap", metavar="MADDR", help="Address of a node of the swarm to join; may be repeated."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Folder of the peer.", show_default="runs/NAME")
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    announce: AnnounceOption = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="FILE", help="What the run is, to compare this machine with.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say whether this machine would be a good peer, and what to do where not. The options are those of a peer."""
    from prime_p2p.doctor import finding
    from prime_p2p.doctor.examination import examine
    from prime_p2p.doctor.place import Place
    from prime_p2p.network.ports import everywhere
    from prime_p2p.yardstick import of_recipe, of_run

    if address is not None and recipe is not None:
        raise typer.BadParameter("give only one of RUN-ADDRESS and --recipe: a run has a recipe")
    number = PEER_PORT if port is None else port
    place = Place(tuple(bootstrap or ()), tuple(host or everywhere()), number, port is None, tuple(announce or ()))
    say = partial(print, file=sys.stderr, flush=True) if sys.stderr.isatty() else _say_nothing
    run = of_run(address) if address is not None else of_recipe(recipe) if recipe is not None else None
    folder = directory or Path("runs")
    if run is not None:
        known = tuple(dict.fromkeys([*run.bootstrap, *place.bootstrap]))
        place = replace(place, bootstrap=known, group=run.group or place.group)
        folder = directory or folder / run.name
    findings = examine(folder, place, say, run.needs if run else None)
    print(finding.as_json(findings) if as_json else finding.as_lines(findings))
    return finding.exit_code(findings)


def _say_nothing(text: str) -> None:
    """Of progress, where nobody watches."""
