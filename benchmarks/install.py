"""What the base install weighs, what importing the CLI loads, and that the wheel analyses a log.

Builds the wheel, installs it with its base dependencies into a new environment, and prints the environment's
size on disk (limit 560 MB), the CLI's import time, whether torch was loaded, and the analysis of a log that
the wheel wrote itself, run from another folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_MB = 560

IMPORT = """
import sys, time
start = time.perf_counter()
import advisor.cli
print(f"{time.perf_counter() - start:.2f}", "torch" in sys.modules)
"""

LOG = "".join(
    f'{{"timestamp": {i * 250}, "input_length": 1200, "output_length": 40, "hash_ids": [0, 1, {i + 2}]}}\n'
    for i in range(200)
)


def install_wheel(folder: Path) -> Path:
    """Build this checkout's wheel and install it into a new environment; gives that environment's Python."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    [wheel] = folder.glob("*.whl")
    subprocess.run([python, *pip[1:], "install", "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True)
    return python


def size_mb(folder: Path) -> float:
    """Disk taken by the files below `folder`, MB (1e6 bytes)."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = install_wheel(folder)
        print(f"base install         {size_mb(folder / 'venv'):.0f} MB   (limit {LIMIT_MB} MB)")
        imported = subprocess.run(
            [python, "-c", IMPORT], check=True, capture_output=True, text=True, cwd=folder
        )
        seconds, torch = imported.stdout.split()
        print(f"import advisor.cli   {seconds} s, torch loaded: {torch}")
        (folder / "log.jsonl").write_text(LOG)
        start = time.perf_counter()
        advise = [str(python), "-m", "advisor", "analyze", "log.jsonl", "--no-plan", "--json"]
        subprocess.run(advise, check=True, capture_output=True, cwd=folder)
        print(f"advise analyze       {time.perf_counter() - start:.1f} s for 200 requests, from another folder")


if __name__ == "__main__":
    main()
