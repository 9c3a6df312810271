"""Many sites in one process: an event loop in place of the threads of the program itself.

    python -m experiments.benchmarks.event_loop_sites ADDRESS DIM FIRST END [KITS]

It speaks the same frames and makes its replies with the same code; `KITS` has a folder for each
site, as a kit is unpacked. So 256 sites cost little compared with the measured coordinator.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import torch
from flwr.app import RecordDict

from erosion_client.connection.site_link import OURS
from erosion_common.protocol import wire
from erosion_common.protocol.envelope import (
    Assembly,
    FrameSize,
    MemorySpace,
    data_frames,
    describe,
    read_description,
)
from erosion_common.protocol.frames import PATH, Kind, frame, json_body, json_frame, opened
from experiments.benchmarks.ours import AddingSite

CONNECTING_AT_ONCE = 16  # TLS handshakes under way


async def serve(address: str, site: AddingSite, kit: Path | None, turn: asyncio.Semaphore) -> None:
    """Answer what is asked until the coordinator ends the stream."""
    async with _channel(address, kit) as channel:
        async with turn:
            call = channel.stream_stream(PATH)()
            await call.write(json_frame(Kind.HELLO, OURS.as_json()))
            await call.read()
        with contextlib.suppress(grpc.RpcError):  # the coordinator has done its rounds
            async for head, content in _requests(call):
                records, buffers = describe(site.answer(head["type"], content))
                await call.write(json_frame(Kind.MESSAGE, {"re": head["id"], "records": records}))
                for data in data_frames(buffers, FrameSize()):
                    await call.write(data)


async def _requests(call: Any) -> AsyncIterator[tuple[dict[str, Any], RecordDict]]:
    arriving: Assembly | None = None
    while (received := await call.read()) is not grpc.aio.EOF:
        kind, body = opened(received)
        if kind is Kind.PING:
            await call.write(frame(Kind.PONG))
        elif kind is Kind.MESSAGE:
            head = json_body(body)
            description = read_description(head.pop("records"))
            arriving = Assembly(head, description, MemorySpace(description.num_bytes))
        elif kind is Kind.DATA and arriving is not None:
            arriving.take(body)
        if arriving is not None and arriving.is_whole:
            yield arriving.head, arriving.content()
            arriving = None


def _channel(address: str, kit: Path | None) -> Any:
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    if kit is None:
        return grpc.aio.insecure_channel(address, options=options)
    files = ("ca.crt", "node.key", "node.crt")
    credentials = grpc.ssl_channel_credentials(*((kit / name).read_bytes() for name in files))
    return grpc.aio.secure_channel(address, credentials, options=options)


async def main(address: str, dim: int, first: int, end: int, kits: Path | None) -> None:
    """Serve sites `first` to `end` - 1."""
    turn, studies = asyncio.Semaphore(CONNECTING_AT_ONCE), wire.KnownStudies()
    sites = [AddingSite(number, dim, studies) for number in range(first, end)]
    await asyncio.gather(*(serve(address, site, kits and kits / site.name, turn) for site in sites))


if __name__ == "__main__":
    torch.set_num_threads(1)
    address, dim, first, end, *kits = sys.argv[1:]
    asyncio.run(main(address, int(dim), int(first), int(end), Path(kits[0]) if kits else None))
