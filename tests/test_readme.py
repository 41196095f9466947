"""Every Python example of the README runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_examples_run_in_the_order_they_are_printed() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert len(examples) >= 2
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, "README.md", "exec"), names)
