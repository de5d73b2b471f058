"""Options for access to data: transfer limits, permitted addresses and the cache.

`flare.open` and the commands share these options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from flarecli.arguments import Address, Option, Options, address_text, option
from flarecli.progress import Progress
from flarecli.units import parse_size, parse_time

if TYPE_CHECKING:
    from flarecli.storage import Guard, Limits

__all__ = ["CacheOptions", "NetworkOptions"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NetworkOptions(Options):
    """The options for transfer limits and for the addresses to which data may refer."""

    jobs: int | None = option(
        None,
        Option(
            group="Run",
            flags=("-j",),
            metavar="N",
            minimum=1,
            help="Parallel jobs (default: CPU count, or 32 for downloads).",
            is_everyday=True,
        ),
    )
    retries: int = option(
        8,
        Option(
            group="Network and cache",
            metavar="N",
            minimum=0,
            help="Maximum number of retries per object after transient errors.",
        ),
    )
    timeout: float | str = option(
        30.0,
        Option(
            group="Network and cache",
            metavar="TIME",
            parse=parse_time,
            takes_text=True,
            minimum=0,
            shown="30s",
            help="Maximum time that a transfer may stall; an HTTP transfer below 1 kB/s counts as stalled.",
        ),
    )
    deadline: float | str = option(
        600.0,
        Option(
            group="Network and cache",
            metavar="TIME",
            parse=parse_time,
            takes_text=True,
            minimum=0,
            shown="10m",
            help="Maximum time to transfer one object, including retries.",
        ),
    )
    allow_private: bool = option(
        False, Option(group="Safety", help="Allow data to refer to private and loopback addresses.")
    )
    allow_host: str | Sequence[str] = option(
        (),
        Option(
            group="Safety",
            metavar="HOST[:PORT]",
            is_repeatable=True,
            help="Allow data to refer to this private host or network, such as 10.1.0.0/16; repeatable.",
        ),
    )
    allow_local: bool = option(
        False,
        Option(
            group="Safety",
            help="Allow data to refer to file:// URLs, paths outside its folder and symbolic links.",
        ),
    )
    progress: Progress | None = None

    def limits(self) -> Limits:
        """Return the transfer limits."""
        from flarecli.storage import Limits

        limits = Limits(
            retries=self.retries,
            timeout_s=cast(float, self.timeout),
            deadline_s=cast(float, self.deadline),
        )
        return limits if self.jobs is None else replace(limits, jobs=self.jobs)

    def guard(self, sources: Sequence[str]) -> Guard:
        """Return the access rules. They allow data to refer to the web origins of `sources`.

        sources  addresses that the user specified
        raises   UsageError for a value of `allow_host` that is neither a host nor a network
        """
        from flarecli.storage import Guard, with_reach

        guard = Guard(
            allow_private=self.allow_private, allow_local=self.allow_local, limits=self.limits()
        )
        return with_reach(guard, self.allow_host, sources)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CacheOptions(NetworkOptions):
    """The network options, and the options for the cache."""

    cache: Address | None = option(
        None,
        Option(
            group="Network and cache",
            metavar="DIR",
            help="Cache downloaded files in this folder.",
        ),
    )
    cache_limit: int | str = option(
        10 * 10**9,
        Option(
            group="Network and cache",
            metavar="SIZE",
            parse=parse_size,
            takes_text=True,
            minimum=0,
            shown="10GB",
            help="Maximum size of the cache; the least recently used files are evicted.",
        ),
    )

    def guard(self, sources: Sequence[str]) -> Guard:
        guard = super().guard(sources)
        if not self.cache:
            return guard
        from flarecli.cache import Cache

        note = None if self.progress is None else self.progress.note
        cache = Cache(address_text(self.cache), cast(int, self.cache_limit), note)
        return replace(guard, keeper=cache)
