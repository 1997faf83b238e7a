"""The commands of prime-p2p. Each imports what it needs when it runs, so that ``--help`` stays fast."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from prime_p2p.errors import PrimeError

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Peer-to-peer training over the internet, with no server in the middle.",
)

RecipeOption = Annotated[
    str,
    typer.Option("--recipe", metavar="FILE", help="What the run is: a TOML file, or the name of a built-in recipe."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the recipe, as in inner.learning_rate=0.001."),
]
BootstrapOption = Annotated[
    list[str],
    typer.Option("--bootstrap", metavar="MADDR", help="Address of a bootstrap node or any peer; may be repeated."),
]
AnnounceOption = Annotated[
    list[str] | None,
    typer.Option("--announce", metavar="MADDR", help="Address to tell others instead of the local one; repeatable."),
]
ParentOption = Annotated[bool, typer.Option("--stop-with-parent", help="Stop when standard input closes.")]


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
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="IP address to listen at.")] = "0.0.0.0",
    identity: Annotated[Path, typer.Option(metavar="FILE", help="Private key, made when missing.")] = Path(
        "identity.key"
    ),
    announce: AnnounceOption = None,
    watch_parent: ParentOption = False,
) -> int:
    """Serve as the address that peers find each other by. Prints one line: the multiaddress to give to them."""
    from prime_p2p import bootstrap_node
    from prime_p2p.network.node import NodeConfig

    config = NodeConfig(identity=identity, host=host, port=port, announce=tuple(announce or ()), relay=True)
    bootstrap_node.run(config, lambda address: print(address, flush=True), watch_parent=watch_parent)
    return 0


@app.command()
def peer(
    bootstrap: BootstrapOption,
    recipe: RecipeOption,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="State, metrics and identity.", show_default="runs/NAME")
    ] = None,
    identity: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key.", show_default="identity.key in the folder")
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="IP address to listen at.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="TCP port; 0 takes a free one.")] = 0,
    announce: AnnounceOption = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads.", show_default="all cores")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "auto",
    bandwidth: Annotated[
        float,
        typer.Option(min=0, max=1e9, metavar="MBIT", help="Mbit/s that this peer can send; its share of the reducing."),
    ] = 100.0,
    sets: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines on standard output.")] = False,
    watch_parent: ParentOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what happens in detail on standard error.")] = False,
) -> int:
    """Join a run and train in it."""
    import logging

    from prime_p2p.builtin_recipes import find_recipe
    from prime_p2p.peer_process import PeerOptions, run
    from prime_p2p.recipe import Recipe
    from prime_p2p.swarm.swarm import SwarmOptions

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s" if verbose else logging.BASIC_FORMAT,
        stream=sys.stderr,
    )
    loaded = Recipe.load(find_recipe(recipe), sets or ())

    return run(
        PeerOptions(
            recipe=loaded,
            bootstrap=tuple(bootstrap),
            directory=directory or Path("runs") / loaded.run.name,
            swarm=SwarmOptions(identity, host, port, tuple(announce or ()), bandwidth),
            threads=threads,
            device=device,
            json=as_json,
            stop_with_parent=watch_parent,
        )
    )


@app.command()
def status(
    bootstrap: BootstrapOption,
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="Only this run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show who is in a run."""
    from prime_p2p.monitor.text import status_table
    from prime_p2p.status import look

    heartbeats = look(bootstrap, run)
    print(json.dumps(heartbeats, indent=2) if as_json else status_table(heartbeats))
    return 0


# typer has this class from click or within itself, depending on its release; all errors of usage derive from it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run the command line. Whatever a user can cause ends in one line on standard error, without a traceback."""
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
    print(f"prime-p2p: {' '.join(text.split())}", file=sys.stderr)


if __name__ == "__main__":
    main()
