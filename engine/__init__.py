"""The bundled engine: a torch-free half that plans too, and a torch half that runs in a process of its own."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("advise")
except PackageNotFoundError:
    __version__ = "unknown"  # a checkout that is not installed
