"""Train on a labeled folder, then compare the result with the starting model on classes it has not seen."""

from pathlib import Path

from search_folder import make_folder

import lookalike as la

if __name__ == "__main__":
    folder = make_folder(Path("example-images"), classes=8, images=4)
    run = la.train(data=folder, out="example-run", steps=20, report=False)
    print(run.result["verdict"])
    print(la.compare(data=folder, a="efficientnet_lite0", b="example-run"))
