"""Runs vendors' code: each vendor in a thread of its own, with a time limit; one that hangs holds nobody else up."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from hamipy.core.errors import VendorError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Worker:
    """The thread of one vendor, made when it is first needed.

    A daemon thread: a call that never returns must not keep the process from ending. While one call hangs, others
    are refused at once.
    """

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._hung: asyncio.Future[Any] | None = None

    async def call(self, role: str, function: Callable[[], T], limit: float) -> T:
        """Run `function` there.

        Args:
            role: for messages (`discover`, `edits`).
            function: one role of the vendor with its arguments bound.
            limit: seconds to wait.

        Raises:
            VendorError: it raised, took too long, or an earlier call still hangs.
        """
        if self._hung is not None and not self._hung.done():
            raise VendorError(self.vendor, f"{role} cannot run: an earlier call still hangs")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"vendor-{self.vendor}", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._jobs.put((function, loop, answer))
        done, _ = await asyncio.wait([answer], timeout=limit)
        if not done:
            self._hung = answer
            raise VendorError(self.vendor, f"{role} took longer than {limit:g} s")
        try:
            return answer.result()
        except Exception as error:
            raise VendorError(self.vendor, f"{role} failed: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Let the thread end once it has nothing to do."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, loop, answer = job
            result: Any = None
            failure: BaseException | None = None
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - a third party's code may raise anything; the caller is told
                failure = error
            try:
                loop.call_soon_threadsafe(_settle, answer, result, failure)
            except RuntimeError:
                return  # the loop is closed: the daemon has ended

    def watch(
        self,
        function: Callable[[Callable[[], None], Callable[[], bool]], None],
        changed: Callable[[], None],
        ended: Callable[[BaseException | None], None],
    ) -> Callable[[], None]:
        """Run the vendor's watch in one more thread; answers the function that stops it.

        Args:
            function: the vendor's `watch`.
            changed: called on the loop for each change.
            ended: called on the loop when the watch returned or raised without having been stopped.
        """
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def on_loop(callback: Callable[..., None], *args: Any) -> None:
            try:
                loop.call_soon_threadsafe(callback, *args)
            except RuntimeError:
                stop.set()  # the loop is closed: the daemon has ended

        def run() -> None:
            failure: BaseException | None = None
            try:
                function(lambda: on_loop(changed), stop.is_set)
            except BaseException as error:  # noqa: BLE001 - as above
                failure = error
            if not stop.is_set():
                on_loop(ended, failure)

        threading.Thread(target=run, name=f"watch-{self.vendor}", daemon=True).start()
        return stop.set


def _settle(answer: "asyncio.Future[Any]", result: Any, failure: BaseException | None) -> None:
    if answer.cancelled():
        return
    if failure is None:
        answer.set_result(result)
    else:
        answer.set_exception(failure)
        answer.exception()  # seen: whoever waited may have given up
