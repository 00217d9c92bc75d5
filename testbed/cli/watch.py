"""The command `watch`: the page of a run, while it goes on and when it is over."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from testbed.measure.results.run_directory import PARTIAL_SUFFIX

if TYPE_CHECKING:
    from testbed.show.live.server import LivePage

PortOption = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="Of the page, on this machine's loopback; 0: any.")
]


def add_commands(app: typer.Typer) -> None:
    """Register this module's command."""
    app.command()(watch)


def watch(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A folder that `testbed run` makes, or has made; of one that goes on, too."
        ),
    ],
    port: PortOption = 0,
) -> None:
    """Show a run as a page in a browser: its network, timeline and step times as they come, or all of one that is over.

    The page is on this machine's loopback alone, at an address with a token. Ctrl-C ends it; the run goes on.
    """
    folder = run.resolve()
    with _page(folder.with_name(folder.name.removesuffix(PARTIAL_SUFFIX)), port) as page:
        _tell(page)
        _wait()


@contextlib.contextmanager
def shown(folder: Path, asked: bool, console: Console) -> Iterator[None]:
    """While the block lasts the page of the run that will be in `folder` is there, if `asked`; at a terminal longer.

    Until Ctrl-C, that is, where the run did not fail.
    """
    if not asked:
        yield
        return
    with _page(folder, expected=True) as page:
        _tell(page)
        yield
        if sys.stdin.isatty():
            console.print("The page stays until Ctrl-C.")
            _wait()
        else:
            console.print(f"The page again: testbed watch {folder}", soft_wrap=True, markup=False)


def _page(folder: Path, port: int = 0, *, expected: bool = False) -> LivePage:
    """As it is made; what serves it is loaded when a page is wanted, which most runs do without."""
    from testbed.show.live.server import LivePage  # noqa: PLC0415

    return LivePage(folder, port, expected=expected)


def _tell(page: LivePage) -> None:
    Console(stderr=True, highlight=False).print(f"Page: {page.address}", soft_wrap=True, markup=False)


def _wait() -> None:
    """Until Ctrl-C, which is how one ends it."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
