"""What a shell offers when Tab is pressed: presets, files, and the names of settings.

`fedvarp --install-completion` sets it up.
"""

from __future__ import annotations

from pathlib import Path


def complete_config(incomplete: str) -> list[tuple[str, str]]:
    """Offers presets with what they are, and TOML files.

    Args:
        incomplete: What was typed so far.

    Returns:
        What it could become, each with a word about it.
    """
    from fedvarp.experiments.files import preset_names, preset_summary

    presets = [(n, preset_summary(n)) for n in preset_names() if n.startswith(incomplete)]
    place = Path(incomplete)
    folder = place if incomplete.endswith("/") else place.parent
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [f"{path}/" if path.is_dir() else str(path) for path in found]
    return presets + [
        (name, "")
        for name in files
        if name.startswith(incomplete) and name.endswith((".toml", "/")) and "/." not in f"/{name}"
    ]


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Offers the names of settings, and for those that are one of a few words, these.

    Args:
        incomplete: What was typed so far, such as "local_sgd.e" or "table.codec=b".

    Returns:
        What it could become, each with what it means.
    """
    from fedvarp.experiments.files import SHORT_NAMES, setting_choices
    from fedvarp.experiments.settings import Settings
    from fedvarp.settings.problems import fields_of

    key, equals, _ = incomplete.partition("=")
    if equals:
        return [(f"{key}={one}", "") for one in setting_choices(key) if one]
    meanings = {name: meaning or "" for name, meaning in fields_of(Settings)}
    meanings |= {short: meanings[name] for short, name in SHORT_NAMES.items()}
    return [
        (f"{name}=", " ".join(meaning.split()))
        for name, meaning in sorted(meanings.items())
        if name.startswith(incomplete)
        and not any(other.startswith(f"{name}.") for other in meanings)
    ]
