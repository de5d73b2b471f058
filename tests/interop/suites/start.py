"""Start pytest on the tests of an original, with the packages of its environment before those of
flare: see `original_suites.py`.
"""

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

# mosaicml-streaming keeps shared memory open, and one process runs all of its tests.
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
