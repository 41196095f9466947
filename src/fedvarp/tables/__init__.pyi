from .base import ClientTable as ClientTable
from .clustered import ClusteredTable as ClusteredTable
from .codecs import CODECS as CODECS
from .disk import DiskTable as DiskTable
from .memory import MemoryTable as MemoryTable
from .row_table import RowTable as RowTable
from .settings import Table as Table
from .store import StoreError as StoreError
