"""Everything that reads or writes the run's files happens in these threads, never in the event loop.

A disk may hang for minutes. Then these threads wait, and the event loop still answers a STOP. Static files have threads of
their own, so that pages load meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastapi import HTTPException

from dovetail.console.labeling_queue import TakenError
from dovetail.core.errors import DovetailError, StoreError

__all__ = ["DECODING", "FILES", "READ_S", "REFRESH", "in_thread"]

READ_S = 15.0  # after this time a request for data is answered with an error. A browser has six connections to us
FILES = ThreadPoolExecutor(24, thread_name_prefix="files")
REFRESH = ThreadPoolExecutor(1, thread_name_prefix="refresh")  # a second one would only wait for the same disk
DECODING = ThreadPoolExecutor(
    12, thread_name_prefix="decoding"
)  # its own, so that other requests do not wait for it

T = TypeVar("T")


async def in_thread(
    call: Callable[[], T], *, pool: ThreadPoolExecutor = FILES, time_limit_s: float | None = READ_S
) -> T:
    """Run `call` outside the event loop; an error becomes one line with a matching status. No limit for writing."""
    try:
        running = asyncio.get_running_loop().run_in_executor(pool, call)
        return await asyncio.wait_for(running, time_limit_s)
    except TimeoutError as error:
        raise HTTPException(503, f"the disk of the run has not answered within {time_limit_s:g} s") from error
    except TakenError as error:
        raise HTTPException(409, str(error)) from error
    except StoreError as error:
        raise HTTPException(503, str(error)) from error
    except DovetailError as error:
        raise HTTPException(400, str(error)) from error
