"""What the vendors find, put together to one inventory; a vendor that fails is switched off by name, others go on."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hamipy.core.codec import check_inventory
from hamipy.core.errors import HamipyError, VendorError
from hamipy.core.model import Device, Inventory, Model, Nic
from hamipy.core.vendor import Discovered, Vendor
from hamipy.node.files import write_atomically
from hamipy.node.metrics import Metrics
from hamipy.node.waiting import happened
from hamipy.node.workers import Worker

logger = logging.getLogger(__name__)

_SETTLE = 0.05
"""Seconds between a vendor's word of a change and the next discovery, so that many changes are one."""


class Found(Struct, frozen=True):
    """A vendor's last good answer, as it is kept on disk."""

    devices: tuple[Device, ...] = ()
    models: dict[str, Model] = {}
    nics: tuple[Nic, ...] = ()


class _Cache(Struct, frozen=True):
    boot: str
    vendors: dict[str, Found]


class Discovery:
    """Runs discovery and watch of every vendor; `inventory` is what they say together.

    A vendor that fails keeps its last known devices, all of them sick with the failure as the reason: they exist, the
    operator sees why nothing is placed on them, and what runs there goes on.
    """

    def __init__(
        self,
        vendors: Mapping[str, Vendor],
        problems: Mapping[str, str],
        *,
        node: str,
        state: Path,
        boot: str,
        limit: float,
        interval: float,
        changed: Callable[[], None],
        metrics: Metrics,
    ) -> None:
        self.vendors = dict(vendors)
        self.workers = {name: Worker(name) for name in vendors}
        self._off, self._node, self._boot = dict(problems), node, boot
        self._limit, self._interval, self._changed, self._metrics = limit, interval, changed, metrics
        self._path = state / "inventory.json"
        self._good = self._load()
        self._failures: dict[str, str] = {}
        self._warnings: dict[str, str] = {}
        self._answered: set[str] = set()
        self.complete = asyncio.Event()
        """Set when every vendor has answered, or failed, once."""
        if not vendors:
            self.complete.set()
        self.inventory = self._combine()

    @property
    def cached(self) -> bool:
        """Whether something is known from this boot without having asked."""
        return bool(self._good)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for vendor in self.vendors.values():
                group.create_task(self._tend(vendor))
            await asyncio.Event().wait()  # without vendors there is nothing to do, and still no end

    async def _tend(self, vendor: Vendor) -> None:
        event = asyncio.Event()
        stop: Callable[[], None] | None = None
        watching = False

        def ended(failure: BaseException | None) -> None:
            nonlocal watching
            watching = False
            logger.warning("vendor %s: its watch ended: %s", vendor.name, failure or "it returned")
            event.set()

        try:
            while True:
                event.clear()
                if vendor.watch is not None and not watching:
                    watching = True
                    stop = self.workers[vendor.name].watch(vendor.watch, event.set, ended)
                await self._ask(vendor)
                quiet = watching and vendor.name not in self._failures
                if not await happened(event, None if quiet else self._interval):
                    continue
                if not watching:
                    await asyncio.sleep(min(1.0, self._interval))  # a watch that ends at once must not spin
                await asyncio.sleep(_SETTLE)
        finally:
            if stop is not None:
                stop()

    async def _ask(self, vendor: Vendor) -> None:
        try:
            answer = await self.workers[vendor.name].call("discover", vendor.discover, self._limit)
            found, problem = self._check(vendor.name, answer), answer.problem
            if problem and not found.devices:
                raise VendorError(vendor.name, problem)
        except HamipyError as error:
            self._metrics.count("vendor_failures")
            text = str(error).removeprefix(f"vendor {vendor.name}: ")
            if self._failures.get(vendor.name) != text:
                logger.warning("vendor %s is switched off: %s", vendor.name, text)
            self._failures[vendor.name] = text
            self._warnings.pop(vendor.name, None)
        else:
            if self._failures.pop(vendor.name, None) is not None:
                logger.info("vendor %s is back", vendor.name)
            self._warnings.pop(vendor.name, None)
            if problem:
                self._warnings[vendor.name] = problem
            if self._good.get(vendor.name, Found()) != found or vendor.name not in self._good:
                self._good[vendor.name] = found
                self._save()
        self._answered.add(vendor.name)
        if self._answered >= self.vendors.keys():
            self.complete.set()
        self.inventory = self._combine()
        self._changed()

    def _check(self, vendor: str, answer: Any) -> Found:
        """The answer, held to the contract. Raises HamipyError."""
        if not isinstance(answer, Discovered):
            raise VendorError(vendor, f"discover answered {type(answer).__name__}, not Discovered")
        try:
            wire = (list(answer.devices), dict(answer.models), list(answer.nics))
            devices, models, nics = msgspec.convert(
                msgspec.to_builtins(wire), tuple[tuple[Device, ...], dict[str, Model], tuple[Nic, ...]]
            )
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise VendorError(vendor, f"discover answered something else than devices: {error}") from error
        check_inventory(Inventory(node=self._node, devices=devices))
        for device in devices:
            if device.vendor != vendor:
                raise VendorError(vendor, f"device {device.id} is said to be of vendor {device.vendor!r}")
            for other, found in self._good.items():
                if other != vendor and any(d.id == device.id for d in found.devices):
                    raise VendorError(vendor, f"device {device.id} is vendor {other}'s")
        return Found(tuple(sorted(devices, key=lambda d: (d.index, d.id))), models, nics)

    def _combine(self) -> Inventory:
        devices: list[Device] = []
        models: dict[str, Model] = {}
        nics: list[Nic] = []
        for name in sorted(self.vendors):
            found, failure = self._good.get(name, Found()), self._failures.get(name)
            for device in found.devices:
                sick = {"healthy": False, "reason": f"vendor {name}: {failure}"} if failure else {}
                devices.append(replace(device, index=len(devices), **sick))
            models |= found.models
            nics.extend(found.nics)
        return Inventory(
            node=self._node,
            models=models,
            devices=tuple(devices),
            nics=tuple(nics),
            problems={**self._off, **self._warnings, **self._failures},
        )

    def _load(self) -> dict[str, Found]:
        try:
            cache = msgspec.json.decode(self._path.read_bytes(), type=_Cache)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("the cached inventory is not readable, devices are discovered anew: %s", error)
            return {}
        if cache.boot != self._boot:
            return {}
        return {name: found for name, found in cache.vendors.items() if name in self.vendors}

    def _save(self) -> None:
        try:
            write_atomically(self._path, msgspec.json.encode(_Cache(self._boot, self._good)))
        except OSError as error:
            logger.warning("the inventory cannot be cached: %s", error)
