from .aggregator import Aggregator as Aggregator
from .fedavg import FedAvg as FedAvg
from .fedvarp import FedVARP as FedVARP
from .fedvarp import cluster_fedvarp as cluster_fedvarp
from .mifa import MIFA as MIFA
from .round_updates import Reply as Reply
from .round_updates import RoundUpdates as RoundUpdates
from .scaffold import Scaffold as Scaffold
