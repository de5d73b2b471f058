"""Start pytest on an original's tests, in the original's environment and with flare's after it: see `original_suites.py`."""

import importlib.util
import os
import resource
import sys

sys.path[:] = [
    os.getcwd(),
    *sys.path[1:],
    os.path.dirname(os.path.abspath(__file__)),
    *os.environ["SUITE_PATHS"].split(os.pathsep),
]
missing = [
    name for name in os.environ["SUITE_NEEDS"].split(",") if not importlib.util.find_spec(name)
]
if missing:
    print(f"{sys.executable} has no {', '.join(missing)}", file=sys.stderr)
    sys.exit(70)

# mosaicml-streaming keeps shared memory open, in one process for all of its tests.
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

import pytest  # noqa: E402

below = int(os.environ["SUITE_PYTEST_BELOW"])
if int(pytest.__version__.partition(".")[0]) >= below:
    print(
        f"{sys.executable} has pytest {pytest.__version__}, these tests need pytest<{below}",
        file=sys.stderr,
    )
    sys.exit(70)

if __name__ == "__main__":
    sys.exit(pytest.main(["-p", "suite_plugin", *sys.argv[1:]]))
