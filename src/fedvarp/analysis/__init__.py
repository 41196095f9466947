"""Looking at finished runs: which got where, how soon, and at what cost.

runs      what lies on disk, as arrays
groups    runs that differ in the seed alone, and what may differ at all
targets   the two rules for when a target is reached
table     the comparison, a row for each group
formats   the comparison as text, CSV and JSON
compact   runs in one small file, of which all of this can be made
looks     each algorithm's name, colour, dash and marker
units     numbers as people read them
"""

from fedvarp.analysis.compact import compact
from fedvarp.analysis.comparison import Comparison, Row, compare
from fedvarp.analysis.formats import as_csv, as_json, as_text
from fedvarp.analysis.groups import Group, group_runs
from fedvarp.analysis.runs import Run, read_runs

__all__ = [
    "Comparison",
    "Group",
    "Row",
    "Run",
    "as_csv",
    "as_json",
    "as_text",
    "compact",
    "compare",
    "group_runs",
    "read_runs",
]
