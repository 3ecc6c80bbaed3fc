"""Functions on the machines of a Ray cluster, where the extra ``ray`` is installed."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from edgecompile.errors import ClusterError, MissingDependencyError

Item = TypeVar("Item")
Result = TypeVar("Result")


def need_ray() -> None:
    """Raises:
    MissingDependencyError: Ray isn't installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError(
            '`on="ray"` needs the Python package ray, which isn\'t installed',
            hint="pip install 'edgecompile[ray]', on the machines of the cluster too",
        )


class Cluster:
    """A Ray cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def share(self, content: bytes) -> Any:
        """Bytes that tasks may ask for by :func:`fetch`: they travel to the machines that do."""
        return self._ray.put(content)

    def has(self, resource: str) -> bool:
        """Whether a machine says that it has it: ``ray start --resources '{"NAME": 1}'``."""
        return bool(self._ray.cluster_resources().get(resource, 0) >= 1)

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        at_once: int | None = None,
        resource: str | None = None,
    ) -> Generator[Result, None, None]:
        """Calls ``function``, of a module that every machine has, with each item on some machine.

        Args:
            function: raises nothing that is expected: what it raises here arrives as Ray's errors.
            items: each is taken when its task is handed out.
            at_once: tasks under way; None: one for each CPU of the cluster.
            resource: on machines that say that they have it, one of which each task takes, and no CPU;
                None: a CPU of any machine.

        Yields:
            the results, in the order of the items. Tasks that are under way when the caller stops or
            is interrupted are cancelled.

        Raises:
            ClusterError: a machine or its process was lost, again and again.
        """
        ray = self._ray
        most = at_once or max(1, int(ray.cluster_resources().get("CPU", 1)))
        task = ray.remote(function)
        if resource is not None:
            task = task.options(num_cpus=0, resources={resource: 1})
        waiting = iter(items)
        under_way: deque[Any] = deque()
        try:
            while True:
                while len(under_way) < most and (item := next(waiting, waiting)) is not waiting:
                    under_way.append(task.remote(item))
                if not under_way:
                    return
                result = ray.get(under_way[0])
                under_way.popleft()
                yield result
        except ray.exceptions.RayTaskError:
            raise  # a bug of the function, with its traceback
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"a task was lost on the Ray cluster: {str(error).strip().splitlines()[0]}",
                hint="run it again: what was compiled is kept with `work_dir`",
            ) from error
        finally:
            # As with threads, a compiler that runs comes to its end; what would follow doesn't begin. One
            # that failed has ended, as others may have, and to cancel such a task can end Ray itself.
            if under_way:
                every = list(under_way)
                for reference in ray.wait(every, num_returns=len(every), timeout=0)[1]:
                    ray.cancel(reference)


@contextmanager
def open_cluster() -> Iterator[Cluster]:
    """The cluster at the environment's RAY_ADDRESS, or one of this machine alone, which ends here.

    Raises:
        MissingDependencyError: Ray isn't installed.
        ClusterError: there is no cluster at that address.
    """
    need_ray()
    import ray

    if ray.is_initialized():  # by a program that uses this as a library
        yield Cluster(ray)
        return
    address = os.environ.get("RAY_ADDRESS") or "local"
    try:
        _connect(address)
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"there is no Ray cluster at {address}: {str(error).strip().splitlines()[0]}",
            hint="set RAY_ADDRESS to the address that 'ray start --head' printed, or leave it out",
        ) from error
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    """Raises OSError where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def fetch(shared: Any) -> bytes:
    """On a machine of the cluster: what :meth:`Cluster.share` was given."""
    import ray

    return bytes(ray.get(shared))
