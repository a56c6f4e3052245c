"""What tests of torchrun start: two nodes, or `fabric run`, in a network namespace with nothing but a loopback.

python -m tests.torchrun two-nodes FOLDER WORDS…    `lookalike WORDS…` under two torchruns of a process each
python -m tests.torchrun fabric WORDS…              the same under `fabric run` with two processes

It imports nothing heavy: what it starts does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests import milvus_server


def two_nodes(place: Path, *words: str) -> int:
    """Start both torchruns; return the exit code of the first.

    Once the file `strike` is there and a checkpoint too, the second node is killed, or with the file `restart` its
    process alone, which torchrun then starts again on both nodes.
    """
    milvus_server.alone()  # torchrun's store listens on all interfaces
    restart = (place / "restart").exists()
    code = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    code += [f"--max-restarts={int(restart)}"]
    nodes = [
        subprocess.Popen(
            [sys.executable, *code, "--master-port=29611", f"--node-rank={rank}", "-m", "lookalike", *words],
            env=os.environ | {"LOOKALIKE_HOME": str(place / f"home{rank}")},
            start_new_session=True,
        )
        for rank in range(2)
    ]
    while any(node.poll() is None for node in nodes):
        time.sleep(0.05)
        if (place / "strike").exists() and nodes[1].poll() is None and any(place.glob("run/checkpoints/last.pt")):
            worker = Path(f"/proc/{nodes[1].pid}/task/{nodes[1].pid}/children").read_text().split()
            for process in [*([] if restart else [nodes[1].pid]), *map(int, worker)]:
                os.kill(process, signal.SIGKILL)
            if restart and worker:
                (place / "strike").unlink()
    return nodes[0].wait()


def fabric(*words: str) -> int:
    """`fabric run` with two processes on this machine."""
    milvus_server.alone()
    code = "import sys; from lookalike.core.imports import prepare_torchvision; prepare_torchvision(); "
    code += "from lightning_fabric.cli import _main; sys.exit(_main())"  # it imports torchvision
    command = [sys.executable, "-c", code, "run", "--accelerator=cpu", "--devices=2"]
    return subprocess.run([*command, Path(sys.executable).parent / "lookalike", *words]).returncode


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    sys.exit(two_nodes(Path(words[0]), *words[1:]) if what == "two-nodes" else fabric(*words))
