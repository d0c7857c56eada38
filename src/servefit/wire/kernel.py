"""What the kernel knows of a connection and we do not: when bytes arrived, how long its round trips take."""

import socket
import struct
import sys

SO_TIMESTAMPNS = 35  # Linux, all but a few old architectures; also the type of its control message
_STAMP = struct.Struct("qq")
unstamp = _STAMP.unpack
"""Seconds and nanoseconds of CLOCK_REALTIME, from a control message."""
STAMP_SPACE = socket.CMSG_SPACE(_STAMP.size) if hasattr(socket, "CMSG_SPACE") else 0

_held: list[int] = []
"""A socket (its number) that keeps the kernel stamping: it begins only some time after the first that asks, and ends with the last."""


def start_stamping() -> bool:
    """Have the kernel stamp arrivals from now on; False where it cannot."""
    if sys.platform != "linux":
        return False
    if not _held:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError:
            sock.close()
            return False
        _held.append(sock.detach())
    return True


def round_trip_ns(sock: socket.socket) -> int | None:
    """The kernel's smoothed round trip (tcpi_rtt, in µs, the 16th number of struct tcp_info); None where it keeps none."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 72)
    except (AttributeError, OSError):
        return None
    return int.from_bytes(told[68:72], sys.byteorder) * 1000 or None if sys.platform == "linux" else None
