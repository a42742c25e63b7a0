"""The bundled engine. Its torch-free half plans and simulates; its torch half runs only in a process of its own."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("advise")
except PackageNotFoundError:
    __version__ = "unknown"  # a checkout that is not installed
