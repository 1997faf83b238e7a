"""The commands of public runs: ``publish``, ``join``, ``show``, ``runs``, ``invite`` and ``ban``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prime_p2p.monitor import logs
from prime_p2p.options import (
    LOOPBACK,
    AnnounceOption,
    BandwidthOption,
    BootstrapOption,
    DeviceOption,
    DevicesOption,
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
    RelayedOption,
    SetOption,
    ThreadsOption,
    VerboseOption,
    metrics_at,
)
from prime_p2p.public import notice

if TYPE_CHECKING:
    from prime_p2p.public.publish import Published, Wish
    from prime_p2p.recipe import Recipe

app = typer.Typer()

INVITATION = "PRIME_P2P_INVITATION"  # of the environment

KeyOption = Annotated[
    Path, typer.Option("--key", metavar="FILE", help="Private key of the run's author.", show_default=False)
]
NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="What the run is called.", show_default=False)]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN-ADDRESS", help="Of the run, as its author gave it.", show_default=False)
]
OwnSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Of the recipe, a value that each peer chooses, as in logging.wandb=PROJECT."
    ),
]
PeersArgument = Annotated[
    list[str],
    typer.Argument(metavar="PEER...", help="Peer ids, or the ends of those of peers there.", show_default=False),
]


@app.command()
def publish(
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A TOML file, or the name of a built-in recipe.")
    ] = None,
    *,
    name: NameOption,
    key: KeyOption,
    bootstrap: BootstrapOption,
    sets: SetOption = None,
    admission: Annotated[
        str | None, typer.Option(metavar="RULE", help="open, allow or token; a new run is open.", show_default=False)
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="PEER", help="Peer to put on the list of an allow run; repeatable.")
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(min=0, metavar="STEP", help="Outer step from which a change holds.", show_default="soon"),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--notice",
            min=notice.LEAST_SECONDS,
            max=86400.0,
            metavar="SECONDS",
            help="That peers have at least to hear of a change before it holds.",
        ),
    ] = notice.SECONDS,
    pause: Annotated[bool, typer.Option("--pause", help="Pause the run.")] = False,
    go_on: Annotated[bool, typer.Option("--continue", help="End a pause.")] = False,
    end: Annotated[bool, typer.Option("--end", help="End the run.")] = False,
    minimum_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Oldest release of prime_p2p that may take part.")
    ] = None,
    new_bootstraps: Annotated[
        bool, typer.Option("--new-bootstraps", help="Put these --bootstrap into the manifest instead of those in it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Begin a public run, or change the one of this name and key. Prints the address to join it by."""
    from prime_p2p.public.publish import Wish

    phases = [phase for phase, wanted in (("pause", pause), ("train", go_on), ("end", end)) if wanted]
    if len(phases) > 1:
        raise typer.BadParameter("give only one of --pause, --continue and --end")
    if allow and admission not in (None, "allow"):
        raise typer.BadParameter("--allow is for runs of --admission allow")
    if admission not in (None, "open", "allow", "token"):
        raise typer.BadParameter(f"--admission {admission}: must be open, allow or token")
    wish = Wish(
        recipe=_loaded(recipe),
        sets=sets or (),
        at=at,
        notice=seconds,
        phase=phases[0] if phases else None,  # type: ignore[arg-type]
        minimum_version=minimum_version,
        rule=admission,
        admit=_peer_ids(allow or []),
        bootstraps=bootstrap if new_bootstraps else (),
    )
    published = _publish(name, key, bootstrap, wish, new=recipe is not None)
    print(json.dumps(_as_json(published), indent=2) if as_json else _announcement(published))
    return 0


def _loaded(recipe: str | None) -> Recipe | None:
    from prime_p2p.builtin_recipes import find_recipe
    from prime_p2p.recipe import Recipe

    return None if recipe is None else Recipe.load(find_recipe(recipe))


def _publish(name: str, key: Path, bootstrap: list[str], wish: Wish, *, new: bool = False) -> Published:
    from prime_p2p.network.identity import Identity
    from prime_p2p.public.publish import author_of, publish
    from prime_p2p.recipe import check_run_name

    check_run_name(name)
    if new and not key.exists():
        print(f"made a new author key, {key}: whoever has it speaks for the run, so keep it safe", file=sys.stderr)
        author = Identity.load_or_create(key)
    else:
        author = author_of(key)
    return publish(name, author, bootstrap, wish, _initial_state)


def _initial_state(recipe: Recipe) -> bytes:
    """The digest of the state that a run of this recipe begins with: the model is built for it."""
    from prime_p2p.outer.state import OuterState
    from prime_p2p.training import model as models
    from prime_p2p.training.flat import FlatParameters

    built = models.build(recipe.model, recipe.run.seed)
    return OuterState.initial(FlatParameters(built).to_numpy()).digest


def _announcement(published: Published) -> str:
    from prime_p2p.public.qr import qr_code

    manifest, before = published.signed.manifest, published.before
    if before is not None:
        changes = [change for change in manifest.changes if change not in before.changes]
        lines = [f"manifest {manifest.sequence} of run {manifest.name} is published"]
        lines += [f"from outer step {change.at} on: {_words(change.values, change.phase)}" for change in changes]
        if manifest.admission != before.admission:
            lines.append(_admission(manifest.admission.rule))
        if len(lines) == 1:
            lines.append("it says what the one before said")
        return "\n".join(lines)
    lines = [f"run {manifest.name} is new, and published; {_admission(manifest.admission.rule)}"]
    if sys.stdout.isatty():
        lines.append(qr_code(str(published.address)))
    return "\n".join([*lines, "whoever wants to join it runs:", "", f"    prime-p2p join {published.address}", ""])


def _admission(rule: str) -> str:
    return {
        "open": "anybody may take part who is not banned",
        "allow": "listed peers take part, all others leave",
        "token": "peers with an invitation take part, all others leave",
    }[rule]


def _words(values: dict[str, object], phase: str) -> str:
    doing = {"train": "the run trains", "pause": "the run is paused", "end": "the run has ended"}[phase]
    return ", ".join([*(f"{key} = {value}" for key, value in values.items()), doing])


def _as_json(published: Published) -> dict[str, object]:
    manifest = published.signed.manifest
    return {
        "address": str(published.address),
        "name": manifest.name,
        "author": manifest.author,
        "sequence": manifest.sequence,
        "initial_state": manifest.initial_state.hex(),
        "admission": manifest.admission.model_dump(),
        "changes": [change.model_dump() for change in manifest.changes],
    }


def _peer_ids(texts: list[str]) -> list[str]:
    from prime_p2p.public import peer_ids

    for text in texts:
        peer_ids.check(text)
    return texts


@app.command()
def join(
    address: RunArgument,
    directory: DirectoryOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before it begins.")] = False,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="INVITATION",
            envvar=INVITATION,
            help="Invitation to the run, where its author asks for one.",
        ),
    ] = None,
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
    sets: OwnSetOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = LOOPBACK,
    as_json: EventsOption = False,
    watch_parent: ParentOption = False,
    log_level: LogLevelOption = logs.LogLevel.WARNING,
    log_format: LogFormatOption = logs.LogFormat.TEXT,
    verbose: VerboseOption = False,
) -> int:
    """Join a public run by its address: shows what it is, asks once, and trains in it."""
    from prime_p2p.peer_process import PeerOptions, check_device, place_of, run
    from prime_p2p.public import joining
    from prime_p2p.public.admission import Invitation
    from prime_p2p.public.look import look_at
    from prime_p2p.public.public_run import PublicRun
    from prime_p2p.public.run_address import RunAddress
    from prime_p2p.training.ranks.launch import Launch

    logs.set_up(logs.LogLevel.DEBUG if verbose else log_level, log_format)
    parsed = RunAddress.parse(address)
    os.environ.pop(INVITATION, None)  # it is no business of the processes that this one starts
    invitation = Invitation.from_text(token) if token else None
    launch = Launch(max(1, devices))
    check_device(device, launch.ranks)
    directory = directory or Path("runs") / parsed.name
    look = look_at(parsed, directory)
    joining.check_goes_on(look)
    public = PublicRun(look.signed, directory, invitation, sets or ())
    print(_in_columns(joining.description(look)), file=sys.stderr)
    joining.check_room(look, directory, device)
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask on whether to begin: give --yes")
    if not yes and not typer.confirm(f"train in this run, with files in {directory}?", default=True, err=True):
        print("not joined", file=sys.stderr)
        return 0
    return run(
        PeerOptions(
            recipe=public.terms.base,
            bootstrap=tuple(dict.fromkeys([parsed.bootstrap, *look.bootstraps])),
            directory=directory,
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
            public=public,
        )
    )


@app.command()
def show(
    address: RunArgument,
    recipe: Annotated[
        bool, typer.Option("--recipe", help="Print the recipe that holds at present, as TOML, and nothing else.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show what a public run is at present, without joining it."""
    from prime_p2p.public import show
    from prime_p2p.public.look import look_at
    from prime_p2p.public.run_address import RunAddress

    if recipe and as_json:
        raise typer.BadParameter("give only one of --recipe and --json: the latter has the recipe in it")
    look = look_at(RunAddress.parse(address))
    if recipe:
        print(look.recipe.to_toml(), end="")
    else:
        print(json.dumps(show.as_json(look), indent=2) if as_json else _in_columns(show.lines(look)))
    return 0


def _in_columns(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"{word:<10}  {text}" for word, text in lines)


@app.command()
def ban(
    peers: PeersArgument,
    name: NameOption,
    key: KeyOption,
    bootstrap: BootstrapOption,
    lift: Annotated[bool, typer.Option("--lift", help="Take the ban back.")] = False,
) -> int:
    """Keep peers out of a run, as its author; all its peers hear of it within half a minute."""
    from prime_p2p.public.publish import Wish

    ids = _peer_ids(peers)
    published = _publish(name, key, bootstrap, Wish(pardon=ids) if lift else Wish(ban=ids))
    banned = ", ".join(published.signed.manifest.admission.banned)
    print(f"manifest {published.signed.manifest.sequence} of run {name} bans {banned or 'nobody'}")
    return 0


@app.command()
def invite(
    address: RunArgument,
    key: KeyOption,
    lasts: Annotated[str, typer.Option(metavar="TIME", help="How long it lasts: minutes, hours or days.")] = "7d",
) -> int:
    """Print an invitation to a run that asks for one (of --admission token), signed by its author."""
    from prime_p2p.errors import BadInput
    from prime_p2p.public.admission import Invitation
    from prime_p2p.public.publish import author_of, expiry
    from prime_p2p.public.run_address import RunAddress, fingerprint

    run, author = RunAddress.parse(address), author_of(key)
    if fingerprint(author.peer_id) != run.author:
        raise BadInput(f"author key {key} is not that of the author of run {run.name}, whom the address names")
    print(Invitation.make(run.run, expiry(lasts), author).to_text())
    return 0


@app.command()
def runs(
    bootstrap: BootstrapOption, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> int:
    """List the runs that are known at a bootstrap node, with their peers and progress."""
    from prime_p2p.public.listing import listed, table

    found = listed(bootstrap)
    print(json.dumps(found, indent=2) if as_json else table(found))
    return 0
