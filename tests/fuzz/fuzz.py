"""Fuzz one parser with coverage guidance: fuzz.py TARGET --seconds 600 [--corpus DIR]

Requires atheris (pip install atheris). One input of each fault is written to the corpus
folder as fault-…, or crash-… if the process died, and is moved to tests/fuzz/found/TARGET when the
fault is fixed.
"""

import argparse
import importlib
import pkgutil
import resource
import sys
import tempfile
import traceback
from pathlib import Path

import atheris

SKIPPED = ("flarecli.ray", "flarecli.torch", "flarecli.compat")

with atheris.instrument_imports(include=["flarecli"], enable_loader_override=False):
    import flarecli

    for found in pkgutil.walk_packages(flarecli.__path__, "flarecli."):
        if not found.name.startswith(SKIPPED):  # parsers are imported when first used
            importlib.import_module(found.name)
    import targets

    from flarecli.errors import FlareError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(targets.TARGETS))
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--memory-mb", type=int, default=2048)
    given = parser.parse_args()
    target = targets.TARGETS[given.target]
    folder = given.corpus or Path(tempfile.mkdtemp(prefix="fuzz-"))
    seeds = folder / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(target.seeds()):
        (seeds / str(i)).write_bytes(seed)

    seen: set[str] = set()

    def one(data: bytes) -> None:
        try:
            target.call(data)
        except FlareError:
            pass
        except Exception as error:  # keep one input of each fault, and go on
            frames = traceback.extract_tb(error.__traceback__)
            own = [frame for frame in frames if "flarecli" in frame.filename] or frames
            name = f"{type(error).__name__}-{Path(own[-1].filename).stem}-{own[-1].name}"
            if name not in seen:
                seen.add(name)
                (folder / f"fault-{name}").write_bytes(data)
                print(f"FAULT {name}", file=sys.stderr)
                traceback.print_exception(error, file=sys.stderr)

    largest = max((path.stat().st_size for path in seeds.iterdir()), default=1)
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={given.seconds}",
            f"-artifact_prefix={folder}/",
            f"-max_len={2 * largest + 256}",
            "-timeout=20",
            f"-rss_limit_mb={given.memory_mb}",
            str(seeds),
        ],
        one,
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
