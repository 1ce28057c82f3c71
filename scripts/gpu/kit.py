"""The kit for a GPU machine without a network: its wheels collected here, its environment made there.

    python scripts/gpu/kit.py collect                # where there is a package index
    python scripts/gpu/kit.py install runs/gpu/venv  # on the GPU machine, with the Python that has torch

Both need nothing but Python and pip: on the GPU machine nothing of ours is installed yet.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PINS, WHEELS = HERE / "wheels.txt", ROOT / "gpu-kit"
MOST_MIB = 64
"""What may be brought along, the working tree included."""
PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
"""Of glibc; pip takes each at its word, and a wheel bears the oldest one that it runs on."""
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def collect(python_version: str, folder: Path) -> None:
    """Download the pinned wheels into a new folder, and say what they weigh with the working tree.

    Raises:
        SystemExit: It is more than may be brought along.
        subprocess.CalledProcessError: pip failed, and has said why.
    """
    shutil.rmtree(folder, ignore_errors=True)
    options = [
        "--only-binary=:all:",
        "--no-deps",
        "--python-version",
        python_version,
        "--implementation",
        "cp",
    ]
    options += [f"--platform=manylinux_{version}_x86_64" for version in PLATFORMS]
    pins = ["-c", str(ROOT / "constraints.txt"), "-r", str(PINS), "-d", str(folder)]
    subprocess.run([*PIP, "download", *options, *pins], check=True)
    print(weight(folder, ROOT))


def weight(folder: Path, tree: Path) -> str:
    """Return how many MiB the kit and the working tree are.

    Raises:
        SystemExit: They are more than may be brought along.
    """
    listed = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    wheels = list(folder.glob("*.whl"))
    code, kit = (
        sum(path.stat().st_size for path in paths if path.is_file()) / 2**20
        for paths in ([tree / name for name in names if name], wheels)
    )
    text = (
        f"{len(wheels)} wheels of {kit:.1f} MiB and the working tree of {code:.1f} are {kit + code:.1f} MiB"
    )
    if kit + code > MOST_MIB:
        sys.exit(
            f"{text}; no more than {MOST_MIB} may be brought along. Check first: what is large in {tree}?"
        )
    return text


def install(folder: Path, wheels: Path) -> None:
    """Make an environment that has this Python's packages, the kit's where those do not do, and the project.

    Raises:
        subprocess.CalledProcessError: pip failed, and has said why.
    """
    venv.create(folder, system_site_packages=True, clear=True, symlinks=True)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    # This Python may be that of an environment itself, whose packages are not the system's.
    outer = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "outer.pth").write_text("\n".join(sorted(outer)) + "\n")
    options = ["--python", str(python), "install", "--no-index", "--no-deps", "--find-links", str(wheels)]
    subprocess.run([*PIP, *options, "-r", str(PINS)], check=True)
    subprocess.run([*PIP, *options, "--no-build-isolation", "-e", str(ROOT)], check=True)
    print(f"{folder}: the kit and the project, beside the packages of {sys.prefix}")


def main() -> None:
    """Run one of the two halves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheels", type=Path, default=WHEELS)
    halves = parser.add_subparsers(dest="half", required=True)
    halves.add_parser("collect").add_argument("--python-version", default="3.12")
    halves.add_parser("install").add_argument("folder", type=Path)
    asked = parser.parse_args()
    if asked.half == "collect":
        collect(asked.python_version, asked.wheels)
    else:
        install(asked.folder, asked.wheels)


if __name__ == "__main__":
    main()
