from .from_gradients import by_gradients as by_gradients
from .known_groups import by_labels as by_labels
from .known_groups import by_metadata as by_metadata
from .reclustering import Reclustering as Reclustering
