"""The original libraries, each in an environment of its own, for the tests beside this file.

    environments.py FOLDER     makes FOLDER/NAME for each that is not there yet, and prints NAME_PYTHON=… lines for the shell

None of them is a dependency of flare, and two generations of one library cannot share an environment. The libraries that train (the extra
`interop`) read flare's own datasets, so they are in the environment that runs this file: TRAINING_PYTHON names it, if they are.
"""

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

STUBS = {  # what mosaicml-streaming imports when it is loaded, and never calls to read or write shards
    "transformers/__init__.py": "",
    "transformers/feature_extraction_utils.py": "class BatchFeature(dict): ...\n",
    "transformers/tokenization_utils_base.py": "class BatchEncoding(dict): ...\n",
    "transformers/models/__init__.py": "",
    "transformers/models/auto/__init__.py": "",
    "transformers/models/auto/tokenization_auto.py": "class AutoTokenizer: ...\n",
    "torchvision/__init__.py": "",
    "torchvision/datasets.py": "class VisionDataset: ...\n",
    "torchvision/transforms/__init__.py": "",
    "torchvision/transforms/functional.py": "def to_tensor(x): raise NotImplementedError\n",
}
TRAINERS = ("accelerate", "lightning", "torch", "transformers")
PEERS = {  # variable: (folder, calls of pip, modules that must import, stubs)
    "PEER_PYTHON": (
        "streaming",
        (
            ("torch==2.13.0",),
            (
                "numpy==2.1.3",
                "Brotli",
                "python-snappy",
                "xxhash",
                "zstd==1.5.7.2",
                "tqdm",
                "pillow",
                "catalogue",
                "pyarrow",
                "pytest<9",  # the library's own tests put marks on fixtures
            ),
            ("--no-deps", "mosaicml-streaming==0.13.0"),
        ),
        "streaming",
        STUBS,
    ),
    "GRANULAR_PYTHON": (
        "granular",
        (("granular==0.24.2", "pillow", "mediapy", "imageio-ffmpeg==0.6.0"),),
        "granular",
        {},
    ),
    "GRANULAR_OLD_PYTHON": (
        "granular_old",
        (("granular==0.21.2", "pillow", "av"),),
        "granular",
        {},
    ),
    "WEBDATASET_PYTHON": ("webdataset", (("webdataset",),), "webdataset", {}),
}


def make(folder, calls, module, stubs):
    """Make one environment, whole or not at all: the last step is a file that says so."""
    python, done = folder / "bin" / "python", folder / "made"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        for packages in calls:
            subprocess.run(
                [
                    python,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    *packages,
                ],
                check=True,
            )
        where = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        )
        for name, text in stubs.items():
            path = Path(where.stdout.strip(), name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        subprocess.run([python, "-c", f"import {module}"], check=True)
        done.touch()
    return python


def main(root):
    """Make all of them below a folder."""
    for variable, (name, *how) in PEERS.items():
        print(f"{variable}={make(Path(root).resolve() / name, *how)}", flush=True)
    if all(importlib.util.find_spec(name) for name in TRAINERS):
        print(f"TRAINING_PYTHON={sys.executable}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
