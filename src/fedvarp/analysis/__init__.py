"""Looking at finished runs: which got where, how soon, and at what cost. Nothing here needs torch.

- `runs`, `groups`: what lies on disk as arrays; runs that differ in the seed alone.
- `setting_kinds`: which settings may differ in a comparison, and what they are called.
- `targets`, `comparison`, `comparison_tables`: when a target is reached; the figures; on paper.
- `tables`: one table, written as text, Markdown, CSV, JSON or HTML.
- `curve_plots`, `ablation_plots`, `figures`: the paper's figures, and what they have in common.
- `report`: one HTML page about some runs.
- `compact_file`: runs in one small file, of which all of this can be made.
- `styles`, `units`: what algorithms are called and look like; numbers as people read them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
