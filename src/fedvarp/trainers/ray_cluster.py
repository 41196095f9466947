"""The way to Ray, for sweeps and training: a cluster that is up, or one on this machine only."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

# Ray's switch for laptops; on Linux too it keeps the cluster off all networks but loopback.
_CLUSTERS: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def connect(address: str | None, num_cpus: int, instead: str) -> Any:
    """Imports Ray and connects it to a cluster.

    Args:
        address: Of a cluster that is up ("auto": the one of this machine); None: that of Ray's
            own RAY_ADDRESS, and where it is not set one is started that listens on 127.0.0.1 only.
        num_cpus: How many CPUs a cluster that is started here has.
        instead: The end of the sentence "Without it, ...": what to do where Ray is not installed.

    Returns:
        The module `ray`.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: No cluster answers.
        RuntimeError: Ray was imported before it could be told to stay on this machine.
    """
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    own = address == "local"
    ray = _import_ray(own, instead)
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    if own:
        # By its name, or Ray would join a cluster that happens to be up on this machine.
        ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, **quiet)
        return ray
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        raise ConnectionError(
            f"No Ray cluster answers at {address}: {error}. Is it up (`ray status`)? A "
            f"cluster that asks for a token takes it from RAY_AUTH_TOKEN, as Ray documents."
        ) from error
    return ray


def _import_ray(own_cluster: bool, instead: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if own_cluster and _CLUSTERS not in os.environ:
        if sys.platform == "linux" and sys.modules.get("ray") is not None:
            raise RuntimeError(
                f"Ray was imported before {_CLUSTERS}=0 could be set, and a cluster started now "
                f"would listen on all networks. Set it in the environment, or start a cluster "
                f'yourself and give its address, such as "auto".'
            )
        os.environ[_CLUSTERS] = "0"
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            f'Ray is not installed: pip install "fedvarp[ray]". Without it, {instead}'
        ) from error
    return ray
