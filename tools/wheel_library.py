"""Build hook of the wheel: compiles the library of flows into it where there is a C compiler.

A wheel that is built without one has the C sources alone, and the library is compiled on first use.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "testbed/prediction/compiled"


class LibraryHook(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Compiles the library of flows, and marks the wheel as one for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to the files of a wheel; an editable install compiles on first use."""
        if version == "editable":
            return
        found = importlib.util.spec_from_file_location("compiler", Path(self.root, FOLDER, "compiler.py"))
        assert found is not None
        assert found.loader is not None
        compiler = importlib.util.module_from_spec(found)
        found.loader.exec_module(compiler)
        self.scratch = tempfile.TemporaryDirectory()
        library = Path(self.scratch.name) / compiler.library_name()
        try:
            compiler.compile_library(library)
        except (OSError, subprocess.SubprocessError) as error:
            self.app.display_warning(
                f"no library of flows in the wheel: it cannot be compiled here ({error})"
            )
            return
        build_data["force_include"][str(library)] = f"{FOLDER}/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
