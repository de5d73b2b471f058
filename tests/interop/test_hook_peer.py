"""The hook in a new repository, installed by pre-commit from this checkout.

pre-commit installs flare and its dependencies from the package index of pip's configuration.
HOOK_PYTHON names the interpreter that runs these tests, if it has pre-commit.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.test_action_and_hook import ROOT, check_commits

pytestmark = pytest.mark.skipif(
    not os.environ.get("HOOK_PYTHON"), reason="HOOK_PYTHON names no interpreter that has pre-commit"
)


def test_pre_commit_installs_the_hook_which_rejects_a_damaged_dataset(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("the tests do not run in a git checkout")
    repos = [{"repo": str(ROOT), "rev": "HEAD", "hooks": [{"id": "flare-verify"}]}]
    environment = {  # without the flare of this environment
        "PATH": f"{Path(shutil.which('git')).parent}{os.pathsep}{os.defpath}",
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
    }
    check_commits(tmp_path, repos, **environment)
    (installed,) = (tmp_path / "kept").glob("repo*/py_env-*/bin/flare")
    assert installed.is_file()
