"""The HTML templates beside this module. Every word that is put into them is escaped."""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: Any) -> str:
    """Fills a template in.

    Args:
        template: The name of a file in templates/.
        values: What its variables stand for. Words are escaped; an object with a method
            ``__html__`` is asked for its own HTML.

    Raises:
        jinja2.UndefinedError: The template has a variable that is not among the values.
    """
    return _environment().get_template(template).render(values)


def fixed_part(name: str) -> str:
    """Returns the text of a file in templates/ that has nothing to fill in: style or script."""
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedvarp.analysis"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # For the filter tojson: short, in the order given, and refusing what is not JSON.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment
