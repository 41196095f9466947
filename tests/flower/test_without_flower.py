"""Where Flower is not installed, the rest of the package works."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_FLOWER = """
import sys

class NoFlower:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "flwr":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoFlower())
import fedvarp, fedvarp.cli.app
assert not any(name.split(".")[0] == "flwr" for name in sys.modules)
try:
    import fedvarp.flower
except ImportError as error:
    print(error)
"""


def test_without_flower_the_package_imports_and_says_what_to_install() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_FLOWER], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert 'pip install "fedvarp[flower]"' in ended.stdout
