"""A slow line between sites and coordinator, shaped in this process.

Every connection has a separate line, the same in both directions. What does not fit onto it waits
at its sender, as on a real one.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from erosion_common.support.network import LOOPBACK, free_address

CHUNK_BYTES = 2**15
START_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SlowLine:
    """What a line takes and how long it takes."""

    bits_per_second: float = 50e6
    delay_seconds: float = 0.040  # in each direction

    @contextlib.contextmanager
    def to(self, address: str) -> Iterator[str]:
        """The address at which such a line to `address` begins."""
        loop, begins = asyncio.new_event_loop(), free_address()
        thread = threading.Thread(target=loop.run_forever, name="slow line", daemon=True)
        thread.start()
        opened = asyncio.run_coroutine_threadsafe(self._serve(begins, address), loop)
        server = opened.result(START_SECONDS)
        try:
            yield begins
        finally:
            loop.call_soon_threadsafe(server.close)
            asyncio.run_coroutine_threadsafe(_end_all(), loop).result(START_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(START_SECONDS)
            if not loop.is_running():
                loop.close()

    async def _serve(self, begins: str, address: str) -> asyncio.Server:
        async def connected(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
            host, _, port = address.rpartition(":")
            try:
                far, forth = await asyncio.open_connection(host, int(port))
            except OSError:
                back.close()
                return
            try:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    await asyncio.gather(self._carry(near, forth), self._carry(far, back))
                    for writer in (back, forth):
                        writer.close()
                        await writer.wait_closed()  # when what was to arrive has been taken
            finally:
                for writer in (back, forth):
                    writer.transport.abort()

        return await asyncio.start_server(connected, LOOPBACK, int(begins.rpartition(":")[2]))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.ensure_future(_arrive(under_way, writer))
        free_at = loop.time()  # when the line has taken all that was put onto it
        try:
            while data := await reader.read(CHUNK_BYTES):
                free_at = max(free_at, loop.time()) + 8 * len(data) / self.bits_per_second
                under_way.put_nowait((free_at + self.delay_seconds, data))
                await asyncio.sleep(max(0.0, free_at - loop.time()))
            under_way.put_nowait((free_at + self.delay_seconds, b""))
            await arriving
        finally:
            arriving.cancel()


async def _arrive(
    under_way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due, data = await under_way.get()
        await asyncio.sleep(max(0.0, due - loop.time()))
        if not data:
            writer.write_eof()
            return
        writer.write(data)
        await writer.drain()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for _ in range(5):  # until the sockets of what was aborted are closed
        await asyncio.sleep(0.01)
