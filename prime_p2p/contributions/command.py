"""The command about contributions."""

from typing import Annotated

import typer

from prime_p2p.options import BootstrapOrNoneOption, RunNameOption, RunOrNoneArgument, run_of

app = typer.Typer()


@app.command()
def contributions(
    address: RunOrNoneArgument = None,
    bootstrap: BootstrapOrNoneOption = None,
    run: RunNameOption = None,
    since: Annotated[int, typer.Option(min=1, max=2**53, metavar="STEP", help="The first outer step that counts.")] = 1,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with what was rejected.")] = False,
) -> int:
    """Show what each peer has contributed to a run, as far as its groups have signed it."""
    from prime_p2p.contributions import report
    from prime_p2p.contributions.collect import collect
    from prime_p2p.monitor import logs

    if as_csv and as_json:
        raise typer.BadParameter("give only one of --csv and --json")
    places, name = run_of(address, bootstrap, run)
    logs.set_up()
    collected = collect(places, name, since)
    form = report.as_csv if as_csv else report.as_json if as_json else report.as_table
    print(form(collected))
    return 0
