"""The command about contributions."""

from typing import Annotated

import typer

from prime_p2p.options import BootstrapOption

app = typer.Typer()


@app.command()
def contributions(
    bootstrap: BootstrapOption,
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="This run, where there are several.")] = None,
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
    logs.set_up()
    collected = collect(bootstrap, run, since)
    form = report.as_csv if as_csv else report.as_json if as_json else report.as_table
    print(form(collected))
    return 0
