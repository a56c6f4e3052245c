"""Write constraints.txt: one version of everything pyproject.toml and the set-up may install.

python tools/pins.py              keep the versions that are pinned, add and drop packages as needed
python tools/pins.py --upgrade    take the newest versions
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PINS = TOP / "constraints.txt"
HEAD = """\
# What a release was tested with; made by `make pins`. pyproject.toml has the ranges.
# No local versions (+cpu): which build of torch is taken is up to the machine.
"""


def main() -> int:
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    if uv is None:
        print("pins: uv is not installed", file=sys.stderr)
        return 2
    command = [uv, "pip", "compile", "pyproject.toml", "-", "--all-extras", "--python-version", "3.11", "--quiet"]
    command += ["--no-annotate", "--no-header"]
    if "--upgrade" not in sys.argv:
        command += ["--constraints", "constraints.txt"]
    done = subprocess.run(command, cwd=TOP, input="uv\n", capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return 1
    lines = re.sub(r"\+\w+$", "", done.stdout, flags=re.M).splitlines()
    pinned = [line for line in lines if not line.startswith(("nvidia-", "cuda-", "triton"))]  # torch's CUDA build
    PINS.write_text(HEAD + "\n".join(pinned) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
