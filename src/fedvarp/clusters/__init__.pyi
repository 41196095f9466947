from .clustering import by_gradients as by_gradients
from .clustering import by_label_sets as by_label_sets
from .reclustering import Reclustering as Reclustering
