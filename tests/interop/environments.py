"""Create an environment for each original library, for the tests of this folder.

    environments.py FOLDER     create the missing environments FOLDER/NAME, and print lines
                               NAME_PYTHON=… for the shell

None of the libraries is a dependency of flare, and two generations of a library cannot share an
environment. Libraries for training (the extra `interop`) read datasets with flare, so they are
installed in the environment that runs this file; if they are, TRAINING_PYTHON names its
interpreter. If this environment also has pre-commit, HOOK_PYTHON names its interpreter.
"""

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

STUBS = {  # imported by mosaicml-streaming, but not used to read or write shards
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
TORCH_STUBS = {  # imported by wids, but not used in one process
    "torch/__init__.py": "",
    "torch/distributed.py": "",
    "torch/utils/__init__.py": "",
    "torch/utils/data.py": "from typing import Generic, TypeVar\n"
    "class Dataset(Generic[TypeVar('T')]): ...\nclass Sampler: ...\n",
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
    # the last release of webdataset that contains wids
    "WIDS_PYTHON": ("wids", (("webdataset==0.2.111",),), "wids", TORCH_STUBS),
}


def create(folder, calls, module, stubs):
    """Create an environment unless it is complete, which the file `made` records; return its
    interpreter.
    """
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
    """Create all environments below a folder and print their interpreters."""
    for variable, (name, *settings) in PEERS.items():
        print(f"{variable}={create(Path(root).resolve() / name, *settings)}", flush=True)
    if all(importlib.util.find_spec(name) for name in TRAINERS):
        print(f"TRAINING_PYTHON={sys.executable}", flush=True)
    if importlib.util.find_spec("pre_commit"):
        print(f"HOOK_PYTHON={sys.executable}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
