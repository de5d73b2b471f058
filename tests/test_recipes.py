"""Pages with output are correct: their command lines run in order and print the documented
output.
"""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize("page", ["../README.md", "recipes.md", "living.md", "start.md"])
def test_the_command_lines_of_a_page_print_the_documented_output(
    page, tmp_path, in_tmp_path, forked_flare
):
    if page in ("recipes.md", "living.md"):  # the sessions of the other pages need no files
        recipes = (DOCS / "recipes.md").read_text()
        code = re.search(r"```python\n(.*?)```", recipes, re.DOTALL)[1]
        exec(code, {})  # writes the files that the recipes name
    lines = [
        line
        for block in re.findall(r"```console\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
        for line in block.splitlines()
        if block.startswith("$ ") and not re.search(r"^\$ (make|pip) ", block, re.MULTILINE)
    ]
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    script = [
        f'flare() {{ {shlex.join(forked_flare)} "$@"; }}',
        *(f'{command}\necho "$?" >> codes; echo @@@' for command in commands),
    ]
    ran = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    told = [
        f"$ {command}\n{out}"
        for command, out in zip(commands, ran.stdout.split("@@@\n"), strict=False)
    ]
    assert "".join(told).splitlines() == lines, ran.stderr
    codes = (tmp_path / "codes").read_text().split()
    assert codes == ["1" if command.endswith("# exit 1") else "0" for command in commands]
