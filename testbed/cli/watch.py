"""The command `watch`: show a run as a web page, in progress or finished."""

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
    int,
    typer.Option(
        "--port", min=0, max=65535, help="Port of the page, on this machine's loopback; 0: any free one."
    ),
]


def watch(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder that `testbed run` creates or has created."),
    ],
    port: PortOption = 0,
) -> None:
    """Show a run in the browser: network, timeline and step times, while it goes on or afterwards.

    The page is only served on this machine's loopback, at an address with a token. Ctrl-C ends it; the run continues.
    """
    folder = run.resolve()
    with _page(folder.with_name(folder.name.removesuffix(PARTIAL_SUFFIX)), port) as page:
        _tell(page)
        _wait()


@contextlib.contextmanager
def shown(folder: Path, asked: bool, console: Console) -> Iterator[None]:
    """Serve the page of the run in `folder` during the block, if `asked`.

    At a terminal the page stays until Ctrl-C after a successful run.
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
            console.print(f"To see the page again: testbed watch {folder}", soft_wrap=True, markup=False)


def _page(folder: Path, port: int = 0, *, expected: bool = False) -> LivePage:
    # imported late, as most runs do not need the page
    from testbed.show.live.server import LivePage  # noqa: PLC0415

    return LivePage(folder, port, expected=expected)


def _tell(page: LivePage) -> None:
    Console(stderr=True, highlight=False).print(f"Page: {page.address}", soft_wrap=True, markup=False)


def _wait() -> None:
    """Wait for Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
