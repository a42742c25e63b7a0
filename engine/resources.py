"""Where files live: the read-only data that ships with the packages, and the user cache.

Owns the two lookups and nothing else. It never downloads and never writes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PACKAGE = {"profiles": "engine", "templates": "advisor"}


def data_folder(name: str) -> Path:
    """Folder of shipped data, `profiles` or `templates`.

    A wheel carries them inside its packages; a checkout or an editable install has them at its root.
    """
    root = Path(__file__).resolve().parent.parent
    inside = root / _PACKAGE[name] / name
    return inside if inside.is_dir() else root / name


def user_cache() -> Path:
    """Folder for converted models and calibrations; it may not exist yet."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return Path(base) / "advise"
