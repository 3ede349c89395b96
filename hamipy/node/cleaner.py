"""Removes what dead pods and crashes left: specs, limits, vendors' files and partitions.

A container's files go when its pod has left both the kubelet's checkpoint and the API server; before that a restart
may need them. Without word from either, nothing goes.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from hamipy.core.errors import VendorError
from hamipy.core.vendor import Vendor
from hamipy.node.cdi import Specs
from hamipy.node.checkpoint import Checkpoint, CheckpointUnreadable
from hamipy.node.grants import Grant, Grants
from hamipy.node.metrics import Metrics
from hamipy.node.pods import PodView
from hamipy.node.starter import container_shares
from hamipy.node.workers import Worker

logger = logging.getLogger(__name__)

_RELEASE_LIMIT = 20.0
_YOUNG = 60.0
"""Seconds for which a file without an owner is left alone: its container may be starting."""


class Cleaner:
    """See the module."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        pods: PodView,
        grants: Grants,
        specs: Specs,
        vendors: Mapping[str, Vendor],
        workers: Mapping[str, Worker],
        metrics: Metrics,
    ) -> None:
        self._checkpoint, self._pods, self._grants, self._specs = checkpoint, pods, grants, specs
        self._vendors, self._workers, self._metrics = vendors, workers, metrics

    async def run(self, interval: float) -> None:
        """Clean every `interval` seconds until cancelled."""
        while True:
            await asyncio.sleep(interval)
            await self.clean()

    async def clean(self) -> None:
        """Clean once."""
        if not self._pods.synced:
            return
        try:
            holdings = self._checkpoint.read()
        except CheckpointUnreadable as error:
            logger.warning("nothing is cleaned: %s", error)
            return
        self._pods.forget(holdings.by_pod)
        for grant in self._grants:
            if self._pods.get(grant.uid) is None and grant.uid not in holdings.by_pod:
                await self._release(grant)
        live = {grant.name for grant in self._grants} | holdings.names
        try:
            await asyncio.to_thread(self._strays, live)
        except OSError as error:
            logger.warning("leftover files cannot be removed: %s", error)

    async def _release(self, grant: Grant) -> None:
        for name in sorted({d.vendor for d in grant.devices}):
            vendor = self._vendors.get(name)
            if vendor is None or (release := vendor.release) is None:
                continue
            pairs = [(s, d) for s, d in zip(grant.shares, grant.devices, strict=True) if d.vendor == name]
            container = container_shares(grant, name, pairs, self._grants)
            try:
                await self._workers[name].call("release", partial(release, container), _RELEASE_LIMIT)
            except VendorError as error:
                logger.warning(
                    "%s/%s container %s: %s; tried again", grant.namespace, grant.pod, grant.container, error
                )
                return
        try:
            await asyncio.to_thread(self._specs.remove, grant.name)
            await asyncio.to_thread(self._grants.remove, grant.name)
        except OSError as error:
            logger.warning("files of %s cannot be removed: %s", grant.name, error)
            return
        self._metrics.count("cleaned")
        logger.info("cleaned up after %s/%s container %s", grant.namespace, grant.pod, grant.container)

    def _strays(self, live: set[str]) -> None:
        for name in self._specs.names():
            if name not in live and _old(self._specs.path(name)):
                self._specs.remove(name)
        for name in self._grants.strays():
            if name not in live and _old(self._grants.home(name)):
                shutil.rmtree(self._grants.home(name), ignore_errors=True)
        for path in [*self._specs.temporaries(), *self._grants.directory.glob("*/.*.tmp")]:
            if _old(path):
                path.unlink(missing_ok=True)


def _old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _YOUNG
    except FileNotFoundError:
        return False
