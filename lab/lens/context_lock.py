"""A lock that lets one thread at a time use hooks, because hooks are state on the model."""

import threading

BUSY = (
    "hooks must be used by one thread of a model at a time, got another thread inside hooks() or "
    "run_with_cache for more than {seconds:g} s; give each thread its own copy.deepcopy(model), or "
    "use gates and observe, which are arguments of forward"
)


class ContextLock:
    """A re-entrant lock; a copied model gets its own."""

    seconds: float = 60.0
    """Time to wait for another thread, which may be in a deadlock with this one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Wait for the other thread.

        Raises:
            RuntimeError: It takes too long.
        """
        if not self._lock.acquire(timeout=self.seconds):
            raise RuntimeError(BUSY.format(seconds=self.seconds))

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type["ContextLock"], tuple[()]]:
        """Copy and save as a free lock."""
        return ContextLock, ()
