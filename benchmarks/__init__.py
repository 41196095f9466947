"""What the package costs, measured, and what the paper's claims come to.

Every speed is a ratio to a baseline timed in the same run.

rounds               what a round takes, beside bare loops of PyTorch
peers                the same beside other simulators
local_step           a local step of LeNet-5, beside other ways to take it
cohorts              what a client costs in rounds of few and of many
server_update        `Server.receive` against the bandwidth of memory
registered_clients   the server's time and memory as federations grow
commits              what a commit per round costs
codecs               what each codec takes per row, and what it adds to the direction
flower_strategy      a round of our Flower strategy beside Flower's own
whole_commands       how soon a run begins, and what a sweep gets done in an hour
reproduction         the tables and figures of docs/reproduction.md
faults               campaigns: broken and lying replies, and what else can go wrong, counted
theorems             where algorithms stop, against what the theorems say
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
"""The repository."""
