"""The meeting place as torch.distributed asks it, from one process."""

import socket
import struct
import threading

from sparkdl.cluster.rendezvous import Rendezvous
from sparkdl.collectives.meeting import MeetingStore

AT_ONCE = struct.pack("ii", 1, 0)  # closes with a reset, as what a flood of strangers pushes out is closed


def test_a_request_that_a_flood_of_strangers_pushed_out_comes_again() -> None:
    with (
        Rendezvous("127.0.0.1", host="127.0.0.1", token="right") as rendezvous,
        socket.create_server(("127.0.0.1", 0)) as door,
    ):
        store = MeetingStore(f"127.0.0.1:{door.getsockname()[1]}", "right")

        def reset_twice_and_let_in() -> None:
            for _ in range(2):
                client = door.accept()[0]
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                client.close()
            store._address = f"127.0.0.1:{rendezvous.address.port}"

        thread = threading.Thread(target=reset_twice_and_let_in)
        thread.start()
        store.set("key", b"value")
        thread.join()
        assert store.get("key") == b"value"
