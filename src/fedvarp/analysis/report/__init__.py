"""One self-contained HTML page about some runs: curves to play with, tables, clients, settings.

- `page`: what stands on the page, and the page.
- `charts`: what is to be drawn, as plain data.
- `participation`: who took part how often, and how long the others have waited.
- `watching`: the page on a port of this machine, renewed while runs go on.
- `diagnosed`: what `fedvarp diagnose` found, for runs that were diagnosed.

The HTML itself is in ../templates.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
